"""Which hosts hold which models for the baseline ServerlessLLM (§6): a cache with a time to live.

A loaded model stays in its host's memory while an instance there uses it, and for `ttl_s` after. A
scale-up on a host without the model reads the host's SSDs. The paper has 5 minutes (§3), its code
30 s. Neither limits a host's memory. AllCache is a cache that has every model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from harness.errors import UsageError


@dataclass(slots=True)
class HostCache:
    """The caches of all hosts. ttl_s: how long an unused model stays. Raises UsageError if below
    0."""

    ttl_s: float
    _users: dict[tuple[int, str], int] = field(default_factory=dict)
    _last_use_s: dict[tuple[int, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.ttl_s >= 0:
            raise UsageError(f"ttl_s={self.ttl_s} must be at least 0")

    def loaded(self, host: int, model: str) -> None:
        """Tells that an instance on `host` has loaded the model."""
        self._users[host, model] = self._users.get((host, model), 0) + 1

    def reclaimed(self, host: int, model: str, now_s: float) -> None:
        """Tells that an instance of the model on `host` is gone."""
        self._users[host, model] -= 1
        self._last_use_s[host, model] = now_s

    def failed(self, host: int) -> None:
        """Tells that a host is lost, with all models in its memory."""
        for held in (self._users, self._last_use_s):
            for key in [key for key in held if key[0] == host]:
                del held[key]

    def has(self, host: int, model: str, now_s: float) -> bool:
        """Whether the host's memory has the model."""
        if self._users.get((host, model), 0) > 0:
            return True
        return now_s - self._last_use_s.get((host, model), -inf) < self.ttl_s

    def copies(self, model: str, now_s: float) -> int:
        """How many hosts hold the model (Fig. 19)."""
        hosts = {host for host, held in self._users if held == model}
        return sum(self.has(host, model, now_s) for host in hosts)
