"""variant=artifact: the policy of the simulation behind ServerlessLLM's curves in Aegaeon's paper.

Requests are queued as they arrive (`queues`), and workers run their queues (`worker`). Requests
that have waited too long are dropped at the next arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from harness.clock import Loop
from harness.cluster import Cluster
from harness.configuration.checks import positive
from harness.request import Request
from systems.serverlessllm.loading import ALL_LOST, Loader
from systems.serverlessllm.oracle import Oracle
from systems.serverlessllm.queues import assign, batches_of, join, shortest_first, tail_of
from systems.serverlessllm.worker import Worker


@dataclass(kw_only=True, slots=True)
class ArtifactConfig:
    """Raises ValueError unless the first three are above 0."""

    queue_slots: int  # QS: requests of one model in a row on one worker
    free_slots: int  # R: with fewer free slots than this in all, another worker is taken
    drop_after_s: float  # after a request's arrival, if it has no token by then
    load_bytes_per_s: float  # to each device
    model_bytes: dict[str, float]  # of the weights, by the architecture's name
    joins_shortest: bool  # a request without a slot joins the worker with the fewest requests
    sjf_by_phase: bool  # a batch with prompts counts with their prefill alone
    sjf_preempts: bool  # a shorter batch goes ahead of the running one, which loses its KV

    def __post_init__(self) -> None:
        positive(self, "artifact", "queue_slots", "free_slots", "drop_after_s")


class ArtifactScheduler:
    """order: fcfs (ServerlessLLM) or sjf (ServerlessLLM+)."""

    def __init__(
        self, config: ArtifactConfig, order: str, loader: Loader, *, loop: Loop, cluster: Cluster
    ) -> None:
        self._config, self._loop, self._cluster = config, loop, cluster
        self._oracle = Oracle(cluster.profile, cluster.models)
        self._place = self._join if order == "fcfs" else self._assign_and_sort
        self._workers = [Worker(instance, loader, loop, self._drop) for instance in cluster.pool]
        for worker, instance in zip(self._workers, cluster.pool, strict=True):
            instance.on_lost = partial(self._lost, worker)

    def submit(self, request: Request) -> None:
        self._doom()
        if self._workers:
            self._place(request)
        else:
            self._cluster.drop(request, ALL_LOST)

    def _lost(self, worker: Worker, leaving: set[int]) -> None:
        """The device has died: others compute its requests again."""
        self._workers.remove(worker)
        for request in worker.give_up():
            self.submit(request)

    async def serve(self) -> None:
        for worker in self._workers:
            self._loop.spawn(worker.serve(), name=worker.name)

    def _doom(self) -> None:
        """Has workers drop requests that have waited too long. A request in its prefill ends the
        prefill first."""
        latest_s = self._loop.now - self._config.drop_after_s
        for worker in self._workers:
            late = [r for r in worker.queue if not r.generated_tokens and r.arrival_s < latest_s]
            if late:
                worker.doom(late)

    def _drop(self, request: Request) -> None:
        self._cluster.drop(request, f"no token after {self._config.drop_after_s:g} s")

    def _join(self, request: Request) -> None:
        """ServerlessLLM: to the end of a queue."""
        tails = [tail_of(w.queue, w.model, w.settle()) for w in self._workers]
        config = self._config
        chosen = join(
            request.model, tails, config.queue_slots, config.free_slots,
            shortest=config.joins_shortest,
        )  # fmt: skip
        worker = self._workers[chosen]
        worker.put([*worker.queue, request])

    def _assign_and_sort(self, request: Request) -> None:
        """ServerlessLLM+: into a batch; then every queue is sorted."""
        config, slots = self._config, self._config.queue_slots
        for worker in self._workers:
            worker.settle()
        batches = [batches_of(worker.queue, slots) for worker in self._workers]
        assign(request, batches, slots)
        for worker, each in zip(self._workers, batches, strict=True):
            queue = shortest_first(
                each, self._oracle, by_phase=config.sjf_by_phase, preempts=config.sjf_preempts
            )
            if queue != worker.queue:
                worker.put(queue)
