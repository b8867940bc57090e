"""What is paged at a slice's start (section 7), and when fairness gives way to FCFS. Pure.

"Paging out prompts that are not a part of the next batch and paging in prompts that were not on
the GPU", partial prefills too. The paper copies; its public code copies the blocks alone that were
written since the last time, and keeps what it paged in.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from systems.aqua.prompt import Prompt, Slice

COPIES = ("gathered", "by_block")
FALLBACKS = ("never", "any", "all")  # fcfs_when_in_dram


@dataclass(slots=True, frozen=True)
class Paging:
    """Page-outs come first: they make the room. In order of arrival."""

    out: tuple[Hashable, ...]
    into: tuple[Hashable, ...]


def paging(prompts: Sequence[Prompt], chosen: Slice) -> Paging:
    """What moves so that exactly the members of `chosen` are on the device. A prompt of which
    nothing is computed has nothing to be moved."""
    members = set(chosen.members)
    moved = [p for p in sorted(prompts, key=lambda p: p.arrival) if p.computed_tokens > 0]
    return Paging(
        tuple(p.request_id for p in moved if p.resident and p.request_id not in members),
        tuple(p.request_id for p in moved if not p.resident and p.request_id in members),
    )


def blocks_out(computed_tokens: int, saved_tokens: int, block_tokens: int) -> range:
    """The blocks of a prompt that were written since an earlier page-out, whose copy has
    `saved_tokens`; 0: there is none. The block that they ended in was written again, if any token
    came."""
    end = -(-computed_tokens // block_tokens)
    first = end if saved_tokens == computed_tokens else saved_tokens // block_tokens
    return range(first, end)


def falls_back(in_dram: Sequence[bool], rule: str) -> bool:
    """Whether to schedule FCFS because tensors lie in DRAM (section 7, last but one paragraph).

    in_dram: of AQUA TENSORS of paged prompts, or of the places that they lie in. The paper does not
    say whether one tensor suffices: `rule` is any or all, or never (vLLM + CFS over DRAM, the
    baseline)."""
    if rule == "never" or not in_dram:
        return False
    return any(in_dram) if rule == "any" else all(in_dram)
