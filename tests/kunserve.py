"""KunServe on a test bed, on any engine: requests at their times, and deaths at given moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.configuration.config import build
from harness.configuration.options import plain
from harness.cost.profile import HardwareProfile
from harness.request import Request
from harness.running.testbed import Bed
from systems.kunserve.system import KunServe
from tests.elastic import hardware
from tests.exactness import expect
from tests.running import composed

Arrival = tuple[float, int, int]  # s, prompt tokens, output tokens
# Few tokens at once, so that a bed's small memory is what runs out.
FAST = (
    "system.poll_s=0.01", "system.monitor.calm_s=0.1", "system.monitor.window_s=0.1",
    "system.monitor.horizon_s=0.05",
)  # fmt: skip


@dataclass
class Story:
    bed: Bed
    system: KunServe
    dropped: list[str]  # why requests were given up

    def seen(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.bed.recorder.events if event["kind"] == kind]

    @property
    def moving(self) -> bool:
        shaper = self.system._manager
        return any(server.moving for server in [*shaper.servers, *shaper.leaving])

    @property
    def loading(self) -> bool:
        return any(instance._loading for instance in self.bed.instances)


def system_on(bed: Bed, *overrides: str, num_devices: int = 4) -> Story:
    dropped: list[str] = []
    cluster = replace(
        bed.given, profile=HardwareProfile(hardware(num_devices)), placements=[],
        drop=lambda request, why: dropped.append(why),
    )  # fmt: skip
    node = composed("+system=kunserve", "+workload=burstgpt", *FAST, *overrides).system
    system = build(plain(node), "system", loop=bed.loop, cluster=cluster)
    return Story(bed, system, dropped)


def serve(
    bed: Bed,
    arrivals: Sequence[Arrival],
    *overrides: str,
    kill: tuple[Callable[[Story], bool], int] | None = None,
    rest_s: float = 2.0,
) -> Story:
    """Until all have ended, and `rest_s` longer. `kill`: when, and which instance."""
    expect(bed, [(prompt, output) for _, prompt, output in arrivals])
    story = system_on(bed, *overrides)
    requests: list[Request] = []

    async def client() -> None:
        for at_s, prompt, output in arrivals:
            await bed.loop.sleep_until(at_s)
            request = bed.request(prompt, output)
            requests.append(request)
            story.system.submit(request)

    async def killer(when: Callable[[Story], bool], victim: int) -> None:
        while not when(story):
            await bed.loop.sleep(0.0002)
        bed.cluster.kill(bed.instances[victim])

    async def main() -> None:
        bed.loop.spawn(story.system.serve(), name="system")
        sending = bed.loop.spawn(client(), name="client")
        if kill is not None:
            bed.loop.spawn(killer(*kill), name="killer")
        await bed.loop.wait(sending.finished)
        limit_s = bed.loop.now + 120.0
        while not all(request.finished for request in requests):
            assert bed.loop.now < limit_s, "some requests never end"
            await bed.loop.sleep(0.01)
        await bed.loop.sleep(rest_s)

    bed.run(main())
    return story


def burst(num: int, *, prompt: int = 96, output: int = 96, gap_s: float = 0.01) -> list[Arrival]:
    """`num` requests at once, whose KV two small instances cannot hold. A few last: they are
    there when the others have gone."""
    lengths = [(prompt + i % 5, 500 if i % 10 == 0 else output + 7 * (i % 3)) for i in range(num)]
    return [(gap_s * i, *lengths[i]) for i in range(num)]
