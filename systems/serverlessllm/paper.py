"""variant=paper: ServerlessLLM's request-level auto-scaling over pooled devices.

A request waits for an instance of its model with room. If the model has too few instances, one
starts on the device with the least start-up latency. Only idle devices are taken, so scaling
happens at the end of requests and never before. An instance batches continuously.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from math import inf
from typing import NamedTuple

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.configuration.checks import at_least
from harness.pooled.instance import PooledInstance
from harness.request import Batch, Request
from systems.serverlessllm.loading import ALL_LOST, Loader
from systems.serverlessllm.oracle import Oracle
from systems.serving.iteration import Limits
from systems.serving.replica import Replica


@dataclass(kw_only=True, slots=True)
class PaperConfig:
    """Raises ValueError for values below 1, or times below 0."""

    concurrency: int  # requests of an instance at once; the target of the auto-scaler
    max_instances: int  # of one model
    interval_s: float  # between the starts of two instances of one model
    keep_alive_s: float  # the device of an instance is given away after being idle for this long
    max_num_batched_tokens: int  # of one iteration
    overtakes: bool  # a request joins a running instance though older ones of other models wait

    def __post_init__(self) -> None:
        at_least(self, 1, "paper", "concurrency", "max_instances", "max_num_batched_tokens")
        at_least(self, 0, "paper", "interval_s", "keep_alive_s")


class Server(Replica):
    """A device, and the instance on it if there is one.

    freed: takes the device when it may be free for others, as a request has ended, or a load.
    """

    def __init__(
        self, device: PooledInstance, loader: Loader, loop: Loop, limits: Limits,
        freed: Callable[[Server], None],
    ) -> None:  # fmt: skip
        super().__init__(device, device.kv(next(iter(device.models))), loop, limits)
        self.device = device
        self.model: str | None = None
        self.loading = self.forms = False
        self.fresh = False  # loaded, and has not been offered to the queue yet
        self.idle_since_s = -inf
        self._loader, self._freed = loader, freed

    @property
    def num_requests(self) -> int:
        return len(self.waiting) + len(self.running)

    @property
    def busy(self) -> bool:
        return self.loading or bool(self.running or self.waiting)

    def give_up(self) -> list[Request]:
        """All requests, which leave: the device is lost, with their KV."""
        requests = [*self.running, *self.waiting]
        for request in self.running:
            self.device.evict(request)
        self.running.clear()
        self.waiting.clear()
        return requests

    def start(self, model: str) -> None:
        """Starts an instance of `model`; it replaces the one that was there."""
        self.model, self.loading, self.forms = model, True, True
        self.kv = self.device.kv(model)
        self.wake.set()

    async def form(self) -> Batch:
        """Loads the model first. Later batches need no more than `schedule`."""
        assert self.model is not None
        await self._loader.load(self.device, self.model)
        self.loading, self.forms, self.fresh = False, False, True
        self._free()
        return self.schedule(self.waiting)

    def executed(self, steps: int, ended: int) -> None:
        if ended:
            self._free()

    def _free(self) -> None:
        self.idle_since_s = self.loop.now
        self._freed(self)


class Slot(NamedTuple):
    """A device as a place for a new instance."""

    free_s: float  # when it may be given away: after its keep-alive
    last_used_s: float  # when it last had a request
    load_s: float  # seconds to load the model onto this device


def desired_instances(num_requests: int, concurrency: int, max_instances: int) -> int:
    """How many instances serve all requests of a model, queued and running, at `concurrency` each;
    at most `max_instances`."""
    return min(-(-num_requests // concurrency), max_instances)


def cheapest(slots: Sequence[Slot], now_s: float) -> int | None:
    """The index of the slot with the least start-up latency: wait for the device + load.

    Among equals the least recently used. None if there is no slot.
    """

    def latency_s(i: int) -> tuple[float, float]:
        return max(slots[i].free_s - now_s, 0.0) + slots[i].load_s, slots[i].last_used_s

    return min(range(len(slots)), key=latency_s, default=None)


class PaperScheduler:
    """Dispatch and auto-scaling. order: fcfs, or sjf by the oracle's service times."""

    def __init__(
        self, config: PaperConfig, order: str, loader: Loader, *, loop: Loop, cluster: Cluster
    ) -> None:
        self._config, self._loader, self._loop = config, loader, loop
        self._drop = cluster.drop
        oracle = Oracle(cluster.profile, cluster.models)
        self._urgency: Callable[[Request], float] = (
            oracle.service_s if order == "sjf" else lambda request: request.arrival_s
        )
        limits = Limits(
            max_num_seqs=config.concurrency,
            max_num_batched_tokens=config.max_num_batched_tokens,
            enable_chunked_prefill=True,
            scheduler_reserve_full_isl=True,
        )
        self._changed = Event(loop)
        self._servers = [
            Server(instance, loader, loop, limits, self._freed) for instance in cluster.pool
        ]
        for server in self._servers:
            server.device.on_lost = partial(self._lost, server)
        self._fresh: list[Server] = []
        self._news: set[str] = set()  # models whose queue or instances have changed since a look
        self._instances: dict[str | None, list[Server]] = {}  # by model, ready or loading
        self._queued: dict[str, deque[Request]] = {name: deque() for name in cluster.models}
        self._started_s = dict.fromkeys(cluster.models, -inf)

    def submit(self, request: Request) -> None:
        queue, urgency = self._queued[request.model], self._urgency
        if not queue or urgency(queue[-1]) <= urgency(request):
            queue.append(request)
        else:
            insort(queue, request, key=urgency)
        self._news.add(request.model)
        self._changed.set()

    def _freed(self, server: Server) -> None:
        assert server.model is not None
        self._news.add(server.model)
        if server.fresh:
            self._fresh.append(server)
        # Else nobody can have the room: its model has no queue, and it is not free for another.
        wanted = self._queued[server.model] or not (server.busy and self._config.overtakes)
        if wanted or server.fresh:
            self._changed.set()

    def _lost(self, server: Server, leaving: set[int]) -> None:
        """The device has died: others compute its requests again."""
        self._servers.remove(server)
        self._news.update(self._queued)
        self._group()
        self._changed.set()
        for request in server.give_up():
            self.submit(request)

    async def serve(self) -> None:
        for server in self._servers:
            self._loop.spawn(server.serve(), name=server.name)
        while True:
            self._changed.clear()
            self._dispatch()
            await self._loop.wait(self._changed, until=self._scale())

    def _dispatch(self) -> None:
        """Queued requests go to the instance of their model with the fewest requests, while an
        instance has room. A new instance takes what has queued for it."""
        for model in () if self._servers else self._waiting():
            while self._queued[model]:
                self._drop(self._queued[model].pop(), ALL_LOST)
        for model in self._waiting():
            if model not in self._instances or (self._config.overtakes and model not in self._news):
                continue
            queue = self._queued[model]
            ready = [server for server in self._instances[model] if not server.loading]
            while queue and ready:
                open_to_it = ready if self._may_join(queue[0]) else [s for s in ready if s.fresh]
                least = min(open_to_it, key=lambda s: s.num_requests, default=None)
                if least is None or least.num_requests >= self._config.concurrency:
                    break
                least.submit(queue.popleft())
        for server in self._fresh:
            server.fresh = False
        self._fresh.clear()
        self._news.clear()

    def _waiting(self) -> list[str]:
        """The models that requests are queued for."""
        return list(compress(self._queued, self._queued.values()))

    def _group(self) -> None:
        """Groups the instances by model, after one of them was started or lost."""
        self._instances = {}
        for server in self._servers:
            self._instances.setdefault(server.model, []).append(server)

    def _may_join(self, request: Request) -> bool:
        """Whether the first request of a queue may join an instance that has served before."""
        if self._config.overtakes:
            return True
        mine = self._urgency(request)
        return all(self._urgency(queue[0]) >= mine for queue in self._queued.values() if queue)

    def _scale(self) -> float:
        """Starts the instances that can start now. Returns when to look again if nothing changes
        before; inf: never."""
        waiting = self._waiting()
        idle = [server for server in self._servers if not server.busy] if waiting else []
        if not idle:
            return inf
        again_s = inf
        for model in sorted(waiting, key=lambda name: self._urgency(self._queued[name][0])):
            again_s = min(again_s, self._scale_model(model, idle))
        return again_s

    def _scale_model(self, model: str, idle: list[Server]) -> float:
        """Starts one instance of `model` if it needs one more and a device is free, which leaves
        `idle`.

        Returns when to look again: when the interval or a keep-alive is over; inf if only an
        arrival or the end of a request can change something.
        """
        now_s, own = self._loop.now, self._instances.get(model, [])
        num_requests = len(self._queued[model]) + sum(server.num_requests for server in own)
        wanted = desired_instances(
            num_requests, self._config.concurrency, self._config.max_instances
        )
        next_s = self._started_s[model] + self._config.interval_s
        if len(own) >= wanted or next_s > now_s:
            return next_s if len(own) < wanted else inf
        slots = [
            Slot(
                server.idle_since_s + self._config.keep_alive_s,
                server.idle_since_s,
                self._loader.estimate_s(server.device, model),
            )
            for server in idle
        ]
        chosen = cheapest(slots, now_s)
        if chosen is None or slots[chosen].free_s > now_s:
            return inf if chosen is None else slots[chosen].free_s
        idle.pop(chosen).start(model)
        self._group()
        self._started_s[model] = now_s
        return now_s + self._config.interval_s
