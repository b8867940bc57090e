"""One model on a mesh: its requests, the batches they make, and its quota of the KV memory."""

from __future__ import annotations

from collections import deque

from harness.clock import Event, Loop
from harness.device.instance import Instance
from harness.request import Batch, Request
from systems.baselines.vllm import Limits, schedule_iteration
from systems.muxserve.adbs import Quota


class Resident:
    """The quota is the instance's pool of KV blocks, which grows and shrinks."""

    def __init__(self, instance: Instance, decode_share: float, loop: Loop, limits: Limits) -> None:
        self.instance = instance
        self.decode_share = decode_share  # of the multiprocessors
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.job_share = 0.0  # of the job it runs now; 0: none
        self.stop = Event(loop)  # ends a decode job at its next step
        self.owed_blocks = 0  # to give away as soon as they are free
        self.wanted_blocks = 0  # to have as soon as others have given them
        self.block_bytes = instance.kv.block_tokens * instance.model.held_kv_bytes_per_token
        self._limits, self._loop = limits, loop
        self._used_block_s, self._since_s = 0.0, 0.0

    @property
    def idle(self) -> bool:
        return self.job_share == 0.0

    @property
    def admissible(self) -> bool:
        """Whether the next waiting prompt has a seat and room."""
        if not self.waiting or len(self.running) >= self._limits.max_num_seqs:
            return False
        kv = self.instance.kv
        return kv.blocks_for(self.waiting[0].known_tokens) <= kv.free_blocks

    def prefill(self) -> Batch:
        """Whole prompts, first come first served, while seats, blocks and the token budget last;
        one that is longer than the budget goes alone."""
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
        """One token of every running request; where blocks lack, the last are preempted."""
        preempted: deque[Request] = deque()
        batch = schedule_iteration(
            self.running, preempted, self.instance.kv, self._limits, self.instance.evict
        )
        self.waiting.extendleft(reversed(preempted))
        return batch

    def job_over(self) -> None:
        self.job_share = 0.0
        self.running = [request for request in self.running if not request.finished]
        self._account()

    def quota(self, window_s: float) -> Quota:
        """Over the window that ends now; the next one begins."""
        self._account()
        mean, self._used_block_s = self._used_block_s / window_s, 0.0
        starved = bool(self.waiting) and not self.running and not self.admissible
        return Quota(self.instance.kv.num_blocks, self.block_bytes, mean, starved)

    def give(self) -> int:
        """Bytes of free blocks that it owed. Not beside a job, which may count on them."""
        if not self.idle:
            return 0
        kv = self.instance.kv
        blocks = min(self.owed_blocks, kv.free_blocks, kv.num_blocks - 1)
        kv.resize(kv.num_blocks - blocks)
        self.owed_blocks -= blocks
        return blocks * self.block_bytes

    def take(self, spare_bytes: int) -> int:
        """The bytes that it takes of what is to be had."""
        blocks = min(self.wanted_blocks, spare_bytes // self.block_bytes)
        self.instance.kv.resize(self.instance.kv.num_blocks + blocks)
        self.wanted_blocks -= blocks
        return blocks * self.block_bytes

    def _account(self) -> None:
        """Adds up used blocks over time, a job's blocks as they are at its end."""
        now_s = self._loop.now
        self._used_block_s += self.instance.kv.used_blocks * (now_s - self._since_s)
        self._since_s = now_s
