"""Prefill caching (section 8): a ledger of the KV of long common prefixes.

Callers choose the ids of prefixes. Prefixes are AQUA TENSORS in the same swap space as preempted
prompts. They are kept until dropped: the paper names no rule of eviction, and uses one prefix.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from systems.aqua.tensors import Place, Tensors


@dataclass(slots=True, frozen=True)
class PrefixTensor:
    """The name of a cached prefix's tensor; it differs from all names of requests' tensors."""

    prefix_id: Hashable


class PrefixCache:
    """Which prefixes are cached, and how long they are."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._tokens: dict[Hashable, int] = {}  # {prefix id: tokens}

    def store(
        self,
        prefix_id: Hashable,
        num_tokens: int,
        shard_bytes: Sequence[int],
        rooms: Sequence[Mapping[str, int]],
    ) -> tuple[Place, ...] | None:
        """Allocates room for the KV of a prefix of `num_tokens`; returns where to copy it.

        None if the swap space is full. shard_bytes, rooms: as in `Tensors.allocate`. Raises
        ValueError if the id is in use, or if there are no tokens.
        """
        if num_tokens < 1:
            raise ValueError(f"prefix {prefix_id} has {num_tokens} tokens; valid: at least 1")
        if prefix_id in self._tokens:
            raise ValueError(f"prefix {prefix_id} is cached already: drop it first")
        places = self._tensors.allocate(PrefixTensor(prefix_id), shard_bytes, rooms)
        if places is not None:
            self._tokens[prefix_id] = num_tokens
        return places

    def reusable_tokens(self, prefix_id: Hashable, prompt_tokens: int) -> int:
        """How many of a prompt's tokens need not be computed.

        0 if the prefix is not cached, or was lost with a lease. A prompt's last token is always
        computed, for its output. Raises ValueError if the prefix is longer than the prompt.
        """
        if PrefixTensor(prefix_id) not in self._tensors:
            self._tokens.pop(prefix_id, None)
            return 0
        tokens = self._tokens[prefix_id]
        if tokens > prompt_tokens:
            raise ValueError(
                f"prefix {prefix_id} has {tokens} tokens and its prompt {prompt_tokens}; valid: "
                "at most the prompt's"
            )
        return min(tokens, prompt_tokens - 1)

    def tensor(self, prefix_id: Hashable) -> PrefixTensor:
        """The name of its tensor, for `Tensors.resolve`."""
        return PrefixTensor(prefix_id)

    def drop(self, prefix_id: Hashable) -> tuple[Place, ...]:
        """Forgets a prefix. Returns where its shards were; () if it was not cached."""
        self._tokens.pop(prefix_id, None)
        tensor = PrefixTensor(prefix_id)
        return self._tensors.free(tensor) if tensor in self._tensors else ()
