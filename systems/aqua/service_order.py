"""The unfinished prompts of a device in the order in which section 7 serves them. Pure.

A prompt changes only where it arrives, runs, is paged or is evicted, and then it is put anew. So a
choice of the next slice looks at those that have changed and those that it takes, however many
wait. For a snapshot of prompts that change by themselves, a new order is made.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable

from systems.aqua.prompt import Limits, Prompt

# Its service, its arrival, the blocks that are reserved for it, itself. No two prompts arrive at
# once, so that the first two sort.
Place = tuple[int, int, int, Prompt]


def service(prompt: Prompt) -> int:
    """The tokens that the prompt has had: of a decode those generated, else those computed; what
    came from a cached prefix is no service."""
    if prompt.decoding:
        return prompt.generated_tokens
    return max(0, prompt.computed_tokens - prompt.cached_tokens)


class ServiceOrder:
    """All prompts, with those that wait for their prefill and those that decode."""

    def __init__(self, limits: Limits, prompts: Iterable[Prompt] = ()) -> None:
        self.limits = limits
        self.prompts: dict[Hashable, Prompt] = {}  # by id, in order of arrival
        self.resident: dict[Hashable, Prompt] = {}  # those on the device
        self._places: dict[Hashable, Place] = {}  # as they are now
        self._reserved_blocks = 0  # of all
        self._lines: list[list[Place]] = [[], []]  # prefills, decodes; as they were sorted last
        self._moved: dict[Hashable, Place | None] = {}  # where it was; None: it is new
        for prompt in sorted(prompts, key=lambda p: p.arrival):
            self.put(prompt)

    @property
    def contended(self) -> bool:
        """Whether not all prompts fit on the device."""
        limits = self.limits
        return self._reserved_blocks > limits.num_blocks or len(self.prompts) > limits.max_prompts

    @property
    def prefills(self) -> list[Place]:
        """The least served first, among equals the earlier arrival."""
        self._sort()
        return self._lines[False]

    @property
    def decodes(self) -> list[Place]:
        """In the same order."""
        self._sort()
        return self._lines[True]

    def put(self, prompt: Prompt) -> None:
        """From now on the prompt is as it is here; a new one has arrived after all others."""
        name, blocks = prompt.request_id, self.limits.reserved_blocks(prompt)
        before = self._places.get(name)
        self._reserved_blocks += blocks if before is None else blocks - before[2]
        self._moved.setdefault(name, before)
        self._places[name] = service(prompt), prompt.arrival, blocks, prompt
        self.prompts[name] = prompt
        if prompt.resident:
            self.resident[name] = prompt
        else:
            self.resident.pop(name, None)

    def remove(self, request_id: Hashable) -> None:
        before = self._places.pop(request_id)
        self._reserved_blocks -= before[2]
        self._moved.setdefault(request_id, before)
        del self.prompts[request_id]
        self.resident.pop(request_id, None)

    def _sort(self) -> None:
        """Brings those that have changed to their places in the two lines."""
        for name, before in self._moved.items():
            if before is not None:
                line = self._lines[before[3].decoding]
                del line[bisect_left(line, before)]
            now = self._places.get(name)
            if now is not None:
                insort(self._lines[now[3].decoding], now)
        self._moved.clear()
