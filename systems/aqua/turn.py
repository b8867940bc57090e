"""The slice that has the device, and what has happened since it was chosen. Pure.

One interface for both variants' schedulers: section 7's and the public code's.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from systems.aqua import artifact_scheduler, fair_scheduler
from systems.aqua.fair_scheduler import Since
from systems.aqua.prompt import Limits, Prompt, Slice
from systems.aqua.service_order import ServiceOrder

NOBODY = Slice((), (), fair=False)


@dataclass(slots=True)
class Turn:
    """The current slice."""

    limits: Limits
    artifact: bool  # slices are the public code's
    chosen: Slice = NOBODY
    iterations: int = 0  # since the last choice; artifact: since the last fair one
    completed: bool = False
    prefilled: bool = False
    arrived: bool = False

    def due(self, order: ServiceOrder) -> bool:
        """Whether to choose anew at this iteration boundary."""
        if self.artifact:
            prompts = list(order.prompts.values())
            return artifact_scheduler.due(self.iterations, self.chosen, prompts, self.limits)
        since = Since(self.iterations, self.completed, self.prefilled, self.arrived)
        return fair_scheduler.due(since, self.chosen, order)

    def choose(self, order: ServiceOrder, *, fcfs: bool) -> Slice:
        """Begins a slice. fcfs: paged-out KV is in DRAM (only the paper's variant uses it)."""
        if self.artifact:
            chosen = artifact_scheduler.choose(list(order.prompts.values()), self.limits)
        else:
            chosen = fair_scheduler.choose(order, fcfs=fcfs)
        return self._begin(chosen)

    def stay(self, order: ServiceOrder) -> Slice:
        """Begins a slice in which who is on the device stays, as its KV would have no room."""
        if self.artifact:
            prompts = list(order.prompts.values())
            return self._begin(artifact_scheduler.in_order_of_arrival(prompts, self.limits))
        return self._begin(fair_scheduler.choose(order, fcfs=True))

    def _begin(self, chosen: Slice) -> Slice:
        self.chosen = chosen
        if self.chosen.fair or not self.artifact:
            self.iterations = 0
        self.completed = self.prefilled = self.arrived = False
        return self.chosen

    def batch(self, prompts: dict[Hashable, Prompt]) -> list[tuple[Hashable, int]]:
        """(request id, tokens) of the next iteration."""
        if self.artifact:
            return artifact_scheduler.iteration(self.chosen, prompts)
        return fair_scheduler.iteration(self.chosen, prompts, self.limits.batch_tokens)

    @property
    def iterations_left(self) -> int:
        """Iterations left of the slice, at least 1."""
        return max(1, self.limits.slice_iterations - self.iterations)

    def ran(self, iterations: int, *, completed: bool, prefilled: bool) -> None:
        """Notes iterations that have run. completed: a request ended. prefilled: a prefill did."""
        self.iterations += iterations
        self.completed |= completed
        self.prefilled |= prefilled
