"""How a golden server answers, faults included, and the events that it then streams: of one
request, and as a file has it for a server in a process of its own."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any


@dataclass(kw_only=True, frozen=True)
class Script:
    """How one answer is streamed. Token positions count from 0; None: it does not happen."""

    ttft_s: float = 0.0
    gap_s: float = 0.0  # between writes
    tokens_per_event: int = 1
    events_per_write: int = 1
    write_bytes: int | None = None  # cuts what is written into pieces of this size
    pad_bytes: int = 0  # further text in each event
    usage: str = "continuous"  # continuous, final or none
    status: int = 200
    stall_at: int | None = None  # before this token, for stall_s
    stall_s: float = 0.0
    stop_at: int | None = None  # an end as by an end-of-sequence token
    reset_at: int | None = None  # a TCP reset, right behind the tokens before
    error_at: int | None = None  # an error event in mid-stream
    hang_at: int | None = None
    cut_at: int | None = None  # the stream ends in order, but without finish and [DONE]
    garbage_at: int | None = None  # an event that is not JSON
    extra_tokens: int = 0  # beyond what was asked for
    prompt_tokens: int | None = None  # that usage reports
    cached_tokens: int | None = None  # of those
    usage_tokens: int | None = None  # that the usage at the end claims
    token_ids: int | None = None  # vLLM's return_token_ids: the first one; each is one more
    tool_calls: bool = False  # pieces of a tool call instead of text; chat only
    endless: bool = False  # the stream stays open after [DONE]
    error_bytes: int | None = None  # an error's body is this long
    message: str = "out of cheese"  # of an error


Event = tuple[int | None, bytes]  # position of its first token, None where it has none; payload
END = b"0\r\n\r\n"  # of a body in chunks


@dataclass(frozen=True, slots=True)
class Stream:
    """`writes`: seconds after the request and the pieces of each write, as the HTTP body has them.
    Then, `fault_s` after the request, `fault`: reset, hang or cut (an end in order, but without
    finish and [DONE]); None: the last write ends the answer."""

    writes: list[tuple[float, list[bytes]]]
    fault: str | None
    fault_s: float


@lru_cache(maxsize=256)
def stream(max_tokens: int, chat: bool, script: Script) -> Stream:
    """What answers a request for `max_tokens`, of the chat API or of completions; made once."""
    faults = {script.reset_at: "reset", script.hang_at: "hang", script.cut_at: "cut"}
    due_s, fault, waiting, number = script.ttft_s, None, b"", 0
    writes: list[tuple[float, list[bytes]]] = []
    for position, payload in _events(max_tokens, chat, script):
        if position is not None:  # what has no token is written with the last that has one
            if number == script.events_per_write:
                writes.append((due_s, _pieces(waiting, script)))
                due_s, waiting, number = due_s + script.gap_s, b"", 0
            number, fault = number + 1, faults.get(position)
            due_s += script.stall_s if position == script.stall_at else 0.0
        if fault is not None:
            break
        waiting += b"data: " + payload + b"\n\n"
    if waiting:
        writes.append((due_s, _pieces(waiting, script)))
    if fault is None and script.endless:
        fault = "hang"
    elif fault is None:
        writes[-1][1][-1] += END
    return Stream(writes, fault, due_s)


def _pieces(data: bytes, script: Script) -> list[bytes]:
    size = script.write_bytes or len(data)
    pieces = (data[start : start + size] for start in range(0, len(data), size))
    return [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]


def _events(max_tokens: int, chat: bool, script: Script) -> list[Event]:
    asked = max_tokens + script.extra_tokens
    total = asked if script.stop_at is None else min(asked, script.stop_at)
    found: list[Event] = []
    for position in range(0, total, script.tokens_per_event):
        sent = min(position + script.tokens_per_event, total)
        text = " word" * (sent - position) + "x" * script.pad_bytes
        choice: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
        if script.tool_calls:
            choice = {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}}
        if script.token_ids is not None:
            choice["token_ids"] = [script.token_ids + each for each in range(position, sent)]
        if sent == total:
            choice["finish_reason"] = "length" if total == asked else "stop"
        event: dict[str, Any] = {"choices": [choice]}
        if script.usage == "continuous":
            event["usage"] = _usage(script, sent)
        covers = range(position, sent)
        if script.error_at in covers:
            event = {"error": {"message": script.message, "code": 500}}
        found.append((position, json.dumps(event).encode()))
        if script.error_at in covers:
            break
        if script.garbage_at in covers:
            found[-1] = (position, b"{not json")
    if script.usage in ("continuous", "final"):
        told = total if script.usage_tokens is None else script.usage_tokens
        usage = {"choices": [], "usage": _usage(script, told)}
        found.append((None, json.dumps(usage).encode()))
    return [*found, (None, b"[DONE]")]


def _usage(script: Script, completion_tokens: int) -> dict[str, Any]:
    usage: dict[str, Any] = {"completion_tokens": completion_tokens}
    if script.prompt_tokens is not None:
        usage["prompt_tokens"] = script.prompt_tokens
    if script.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": script.cached_tokens}
    return usage


@dataclass(kw_only=True)
class Play:
    """What a server in a process of its own answers."""

    models: Mapping[str, Script]  # by the name that a request asks for
    freeze_at: int | None = None  # as this request comes in, counted from 1, all stands still
    freeze_s: float = 0.0
    caches: bool = False  # a prompt that was sent before counts as cached
    max_model_len: int | None = None  # that /models tells

    def __post_init__(self) -> None:
        self._num_seen = 0
        self._prompts: set[str] = set()

    def __call__(self, body: dict[str, Any]) -> Script:
        self._num_seen += 1
        if self._num_seen == self.freeze_at:
            time.sleep(self.freeze_s)  # under the server's event loop
        script = self.models[body["model"]]
        if not self.caches:
            return script
        prompt, length = prompt_hash(body), len(body["prompt"])
        cached = length if prompt in self._prompts else 0
        self._prompts.add(prompt)
        return replace(script, prompt_tokens=length, cached_tokens=cached)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Play:
        found = json.loads(text)
        models = {name: Script(**script) for name, script in found.pop("models").items()}
        return Play(models=models, **found)


def prompt_hash(body: Mapping[str, Any]) -> str:
    """Of the prompt of a request's JSON body, as it was sent."""
    prompt = json.dumps(body["messages"] if "messages" in body else body["prompt"])
    return hashlib.sha256(prompt.encode()).hexdigest()
