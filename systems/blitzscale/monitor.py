"""The load of one model, over all its instances (§5.3): tokens/s and KV."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from harness.errors import UsageError


@dataclass(kw_only=True, slots=True, frozen=True)
class Load:
    """The load of one model at one moment."""

    prompt_tokens_per_s: float  # arriving, on average over the window
    queued_tokens: int  # of prompts that wait for their prefill
    kv_tokens: int  # held by decodes


class Monitor:
    """Counts the prompt tokens that arrived within a window. Raises UsageError unless the window
    is above 0."""

    def __init__(self, window_s: float) -> None:
        if not window_s > 0:
            raise UsageError(f"window_s={window_s} must be above 0")
        self._window_s = window_s
        self._arrivals: deque[tuple[float, int]] = deque()
        self._tokens = 0

    def arrived(self, now_s: float, prompt_tokens: int) -> None:
        """Counts a prompt."""
        self._arrivals.append((now_s, prompt_tokens))
        self._tokens += prompt_tokens

    def load(self, now_s: float, *, queued_tokens: int, kv_tokens: int) -> Load:
        """The load, with arrivals in (now - window, now]."""
        while self._arrivals and self._arrivals[0][0] <= now_s - self._window_s:
            self._tokens -= self._arrivals.popleft()[1]
        return Load(
            prompt_tokens_per_s=self._tokens / self._window_s,
            queued_tokens=queued_tokens,
            kv_tokens=kv_tokens,
        )
