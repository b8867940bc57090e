"""One model on a mesh: its requests, its batches, and its quota of the KV memory."""

from __future__ import annotations

from collections import deque

from harness.clock import Event, Loop
from harness.device.instance import Instance
from harness.request import Batch, Request
from systems.muxserve.adbs import Quota
from systems.serving.iteration import Limits, schedule_iteration


class Resident:
    """A model with its instance. Its quota is the instance's block pool, which is resized.

    decode_share: of the multiprocessors.
    """

    def __init__(self, instance: Instance, decode_share: float, loop: Loop, limits: Limits) -> None:
        self.instance = instance
        self.decode_share = decode_share  # of the multiprocessors
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.job_share = 0.0  # of the job that runs now; 0: no job
        self.stop = Event(loop)  # ends a decode job at its next step
        self.owed_blocks = 0  # to be given away as soon as they are free
        self.wanted_blocks = 0  # to be taken as soon as other models have given them
        self.block_bytes = instance.kv.block_tokens * instance.model.held_kv_bytes_per_token
        self.lost: str | None = None  # why nothing can run any more
        self._limits, self._loop = limits, loop
        self._used_block_s, self._since_s = 0.0, 0.0

    @property
    def idle(self) -> bool:
        return self.job_share == 0.0

    @property
    def admissible(self) -> bool:
        """Whether the next waiting prompt has a seat in the batch and blocks for its KV."""
        if not self.waiting or len(self.running) >= self._limits.max_num_seqs:
            return False
        kv = self.instance.kv
        return kv.blocks_for(self.waiting[0].known_tokens) <= kv.free_blocks

    def prefill(self) -> Batch:
        """A batch of whole prompts, FCFS, while seats, blocks and tokens last. A prompt that is
        longer than the budget is a batch of its own."""
        batch, kv = Batch(), self.instance.kv
        while self.admissible:
            tokens = self.waiting[0].known_tokens
            if batch.chunks and batch.num_tokens + tokens > self._limits.max_num_batched_tokens:
                break
            request = self.waiting.popleft()
            kv.grow(request, tokens)
            batch.chunks.append((request, tokens))
            self.running.append(request)
        return batch

    def decode(self) -> Batch:
        """One token of every running request. If blocks run out, the last requests are preempted
        and wait at the head of the queue."""
        preempted: deque[Request] = deque()
        batch = schedule_iteration(
            self.running, preempted, self.instance.kv, self._limits, self.instance.evict
        )
        self.waiting.extendleft(reversed(preempted))
        return batch

    def job_over(self) -> None:
        """Tells that the job has ended; forgets requests that have finished."""
        self.job_share = 0.0
        self.running = [request for request in self.running if not request.finished]
        self._account()

    def give_up(self, why: str) -> list[Request]:
        """All requests, which leave: the instance is lost. Its blocks are free; other models take
        them as they take those of a model without load."""
        self.lost = why
        left = [request for request in self.running if not request.finished] + [*self.waiting]
        for request in self.running:
            self.instance.kv.release(request)
        self.running.clear()
        self.waiting.clear()
        return left

    def quota(self, window_s: float) -> Quota:
        """The quota and its use in the window that ends now. A new window begins."""
        self._account()
        mean, self._used_block_s = self._used_block_s / window_s, 0.0
        starved = bool(self.waiting) and not self.running and not self.admissible
        return Quota(self.instance.kv.num_blocks, self.block_bytes, mean, starved)

    def give(self) -> int:
        """Gives free blocks that it owes; returns their bytes. During a job it gives none, since
        the job may need them."""
        if not self.idle:
            return 0
        kv = self.instance.kv
        blocks = min(self.owed_blocks, kv.free_blocks, kv.num_blocks - 1)
        kv.resize(kv.num_blocks - blocks)
        self.owed_blocks -= blocks
        return blocks * self.block_bytes

    def take(self, spare_bytes: int) -> int:
        """Takes wanted blocks from `spare_bytes`; returns the bytes taken."""
        blocks = min(self.wanted_blocks, spare_bytes // self.block_bytes)
        self.instance.kv.resize(self.instance.kv.num_blocks + blocks)
        self.wanted_blocks -= blocks
        return blocks * self.block_bytes

    def _account(self) -> None:
        """Adds used blocks × seconds since the last call. A job's blocks are those at its end."""
        now_s = self._loop.now
        self._used_block_s += self.instance.kv.used_blocks * (now_s - self._since_s)
        self._since_s = now_s
