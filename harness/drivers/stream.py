"""A streamed OpenAI answer, from bytes to token counts: pure, no sockets and no clock.

Counts what an answer held, and says in a sentence what was wrong with it. An event's tokens are
known exactly where the server reports its running usage (vLLM does on request); of any other
server an event with text counts as one token until the usage at the end corrects the total.
"""

from __future__ import annotations

import json
from typing import Any

TEXT_KEYS = ("text", "content", "reasoning_content", "reasoning", "refusal")


class StreamError(Exception):
    """The answer broke off or makes no sense; the message says how."""


class EventSplitter:
    """Cuts a byte stream into the payloads of its `data:` lines, of any length, anyhow split.

    One line is one event: what OpenAI-compatible servers send, a narrower thing than SSE.
    """

    def __init__(self) -> None:
        self._partial: list[bytes] = []  # an unfinished line; joined once, however long it gets

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads of the lines that `data` completes."""
        first, newline, rest = data.partition(b"\n")
        self._partial.append(first)
        if not newline:
            return []
        lines = [b"".join(self._partial), *rest.split(b"\n")]
        self._partial = [lines.pop()]
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

    def finish(self) -> list[bytes]:
        """At the end of the stream: the payload of a last line without its line end."""
        return self.feed(b"\n")


class Tally:
    """Follows one answer of at most `asked_tokens` tokens, event by event."""

    def __init__(self, asked_tokens: int) -> None:
        self.asked_tokens = asked_tokens
        self.num_tokens = 0
        self.done = False
        self.finish_reason: str | None = None
        self.corrected = False  # the usage at the end did not agree with the count so far

    @property
    def progress(self) -> str:
        return f"{self.num_tokens} of {self.asked_tokens} tokens"

    def read(self, payload: bytes) -> int:
        """The number of tokens that this event brought. StreamError: it reports an error."""
        if payload == b"[DONE]":
            self.done = True
            return 0
        try:
            event = json.loads(payload)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            text = payload[:80].decode(errors="replace")
            raise StreamError(f"event is no JSON object, after {self.progress}: {text}")
        if error := event.get("error"):
            message = error.get("message", error) if isinstance(error, dict) else error
            raise StreamError(f"error in mid-stream after {self.progress}: {message}")
        new = self._new_tokens(event)
        self.num_tokens += new
        return new

    def _new_tokens(self, event: dict[str, Any]) -> int:
        usage = self._shaped(event.get("usage") or {}, dict, "usage")
        counted = usage.get("completion_tokens")
        known = isinstance(counted, int)  # else this event's usage says nothing of the output
        unseen = max(0, counted - self.num_tokens) if known else 0
        choices = self._shaped(event.get("choices") or [], list, "choices")
        if not choices:  # the last event: only the usage of the whole
            self.corrected = known and counted != self.num_tokens
            return unseen
        choice = self._shaped(choices[0], dict, "choices[0]")
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if known:
            return unseen
        delta = self._shaped(choice.get("delta") or choice, dict, "delta")
        return 1 if any(delta.get(key) for key in TEXT_KEYS) else 0

    def _shaped(self, value: Any, kind: type, what: str) -> Any:
        """`value`, which must be of `kind` for the event to make sense."""
        if not isinstance(value, kind):
            text = json.dumps(value)[:80]
            raise StreamError(f"event makes no sense, after {self.progress}: {what} is {text}")
        return value

    def fault(self, allow_early_end: bool) -> str | None:
        """At the end of the stream: what is wrong with the answer, None if nothing is."""
        if not self.done:
            return f"stream ended after {self.progress} without [DONE]"
        if self.num_tokens > self.asked_tokens:
            return f"too many tokens: {self.progress}"
        if self.num_tokens == 0:
            return f"no token at all (finish_reason={self.finish_reason})"
        if self.num_tokens < self.asked_tokens and not allow_early_end:
            return f"ended early: {self.progress} (finish_reason={self.finish_reason})"
        return None
