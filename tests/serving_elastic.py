"""Serves a few requests with an elastic system, simulated or live; what to look at afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.configuration.config import build, class_of, settings, typed
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.placement import Demand
from harness.records.record import Recorder
from harness.request import Request
from harness.running import faults, testbed
from harness.running.client import Client
from harness.running.faults import Faults
from harness.running.testbed import Bed
from tests.elastic import check, generated, undisturbed
from tests.exactness import make_clear
from tests.running import composed, model_spec


@dataclass
class Served:
    """`tokens`, `alone`: by request, of a live run, and of one without disturbance."""

    recorder: Recorder
    system: Any
    bed: Bed
    tokens: dict[int, list[int]]
    alone: dict[int, list[int]]

    def events(self, kind: str) -> list[dict[str, Any]]:
        found = [event for event in self.recorder.events if event["kind"] == kind]
        return sorted(found, key=lambda event: (event["start_s"], event["instance"]))

    def statuses(self) -> set[str]:
        return {record.status for record in self.recorder.records.values()}

    def ttft_s(self) -> list[float]:
        """Of each request, in order."""
        return [
            float(record.token_times_s()[0]) - record.request.arrival_s
            for record in self.recorder.records.values()
        ]

    def roles(self) -> dict[str, float]:
        """Seconds that slots were held, by role."""
        held: dict[str, float] = {}
        for event in self.events("slot"):
            role = event["fields"]["role"]
            held[role] = held.get(role, 0.0) + event["end_s"] - event["start_s"]
        return held


def burst(at_s: float, count: int, prompt_tokens: int, output_tokens: int) -> list[Request]:
    """Requests 1 ms apart; numbered later."""
    return [
        Request(0, at_s + 0.001 * i, "m", prompt_tokens + i, output_tokens) for i in range(count)
    ]


def serve(
    overrides: Sequence[str], requests: Sequence[Request], *, engine: str = "sim",
    model: str = "tiny-llama", on: Hardware | None = None,
    kill: Sequence[tuple[int, float]] = (), rest_s: float = 0.0,
    watch: Callable[[Any], None] = lambda system: None, drain_s: float = 120.0,
    models: Mapping[str, str] | None = None, kill_hosts: Sequence[tuple[int, float]] = (),
) -> Served:  # fmt: skip
    """`kill`: instances, and when. `rest_s`: how long the system goes on when all has ended.
    `models`: specs by the name that requests carry; None: `model` for "m"."""
    in_order = sorted(requests, key=lambda request: request.arrival_s)
    ordered = [replace(request, request_id=i) for i, request in enumerate(in_order)]
    config = composed(*overrides, "+workload=burstgpt", f"engine={engine}")
    specs = {name: model_spec(each) for name, each in (models or {"m": model}).items()}
    spec = next(iter(specs.values()))
    if engine != "sim":
        make_clear(ordered, specs)
    hardware = on or typed(plain(config.hardware), Hardware, "hardware")
    node = plain(config.system)
    system_class = class_of(node, "system")
    chosen = settings(node, system_class, "system")
    placements = system_class.place(chosen, specs, hardware, Demand(dict.fromkeys(specs, 1.0)))
    backend = build(plain(config.engine), "engine")
    recorder = Recorder(ordered)
    with testbed.started(backend, specs, hardware, placements, recorder) as (cluster, loop):
        elastic = cluster.elastic
        assert elastic is not None
        system = system_class(chosen, loop=loop, cluster=cluster)
        killed = [faults.Kill(instance=i, at_s=at_s) for i, at_s in kill]
        killed += [faults.Kill(host=i, at_s=at_s) for i, at_s in kill_hosts]
        client = Client(drain_s, loop=loop, recorder=recorder, system=system)
        watch(system)

        async def main() -> None:
            loop.spawn(system.serve(), name="system")
            await client.play(ordered)
            await loop.sleep(rest_s)

        with faults.striking(Faults(kill=killed), cluster, {}, loop, recorder):
            loop.run(main())
        elastic.end()
        bed = Bed(loop, elastic, recorder, spec, cluster, made=len(ordered))
        check(bed)
        live = engine != "sim"
        tokens = generated(bed) if live else {}
        return Served(recorder, system, bed, tokens, undisturbed(bed) if live else {})
