"""Requests played to simulated replicas by the policy, as a load generator would send them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

import numpy as np

from harness.calibrate import zoo
from harness.calibrate.profiles import Floats
from harness.calibrate.serving import running
from harness.clock import Event, Loop
from harness.configuration.config import build
from harness.cost.hardware import Hardware
from harness.device.block_pool import BlockPool
from harness.engine_api import Engine
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.records.record import Recorder, TokenRecord
from harness.request import Request


@dataclass(frozen=True, slots=True)
class Played:
    """One entry per request, in seconds since the first could arrive; sorted as sent."""

    sent_s: Floats
    first_s: Floats  # token
    last_s: Floats


def middle_per_s(ends_s: Floats) -> float:
    """Completions/s between the tenth and the ninetieth per cent of them: neither while the batch
    fills nor while the last ones run out. Not a number where they end all at once."""
    ordered = np.sort(ends_s)
    first, last = len(ordered) // 10, 9 * len(ordered) // 10
    span_s = float(ordered[last] - ordered[first])
    return (last - first) / span_s if span_s > 0 else float("nan")


def play(
    requests: Sequence[Request],
    model: ModelSpec,
    hardware: Hardware,
    engine: Engine,
    limits: dict[str, object],
    max_outstanding: float = inf,
    earlier: Sequence[Request] = (),
) -> Played:
    """Serves `requests`, at most `max_outstanding` of them at once: more wait unsent. Each instance
    has served `earlier` before, which have left their prompts in its prefix cache, if any.

    limits: of the vllm system's configuration. Raises UsageError for what does not fit.
    """
    recorder = Recorder(requests)
    with running(engine, model, hardware, recorder, name=model.name) as (cluster, loop):
        room = min(one.kv.num_blocks * one.kv.block_tokens for one in cluster.instances)
        longest = max(r.prompt_tokens + r.output_tokens for r in requests)
        if longest > room:
            raise UsageError(f"a request needs KV for {longest} tokens, an instance has {room}")
        for instance in cluster.instances:
            for request in earlier:
                _leave(request, instance.kv)
        node = zoo.node("system/vllm.yaml") | limits
        policy = build(node, "system", loop=loop, cluster=cluster)

        async def main() -> None:
            loop.spawn(policy.serve(), name="system")
            await _send(requests, loop, recorder, policy.submit, max_outstanding)

        loop.run(main())
    return _played([recorder.records[r.request_id] for r in requests])


def _leave(request: Request, kv: BlockPool) -> None:
    prefix = kv.cached_prefix(request)
    if prefix is not None and kv.admit(request, request.prompt_tokens, prefix):
        request.computed_tokens = request.prompt_tokens
        kv.release(request)
        request.computed_tokens = 0


async def _send(
    requests: Sequence[Request],
    loop: Loop,
    recorder: Recorder,
    submit: Callable[[Request], None],
    max_outstanding: float,
) -> None:
    ended, ends_s = Event(loop), list[float]()

    def on_done(request: Request) -> None:
        heappush(ends_s, recorder.records[request.request_id].last_token_s)
        ended.set()

    recorder.on_done.append(on_done)
    free = max_outstanding
    for request in requests:
        if request.arrival_s > loop.now:
            await loop.sleep_until(request.arrival_s)
        if not free:
            while not ends_s:
                ended.clear()
                await loop.wait(ended)
            answered_s = heappop(ends_s)  # when its last token reaches the client
            if answered_s > loop.now:
                await loop.sleep_until(answered_s)
            free += 1
        recorder.sent(request, loop.now)
        submit(request)
        free -= 1
    while recorder.num_done < len(requests):
        ended.clear()
        await loop.wait(ended)


def _played(records: Sequence[TokenRecord]) -> Played:
    first = [record.segments[0].start_s + record.segments[0].step_s for record in records]
    last = [record.last_token_s for record in records]
    return Played(np.array([r.sent_s for r in records], float), np.array(first), np.array(last))
