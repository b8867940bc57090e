"""Requests driven through AQUA's schedulers by counts alone, every rule checked at each iteration.

No time passes: an oracle for the schedulers' invariants, not a simulator.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from systems.aqua import artifact_scheduler, fair_scheduler
from systems.aqua.fair_scheduler import Since
from systems.aqua.paging import paging
from systems.aqua.prompt import Limits, Prompt, Slice
from systems.aqua.service_order import ServiceOrder

Batch = dict[int, int]


def changed(prompt: Prompt, **counts: Any) -> Prompt:
    """As `dataclasses.replace`."""
    names = (
        "request_id", "arrival", "known_tokens", "computed_tokens", "generated_tokens",
        "remaining_tokens", "resident", "cached_tokens",
    )  # fmt: skip
    return Prompt(**{name: getattr(prompt, name) for name in names} | counts)


@dataclass(frozen=True)
class Asked:
    iteration: int  # of its arrival
    prompt_tokens: int
    output_tokens: int


@dataclass
class Turns:
    asked: Sequence[Asked]
    limits: Limits
    artifact: bool = False
    fcfs: bool = False
    live: dict[Hashable, Prompt] = field(default_factory=dict)
    chosen: Slice = field(default_factory=lambda: Slice((), (), fair=False))
    batches: list[Batch] = field(default_factory=list)
    members: list[tuple[Hashable, ...]] = field(default_factory=list)
    finished: list[Hashable] = field(default_factory=list)
    pages: int = 0

    def run(self, at_most: int = 20_000) -> Turns:
        since = Since(0, completed=True, prefilled=False, arrived=True)
        iteration = 0
        while len(self.finished) < len(self.asked):
            assert iteration < at_most, "somebody starves"
            since = replace(since, arrived=since.arrived | self._arrive(iteration))
            if self.live:
                since = self._step(since)
            iteration += 1
        return self

    def _arrive(self, iteration: int) -> bool:
        new = [(i, each) for i, each in enumerate(self.asked) if each.iteration == iteration]
        for i, each in new:
            self.live[i] = Prompt(i, i, each.prompt_tokens, 0, 0, each.output_tokens)
        return bool(new)

    def _step(self, since: Since) -> Since:
        prompts, limits = list(self.live.values()), self.limits
        if self.artifact:
            due = artifact_scheduler.due(since.iterations, self.chosen, prompts, limits)
        else:
            due = fair_scheduler.due(since, self.chosen, ServiceOrder(limits, prompts))
        if due:
            self._choose(prompts)
            restart = self.chosen.fair or not self.artifact
            since = Since(0 if restart else since.iterations, False, False, False)
        if self.artifact:
            batch = artifact_scheduler.iteration(self.chosen, self.live)
        else:
            batch = fair_scheduler.iteration(self.chosen, self.live, limits.batch_tokens)
        return self._execute(batch, since)

    def _choose(self, prompts: list[Prompt]) -> None:
        if self.artifact:
            self.chosen = artifact_scheduler.choose(prompts, self.limits)
        else:
            order = ServiceOrder(self.limits, prompts)
            self.chosen = fair_scheduler.choose(order, fcfs=self.fcfs)
        members = self.chosen.members
        assert len(set(members)) == len(members), "doubled"
        assert set(members) <= set(self.live), "made up"
        assert members, "nobody runs"
        moves = paging(prompts, self.chosen)
        self.pages += len(moves.out) + len(moves.into)
        for each in self.live:
            self.live[each] = changed(self.live[each], resident=each in members)

    def _execute(self, batch: list[tuple[Hashable, int]], since: Since) -> Since:
        assert batch, "an idle iteration"
        assert len({each for each, _ in batch}) == len(batch), "doubled"
        total = sum(tokens for _, tokens in batch)
        assert total <= self.limits.batch_tokens or (self.artifact and len(batch) == 1), total
        completed = prefilled = False
        for each, tokens in batch:
            assert isinstance(each, int)
            prompt = self.live[each]
            assert prompt.resident
            computed = prompt.computed_tokens + tokens
            ends = computed == prompt.known_tokens
            if ends and prompt.remaining_tokens == 1:
                self.finished.append(each)
                del self.live[each]
                completed = True
                continue
            prefilled |= ends and not prompt.decoding
            self.live[each] = changed(
                prompt,
                computed_tokens=computed,
                known_tokens=prompt.known_tokens + ends,
                generated_tokens=prompt.generated_tokens + ends,
                remaining_tokens=prompt.remaining_tokens - ends,
            )
        held = [self.limits.blocks(p.computed_tokens) for p in self.live.values() if p.resident]
        assert sum(held) <= self.limits.num_blocks, "more than the memory"
        assert len(held) <= self.limits.max_prompts
        self.batches.append({each: tokens for each, tokens in batch if isinstance(each, int)})
        self.members.append(self.chosen.members)
        return Since(
            since.iterations + 1, since.completed | completed, since.prefilled | prefilled, False
        )
