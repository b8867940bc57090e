"""Serves a group: one instance, or a pipeline with as many micro-batches as stages (§4.2, §4.3).

The iterations of each micro-batch are vLLM's (`schedule_iteration`), over the memory that all
micro-batches share. New requests enter at the first stage. If memory runs out, the newest request
of a micro-batch is preempted by recompute. A micro-batch with others beside it takes few steps at
once, since a run of decodes holds the blocks of all its steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from harness.clock import Loop, Task
from harness.elastic.instance import ElasticInstance
from harness.elastic.pipeline import Pipeline
from harness.errors import InstanceLost
from harness.request import Batch, Request
from systems.kunserve.artifact import balanced_tokens
from systems.kunserve.dispatcher import Target
from systems.kunserve.group import Group
from systems.serving.iteration import Limits
from systems.serving.load import Load
from systems.serving.replica import Replica
from systems.serving.waiting import Waiting


class MicroBatch(Replica):
    """One micro-batch: a replica's loop over the queue and the memory that all of a group share."""

    def __init__(self, server: Server, number: int) -> None:
        super().__init__(server.executor, server.executor.kv, server.loop, replace(server.limits))
        self.name = f"{server.name}/{number}"
        self.waiting = server.waiting
        self._server = server

    def schedule(self, queue: deque[Request]) -> Batch:
        """Lets requests go that may leave, and pauses those whose last block is being sent to
        another server. Seats are limited, so that waiting requests spread evenly."""
        server, waiting = self._server, self._server.waiting
        if server.leaving is not None:
            self.running = [r for r in self.running if not server.leaving(r)]
            kept = [request for request in waiting if not server.leaving(request)]
            waiting.clear()
            waiting.extend(kept)
        if server.last_block is not None:
            gone = [r for r in self.running if server.last_block(r)]
            server.paused += gone
            self.running = [r for r in self.running if r not in gone]
        share = -(-(server.num_running + len(waiting)) // len(server.batches))
        seats = max(1, min(server.limits.max_num_seqs, max(share, len(self.running))))
        self.limits.max_num_seqs = seats
        self.limits.max_num_batched_tokens = server.iteration_tokens()
        batch = super().schedule(queue)
        server.sort_preempted()
        self.max_steps = server.max_steps(batch.decodes)
        idle = not batch.chunks and not batch.decodes
        if idle and server.leaving is not None and waiting:
            self.wake.set()  # requests that were preempted leave
        return batch

    def preempt(self, request: Request) -> None:
        self.executor.evict(request)
        self._server.num_preempted += 1
        self._server.wake(idle=True)

    def may_stop(self) -> bool:
        return True

    def executed(self, steps: int, ended: int) -> None:
        if ended:
            self._server.wake(idle=True)


class Server:
    """The server of one group.

    executor: the instance, or the pipeline. steps_beside: decode steps at most while memory is
    shared with others. balanced: a pipeline's micro-batches share the waiting prompts' tokens (the
    public code). last_block: whether a request's last block is on a link to another server; None:
    never.
    """

    def __init__(
        self,
        group: Group,
        executor: ElasticInstance | Pipeline,
        loop: Loop,
        *,
        limits: Limits,
        steps_beside: int,
        balanced: bool = False,
        last_block: Callable[[Request], bool] | None = None,
    ) -> None:
        self.group, self.executor = group, executor
        self.name = executor.name
        self.waiting = Waiting(executor.kv.block_tokens)
        self.paused: list[Request] = []  # hold KV, and run once it has been exchanged
        self.moving: set[int] = set()  # ids of requests whose KV is on a link now
        self.held_back: list[Request] = []  # preempted while their KV was on a link
        self.shared = len(group) > 1  # more than one micro-batch uses the members' memory
        self.leaving: Callable[[Request], bool] | None = None  # takes a request if it may leave
        self.num_preempted = 0  # in this iteration: the first of `waiting`
        self.loop, self.limits, self.last_block = loop, limits, last_block
        self._balanced = balanced and len(group) > 1
        self._steps_beside = steps_beside
        self.batches = [MicroBatch(self, number) for number in range(len(group))]
        self._tasks: list[Task] = []

    @property
    def running(self) -> list[Request]:
        return [request for batch in self.batches for request in batch.running]

    @property
    def num_running(self) -> int:
        return sum([len(batch.running) for batch in self.batches])

    @property
    def empty(self) -> bool:
        return not (self.running or self.paused or self.held_back or self.waiting)

    def load(self) -> Load:
        """Micro-batches compute `batch_tokens` at once, decodes included."""
        waiting, held_back = self.waiting, self.held_back
        used_blocks, lacking_tokens = self._holding()
        queued_blocks = waiting.blocks
        for request in held_back:
            queued_blocks += waiting.blocks_of(request)
            lacking_tokens += request.known_tokens
        first = held_back or waiting
        return Load(
            self.name, self.executor.kv.num_blocks, used_blocks,
            self.num_running + len(self.paused), len(held_back) + len(waiting), queued_blocks,
            waiting.blocks_of(first[0]) if first else 0, len(self.group),
            lacking_tokens + waiting.tokens, self.limits.max_num_batched_tokens * len(self.batches),
        )  # fmt: skip

    def _holding(self) -> tuple[int, int]:
        """Blocks that running and paused requests use, and tokens that prompts lack."""
        block_tokens, used_blocks, lacking_tokens = self.executor.kv.block_tokens, 0, 0
        for batch in self.batches:
            for request in batch.running:  # properties, written out: it is asked for often
                known = request.prompt_tokens + request.generated_tokens
                used_blocks += -(-known // block_tokens)
                lacking = known - request.computed_tokens
                if lacking != 1 or not request.generated_tokens:  # it does not decode
                    lacking_tokens += lacking
        for request in self.paused:
            used_blocks += self.waiting.blocks_of(request)
        return used_blocks, lacking_tokens

    def give_queue(self) -> Target:
        """Gives the queue away, with what there is room for here (§4.3)."""
        kv, queue = self.executor.kv, list(self.waiting)
        seats = self.limits.max_num_seqs * len(self.batches) - self.num_running
        self.waiting.clear()
        load = self.load()
        return Target(
            seats, kv.free_blocks * kv.block_tokens, load.batch_tokens - load.lacking_tokens, queue
        )

    def start(self) -> None:
        """Starts a task for each micro-batch."""
        for batch in self.batches:
            self._tasks.append(self.loop.spawn(self._serve(batch), name=batch.name))

    def submit(self, request: Request) -> None:
        """Queues the request behind all waiting requests of its priority (§4.3)."""
        self.waiting.put(request)
        if len(self.waiting) == 1 or any(batch.idle for batch in self.batches):
            self.wake()

    def join(self, requests: Sequence[Request]) -> None:
        """Has `requests` run, spread over the micro-batches. Their KV is here."""
        lightest = sorted(self.batches, key=lambda batch: len(batch.running))
        for batch, dealt in zip(lightest, deal(requests, len(self.batches)), strict=True):
            batch.running += dealt
            batch.running.sort(key=lambda r: (r.arrival_s, r.request_id))
        self.wake()

    def wake(self, *, idle: bool = False) -> None:
        """Has the micro-batches schedule again; idle: only those that have nothing to run."""
        for batch in self.batches:
            if batch.idle or not idle:
                batch.wake.set()

    def moved(self, request: Request) -> None:
        """Tells that a move of the request's KV has ended."""
        if request in self.held_back and request.request_id not in self.moving:
            self.held_back.remove(request)
            self.waiting.put_first(request)
        self.wake(idle=self.leaving is None)

    def stop(self) -> None:
        """Runs no further iteration and lets no request leave. Servers that hand requests to each
        other must all stop before one of them is closed."""
        for batch in self.batches:
            batch.closing = True
        self.wake()

    async def close(self) -> tuple[list[Request], list[Request]]:
        """Ends at the next step boundary. Returns (requests with KV, waiting requests). No KV of
        the server may be on a link."""
        self.stop()
        for task in self._tasks:
            await self.loop.wait(task.finished)
        running = self.running + self.paused
        waiting = [*self.held_back, *self.waiting]
        for batch in self.batches:
            batch.running = []
        self.paused, self.held_back = [], []
        self.waiting.clear()
        return [request for request in running if not request.finished], waiting

    def give_up(self, request: Request) -> None:
        """Removes a request that now runs elsewhere."""
        for batch in self.batches:
            if request in batch.running:
                batch.running.remove(request)
        if request in self.paused:
            self.paused.remove(request)

    def resume(self, request: Request) -> None:
        """Lets a request run again that was paused for its last block; the block did not move."""
        if request in self.paused:
            self.paused.remove(request)
            self.join([request])

    def preempt(self, request: Request) -> None:
        """Frees the KV of a paused request, which waits again."""
        self.executor.evict(request)
        self.paused.remove(request)
        self.waiting.put_first(request)

    async def _serve(self, batch: MicroBatch) -> None:
        try:
            await batch.serve()
        except InstanceLost:
            return  # the system hears of the death and closes this server

    def sort_preempted(self) -> None:
        """Sorts preempted requests into the queue by priority. A request whose KV is on a link is
        set aside until the move has ended."""
        preempted = [self.waiting.popleft() for _ in range(self.num_preempted)]
        self.num_preempted = 0
        for request in reversed(preempted):
            if request.request_id not in self.moving:
                self.waiting.put_first(request)
        moving = [request for request in preempted if request.request_id in self.moving]
        self.held_back += sorted(moving, key=lambda request: -request.priority)

    def iteration_tokens(self) -> int:
        """Tokens of the next iteration."""
        if not self._balanced:
            return self.limits.max_num_batched_tokens
        return balanced_tokens(self.limits, self.waiting.tokens, len(self.batches))

    def max_steps(self, decodes: Sequence[Request]) -> int | None:
        """Decode steps of the next run; None: no limit. If memory is short, as many as fit into the
        blocks that the requests hold."""
        kv = self.executor.kv
        if not self.shared:
            return None
        if kv.free_blocks >= 2 * self.num_running:
            return self._steps_beside
        inside = [kv.block_tokens - r.computed_tokens % kv.block_tokens for r in decodes]
        return min([self._steps_beside, *inside])


def deal(requests: Iterable[Request], num: int) -> list[list[Request]]:
    """Distributes ongoing requests over `num` micro-batches when a group forms.

    Sizes differ by one at most. Contexts are evened out: in each round, the longest request goes to
    the micro-batch with the fewest tokens.
    """
    longest_first = sorted(requests, key=lambda r: (-r.computed_tokens, r.request_id))
    dealt: list[list[Request]] = [[] for _ in range(num)]
    tokens = [0] * num
    for first in range(0, len(longest_first), num):
        lightest = sorted(range(num), key=lambda k: (tokens[k], k))
        for k, request in zip(lightest, longest_first[first : first + num], strict=False):
            dealt[k].append(request)
            tokens[k] += request.computed_tokens
    return dealt
