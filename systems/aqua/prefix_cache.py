"""Prefill caching (section 8): contexts of long common prefixes, by ids that callers choose.

They are AQUA TENSORS in the same swap space as preempted prompts. Kept until dropped: the paper
names no rule of eviction, and issues one prefix.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from systems.aqua.tensors import Place, Tensors


@dataclass(slots=True, frozen=True)
class PrefixTensor:
    """The name of a cached prefix's tensor; no request's is equal to it."""

    prefix_id: Hashable


class PrefixCache:
    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._tokens: dict[Hashable, int] = {}  # by id

    def store(
        self,
        prefix_id: Hashable,
        num_tokens: int,
        shard_bytes: Sequence[int],
        rooms: Sequence[Mapping[str, int]],
    ) -> tuple[Place, ...] | None:
        """Where the KV of the first `num_tokens` of prompts with this id is to be copied. None:
        the swap space is full. Raises ValueError for an id in use: its KV would be another's."""
        if num_tokens < 1:
            raise ValueError(f"prefix {prefix_id} has {num_tokens} tokens; valid: at least 1")
        if prefix_id in self._tokens:
            raise ValueError(f"prefix {prefix_id} is cached already: drop it first")
        places = self._tensors.allocate(PrefixTensor(prefix_id), shard_bytes, rooms)
        if places is not None:
            self._tokens[prefix_id] = num_tokens
        return places

    def reusable_tokens(self, prefix_id: Hashable, prompt_tokens: int) -> int:
        """How many of a prompt's tokens need not be computed; 0: nothing is cached, or it was lost
        with a lease. A prompt's last token is always computed, for its output. Raises ValueError
        for a prefix longer than its prompt."""
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
        """For `Tensors.resolve`: where it is now."""
        return PrefixTensor(prefix_id)

    def drop(self, prefix_id: Hashable) -> tuple[Place, ...]:
        """Where its shards were; () if it was not cached."""
        self._tokens.pop(prefix_id, None)
        tensor = PrefixTensor(prefix_id)
        return self._tensors.free(tensor) if tensor in self._tensors else ()
