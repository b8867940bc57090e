"""What AQUA's schedulers see of a request, and what they decide. Plain data for every engine."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields


class Prompt:
    """One unfinished request, on the device or paged out, as it was at the last `update`. Paging
    keeps computed tokens. `order` is the order of service that has it, which notes in
    `reserved_blocks`, `listed` and `moved` how it has counted it.
    """

    __slots__ = (
        "arrival", "cached_tokens", "computed_tokens", "decoding", "generated_tokens",
        "known_tokens", "lacking_tokens", "listed", "moved", "order", "remaining_tokens",
        "request_id", "reserved_blocks", "resident",
    )  # fmt: skip

    # Not a dataclass: their constructors stay Python.
    def __init__(
        self,
        request_id: Hashable,
        arrival: int,  # order of arrival: 0, 1, 2, …
        known_tokens: int,  # prompt and output so far
        computed_tokens: int,  # tokens whose KV exists, on the device or not
        generated_tokens: int,  # output so far
        remaining_tokens: int,  # output still to come, at least 1
        resident: bool = False,  # its KV is on the device
        cached_tokens: int = 0,  # computed tokens that came from a cached prefix
    ) -> None:
        self.request_id = request_id
        self.arrival = arrival
        self.order: object = None
        self.reserved_blocks, self.listed, self.moved = 0, -1, False
        self.update(
            known_tokens, computed_tokens, generated_tokens, remaining_tokens, resident,
            cached_tokens,
        )  # fmt: skip

    def update(
        self, known_tokens: int, computed_tokens: int, generated_tokens: int,
        remaining_tokens: int, resident: bool, cached_tokens: int,
    ) -> None:  # fmt: skip
        """Raises ValueError for impossible counts."""
        if not 0 <= computed_tokens < known_tokens or remaining_tokens < 1:
            raise ValueError(
                f"request {self.request_id}: computed_tokens={computed_tokens}, "
                f"known_tokens={known_tokens}, remaining_tokens={remaining_tokens}; "
                "valid: 0 to known_tokens - 1 computed, at least 1 remaining"
            )
        self.known_tokens, self.computed_tokens = known_tokens, computed_tokens
        self.generated_tokens, self.remaining_tokens = generated_tokens, remaining_tokens
        self.resident, self.cached_tokens = resident, cached_tokens
        # Known tokens whose KV is not computed.
        self.lacking_tokens = known_tokens - computed_tokens
        # Whether it lacks only the KV of its newest token: it takes one token an iteration.
        self.decoding = generated_tokens > 0 and self.lacking_tokens == 1

    @property
    def final_tokens(self) -> int:
        """The computed tokens at its end. The KV of the last token is never computed."""
        return self.known_tokens + self.remaining_tokens - 1


@dataclass(kw_only=True, slots=True, frozen=True)
class Limits:
    """What a device has for prompts. Raises ValueError if a value is below 1."""

    batch_tokens: int  # b of section 7: tokens of an iteration
    slice_iterations: int  # k of section 7
    num_blocks: int  # KV blocks that the device has for prompts now
    block_tokens: int
    max_prompts: int  # on the device at once: the engine's max_num_seqs

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name}={getattr(self, field.name)} must be at least 1")

    def blocks(self, tokens: int) -> int:
        """KV blocks that `tokens` take."""
        return -(-tokens // self.block_tokens)

    def reserved_blocks(self, prompt: Prompt) -> int:
        """The most blocks that `prompt` can hold at the end of a time slice.

        With these reserved, no slice runs out of memory. A decode grows by one token an iteration,
        a prefill by at most one batch.
        """
        k = self.slice_iterations
        if prompt.decoding:
            tokens = prompt.computed_tokens + k
        else:
            whole = prompt.known_tokens + k - 1  # the prefill takes an iteration or more
            tokens = min(whole, prompt.computed_tokens + k * self.batch_tokens)
        final = prompt.final_tokens
        return -(-(tokens if tokens < final else final) // self.block_tokens)


@dataclass(slots=True, frozen=True)
class Slice:
    """The requests that are on the device until the next choice."""

    prefills: tuple[Hashable, ...]  # ids, in the order in which they get tokens
    decodes: tuple[Hashable, ...]  # likewise
    fair: bool  # chosen by fairness, not in order of arrival

    @property
    def members(self) -> tuple[Hashable, ...]:
        """All ids."""
        return self.prefills + self.decodes
