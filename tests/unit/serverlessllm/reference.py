"""The baseline as Aegaeon's artifact simulates it, iteration by iteration and from its prose: what
the system, which is woken only when something changes, must reproduce to the token.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from harness.cost.profile import HardwareProfile
from harness.model_spec import ModelSpec
from harness.request import Request


@dataclass
class Job:
    request: Request
    progress: int = 0
    has_kv: bool = False
    dead: bool = False
    token_times_s: list[float] = field(default_factory=list)

    @property
    def context(self) -> int:
        return self.request.prompt_tokens + self.progress

    @property
    def over(self) -> bool:
        return self.dead or self.progress == self.request.output_tokens


@dataclass
class Worker:
    index: int
    queue: list[Job] = field(default_factory=list)
    model: str | None = None
    last_batch_s: float = 0.0
    asleep: bool = True
    batch: list[Job] = field(default_factory=list)


class Reference:
    def __init__(
        self,
        profile: HardwareProfile,
        models: dict[str, ModelSpec],
        load_s: dict[str, float],
        num_workers: int,
        *,
        sjf: bool,
    ) -> None:
        self.profile, self.models, self.load_s, self.sjf = profile, models, load_s, sjf
        self.workers = [Worker(i) for i in range(num_workers)]
        self.now, self.count = 0.0, 0
        self.heap: list[tuple[float, int, Worker | Job]] = []

    def play(self, requests: list[Request]) -> list[Job]:
        jobs = [Job(request) for request in requests]
        for job in jobs:
            self.at(job.request.arrival_s, job)
        while self.heap:
            self.now, _, what = heapq.heappop(self.heap)
            if isinstance(what, Job):
                self.arrive(what)
            else:
                self.end(what)
                self.begin(what)
        return jobs

    def at(self, time_s: float, what: Worker | Job) -> None:
        self.count += 1
        heapq.heappush(self.heap, (time_s, self.count, what))

    def arrive(self, new: Job) -> None:
        for worker in self.workers:
            for job in worker.queue:
                if job.progress == 0 and self.now - job.request.arrival_s > 15:
                    job.dead = True
        if self.sjf:
            self.sort_in(new)
        else:
            self.append(new)
        for worker in self.workers:
            if worker.asleep and worker.queue:
                worker.asleep = False
                self.at(self.now, worker)

    def append(self, new: Job) -> None:
        tails = []
        for worker in self.workers:
            model = worker.queue[-1].request.model if worker.queue else worker.model
            run = 0
            for job in reversed(worker.queue):
                if job.request.model != model:
                    break
                run += 1
            tails.append((model, run))
        own = [w for w in self.workers if tails[w.index][0] == new.request.model]
        if sum(max(0, 4 - tails[w.index][1]) for w in own) < 1:
            fresh = [w for w in self.workers if tails[w.index][0] is None]
            others = fresh or sorted(
                (w for w in self.workers if w not in own), key=lambda w: w.last_batch_s
            )
            if others:
                others[0].queue.append(new)
                return
        min(own, key=lambda w: tails[w.index][1]).queue.append(new)

    def sort_in(self, new: Job) -> None:
        plans = []
        for worker in self.workers:
            plan: list[list[Job]] = []
            for job in worker.queue:
                home = [b for b in plan if self.joins(job, b)]
                if home:
                    home[0].append(job)
                else:
                    plan.append([job])
            plans.append(plan)
        homes = [b for plan in plans for b in plan if self.joins(new, b)]
        if homes:
            homes[0].append(new)
        else:
            min(plans, key=len).append([new])
        for worker, plan in zip(self.workers, plans, strict=True):
            worker.queue = [job for batch in sorted(plan, key=self.left_s) for job in batch]

    def joins(self, job: Job, batch: list[Job]) -> bool:
        return batch[0].request.model == job.request.model and len(batch) < 4

    def left_s(self, batch: list[Job]) -> float:
        spec, first = self.models[batch[0].request.model], batch[0]
        pending = [job for job in batch if not job.has_kv]
        if pending:
            return self.profile.prefill_s(spec, sum(j.request.prompt_tokens for j in pending))
        whole = first.request.prompt_tokens + first.request.output_tokens
        step_s = self.profile.decode_step_s(spec, 1, (first.context + whole) // 2)
        return step_s * (whole - first.context)

    def begin(self, worker: Worker) -> None:
        worker.queue = [job for job in worker.queue if not job.over]
        if not worker.queue:
            worker.asleep = True
            return
        model = worker.queue[0].request.model
        if model != worker.model:
            worker.model = model
            for job in worker.queue:
                job.has_kv = False
            self.at(self.now + self.load_s[model], worker)
            return
        front = []
        for job in worker.queue:
            if job.request.model != model:
                break
            front.append(job)
        worker.batch = [job for job in front if not job.has_kv]
        if worker.batch:
            step_s = self.prefill_s(model, worker.batch)
        else:
            worker.batch = front
            context = sum(job.context for job in front)
            step_s = self.profile.decode_step_s(self.models[model], len(front), context)
        self.at(self.now + step_s, worker)

    def prefill_s(self, model: str, batch: list[Job]) -> float:
        cost = self.profile._cost(self.models[model])
        return cost.mixed_step([(0, job.context) for job in batch], 0, 0)

    def end(self, worker: Worker) -> None:
        if worker.batch:
            worker.last_batch_s = self.now
        for job in worker.batch:
            if not job.dead:
                job.progress += 1
                job.has_kv = True
                job.token_times_s.append(self.now)
        worker.batch = []
