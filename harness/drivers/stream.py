"""A streamed OpenAI answer, from bytes to token counts: pure, no sockets and no clock.

Counts what an answer held, and says in a sentence what was wrong with it. An event's tokens are
known exactly where the server reports its running usage (vLLM does on request); of any other
server an event with text, or a piece of a tool call, counts as one token until the usage at the
end corrects the total. Nothing that a server sends makes a count or a sentence without bounds.
"""

from __future__ import annotations

import json
from typing import Any

from harness.records.record import Reported

TEXT_KEYS = (
    "text", "content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call",
)  # fmt: skip
MAX_LINE_BYTES = 16 << 20  # of one event; a server that sends more sends no tokens
MIN_EXCESS_TOKENS = 16  # beyond what was asked, or as many again: then a stream is cut
EXCERPT_CHARS = 200
MAX_COUNT = 1 << 40  # of tokens in a usage report: more is no count


class StreamError(Exception):
    """The answer broke off or makes no sense; the message says how."""


def excerpt(text: str, length: int = EXCERPT_CHARS) -> str:
    """The beginning of `text` on one line, as UTF-8 can hold it: a server may send anything."""
    words = " ".join(text[: 4 * length].split())
    return words[:length].encode(errors="replace").decode()


class EventSplitter:
    """Cuts a byte stream into the payloads of its `data:` lines, of any length, anyhow split.

    One line is one event: what OpenAI-compatible servers send, a narrower thing than SSE.
    """

    def __init__(self) -> None:
        self._partial: list[bytes] = []  # an unfinished line; joined once, however long it gets
        self._num_bytes = 0  # of it

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads of the lines that `data` completes. StreamError: a line has no end."""
        first, newline, rest = data.partition(b"\n")
        self._partial.append(first)
        if not newline:
            self._num_bytes += len(first)
            if self._num_bytes > MAX_LINE_BYTES:
                raise StreamError(f"an event is longer than {MAX_LINE_BYTES >> 20} MiB")
            return []
        lines = [b"".join(self._partial), *rest.split(b"\n")]
        self._partial = [lines.pop()]
        self._num_bytes = len(self._partial[0])
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

    def finish(self) -> list[bytes]:
        """The payload of a last line without its line end, at the end of the stream."""
        return self.feed(b"\n")


class Tally:
    """Follows one answer of at most `asked_tokens` tokens, event by event. `keep`: what is said is
    kept."""

    def __init__(self, asked_tokens: int, *, keep: bool = False) -> None:
        self.asked_tokens = asked_tokens
        self.keeps, self._ids, self._text = keep, list[int](), list[str]()
        self.max_tokens = asked_tokens + max(asked_tokens, MIN_EXCESS_TOKENS)
        self.num_tokens = 0
        self.done = False
        self.cut: str | None = None  # set where the answer went far beyond what was asked
        self.finish_reason: str | None = None
        self._num_chunks = 0  # events that brought tokens, and not only told of some
        self._surplus_tokens = 0  # told by the usage at the end alone
        self._by_text = False  # tokens were counted by their events
        self._miscounted = False  # the usage at the end was below the count so far
        self._prompt_tokens: int | None = None
        self._cached_tokens: int | None = None

    @property
    def progress(self) -> str:
        return f"{self.num_tokens} of {self.asked_tokens} tokens"

    @property
    def corrected(self) -> bool:
        """The usage at the end did not agree with the count so far."""
        return self._miscounted or self._surplus_tokens > 0

    def reported(self) -> Reported:
        return Reported(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            surplus_tokens=self._surplus_tokens,
            buffered=self.num_tokens > 1 and self._num_chunks <= 1,
        )

    def answer(self) -> list[int] | str:
        """What was kept: all tokens' ids where the server told them (vLLM's return_token_ids), else
        the text."""
        return self._ids if len(self._ids) == self.num_tokens else "".join(self._text)

    def read(self, payload: bytes) -> int:
        """The number of tokens that this event brought. StreamError: it reports an error."""
        if payload == b"[DONE]":
            self.done = True
            return 0
        try:
            event = json.loads(payload.decode())  # of bytes it would guess the encoding first
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            text = excerpt(payload[:80].decode(errors="replace"))
            raise StreamError(f"event is no JSON object, after {self.progress}: {text}")
        if error := event.get("error"):
            message = error.get("message", error) if isinstance(error, dict) else error
            said = excerpt(message if isinstance(message, str) else json.dumps(message))
            raise StreamError(f"error in mid-stream after {self.progress}: {said}")
        new = self._new_tokens(event)
        if self.num_tokens + new > self.max_tokens:
            self.cut = f"cut: at least {self.num_tokens + new} tokens for {self.asked_tokens} asked"
            new = self.max_tokens - self.num_tokens if event.get("choices") else 0  # none was seen
        self.num_tokens += new
        self._num_chunks += new > 0 and bool(event.get("choices"))
        return new

    def _new_tokens(self, event: dict[str, Any]) -> int:
        usage = self._shaped(event.get("usage") or {}, dict, "usage")
        self._keep_prompt(usage)
        counted = _count(usage.get("completion_tokens"))
        unseen = 0 if counted is None else max(0, counted - self.num_tokens)
        choices = self._shaped(event.get("choices") or [], list, "choices")
        if not choices:  # the last event: only the usage of the whole
            self._surplus_tokens += unseen
            self._miscounted |= counted is not None and counted < self.num_tokens
            return unseen
        choice = self._shaped(choices[0], dict, "choices[0]")
        if reason := choice.get("finish_reason"):
            self.finish_reason = excerpt(str(reason), 40)
        delta = self._shaped(choice.get("delta") or choice, dict, "delta")
        if self.keeps:
            self._keep(self._shaped(choice.get("token_ids") or [], list, "token_ids"), delta)
        seen = 1 if any(delta.get(key) for key in TEXT_KEYS) else 0
        if counted is None:
            self._by_text |= seen > 0
            return seen
        if self._by_text:  # no running usage, but the whole's, with the last text
            self._surplus_tokens += max(0, unseen - seen)
            self._miscounted |= counted < self.num_tokens
        return unseen

    def _keep(self, ids: list[Any], delta: dict[str, Any]) -> None:
        """Thoughts are left out, as chat templates do."""
        if not all(type(each) is int for each in ids):
            raise StreamError(f"event makes no sense, after {self.progress}: token_ids are no ids")
        self._ids += ids
        self._text.append(str(delta.get("content") or delta.get("text") or ""))

    def _keep_prompt(self, usage: dict[str, Any]) -> None:
        prompt = _count(usage.get("prompt_tokens"))
        self._prompt_tokens = self._prompt_tokens if prompt is None else prompt
        details = usage.get("prompt_tokens_details")
        cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
        self._cached_tokens = self._cached_tokens if cached is None else cached

    def _shaped(self, value: Any, kind: type, what: str) -> Any:
        """`value`, which must be of `kind` for the event to make sense."""
        if not isinstance(value, kind):
            text = excerpt(json.dumps(value), 80)
            raise StreamError(f"event makes no sense, after {self.progress}: {what} is {text}")
        return value

    def fault(self, allow_early_end: bool) -> str | None:
        """What is wrong with the answer at the end of the stream; None: nothing is."""
        if self.cut is not None:
            return self.cut
        if not self.done:
            return f"stream ended after {self.progress} without [DONE]"
        if self.num_tokens > self.asked_tokens:
            return f"too many tokens: {self.progress}"
        if self.num_tokens == 0:
            return f"no token at all (finish_reason={self.finish_reason})"
        if self.num_tokens < self.asked_tokens and not allow_early_end:
            return f"ended early: {self.progress} (finish_reason={self.finish_reason})"
        return None


def _count(value: Any) -> int | None:
    """A usage report's number; None: it says nothing that could be one."""
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None
