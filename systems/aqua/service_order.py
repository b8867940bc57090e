"""The unfinished prompts of a device in the order in which section 7 serves them. Pure.

A prompt changes only where it arrives, runs, is paged or is evicted, and then it is put anew. So a
choice of the next slice looks at those that have changed and those that it takes, however many
wait; while all fit, none asks for the lines, and nobody is brought to a place. For a snapshot of
prompts that change by themselves, a new order is made.
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
        self.prefilling: dict[Hashable, Prompt] = {}  # those that do not decode
        self._reserved_blocks = 0  # of all
        self._lines: list[list[Place]] = [[], []]  # prefills, decodes; as they were sorted last
        self._lined: dict[Hashable, tuple[list[Place], Place]] = {}  # who stands where in these
        self._moved: dict[Hashable, None] = {}  # who has changed since, has come or is gone
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
        listed = 2 * prompt.resident + prompt.decoding
        if prompt.order is not self or prompt.listed != listed:
            prompt.listed = listed
            self._list(prompt)
        blocks = self.limits.reserved_blocks(prompt)
        self._reserved_blocks += blocks - prompt.reserved_blocks
        prompt.reserved_blocks = blocks
        if not prompt.moved:
            prompt.moved = True
            self._moved[prompt.request_id] = None

    def _list(self, prompt: Prompt) -> None:
        name = prompt.request_id
        known = self.prompts.get(name)
        if known is not prompt:
            if known is not None:
                self._reserved_blocks -= known.reserved_blocks
            prompt.reserved_blocks, prompt.moved = 0, False
            self.prompts[name] = prompt
        prompt.order = self
        for whether, those in (
            (prompt.resident, self.resident), (not prompt.decoding, self.prefilling),
        ):  # fmt: skip
            if whether:
                those[name] = prompt
            else:
                those.pop(name, None)

    def remove(self, request_id: Hashable) -> None:
        prompt = self.prompts.pop(request_id)
        prompt.order = None
        self._reserved_blocks -= prompt.reserved_blocks
        self.resident.pop(request_id, None)
        self.prefilling.pop(request_id, None)
        if request_id in self._lined:
            self._moved[request_id] = None
        else:
            self._moved.pop(request_id, None)

    def _sort(self) -> None:
        """Brings those that have changed to their places in the two lines."""
        for name in self._moved:
            if name in self._lined:
                line, before = self._lined.pop(name)
                del line[bisect_left(line, before)]
            prompt = self.prompts.get(name)
            if prompt is not None:
                prompt.moved = False
                line = self._lines[prompt.decoding]
                now = service(prompt), prompt.arrival, prompt.reserved_blocks, prompt
                insort(line, now)
                self._lined[name] = line, now
        self._moved.clear()
