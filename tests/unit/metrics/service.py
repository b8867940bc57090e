"""Builds recorders by hand: requests with the token times that a test says."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from harness.records.manifest import ended, hash_of, surroundings, utc
from harness.records.metrics import summarise
from harness.records.record import Chunk, Recorder, Segment
from harness.records.run_folder import RunFolder
from harness.records.slo import Slo
from harness.records.tables import events_table, requests_table
from harness.request import Request
from harness.schedule import Provenance, Schedule
from tests.running import hardware_profile

HARDWARE = replace(
    hardware_profile("local"), name="bench", device="TEST-1", num_devices=2, source="made up"
)
PROVENANCE = Provenance("dice", "a die", ["arrivals drawn"], "none", "", [])


class Service:
    """A recorder and short words to fill it."""

    def __init__(self, *arrivals_and_tokens: tuple[float, int]) -> None:
        self.requests = [
            Request(i, arrival_s, "m", 10, tokens)
            for i, (arrival_s, tokens) in enumerate(arrivals_and_tokens)
        ]
        self.recorder = Recorder(self.requests)

    def send(self, i: int, lag_s: float = 0.0) -> None:
        self.recorder.sent(self.requests[i], self.requests[i].arrival_s + lag_s)

    def tokens(self, i: int, *times_s: float) -> None:
        for time_s in times_s:
            self.recorder.segment([self.requests[i]], Segment(time_s, 1, 0.0, 0.0), "gpu0")

    def chunks(self, i: int, size: int, *times_s: float) -> None:
        for time_s in times_s:
            self.recorder.segment([self.requests[i]], Chunk(time_s, size), "gpu0")

    def complete(self, i: int, *times_s: float, lag_s: float = 0.0) -> None:
        self.send(i, lag_s)
        self.tokens(i, *times_s)
        self.recorder.completed(self.requests[i])

    def fail(self, i: int, error: str = "the server said 500", *, timeout: bool = False) -> None:
        self.recorder.failed(self.requests[i], error, timeout=timeout)

    def table(self) -> pa.Table:
        return requests_table(self.recorder)

    def summary(
        self,
        ttft_s: float = 1.0,
        tbt_s: float = 0.1,
        *,
        simulated: bool = False,
        num_devices: int | None = 2,
        goodput: str | None = None,
    ) -> dict[str, Any]:
        slo, events = absolute(ttft_s, tbt_s, goodput), self.recorder.events
        return summarise(
            self.table(),
            slo,
            events=events,
            num_devices=num_devices,
            wall_s=3.0,
            simulated=simulated,
            stall_s=1.0,
        )


def absolute(ttft_s: float = 1.0, tbt_s: float = 0.1, goodput: str | None = None) -> Slo:
    return Slo(Slo.Config(name="test", ttft_s=ttft_s, tbt_s=tbt_s, goodput=goodput))


def steady(num_requests: int, seed: int = 0) -> Service:
    """Requests at about 10/s, 20 tokens each, some slow."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(0.1, num_requests))
    service = Service(*((float(arrival), 20) for arrival in arrivals))
    for i, arrival in enumerate(arrivals):
        gaps = rng.lognormal(-4, 0.5, 20)
        gaps[0] = rng.lognormal(-2, 1)
        service.complete(i, *(arrival + np.cumsum(gaps)).tolist())
    return service


def write_run(
    path: Path,
    service: Service,
    *,
    engine_name: str = "sim",
    system: str = "fcfs",
    goodput: str | None = None,
) -> Path:
    """A complete run's folder."""
    folder = RunFolder(path)
    folder.begin()
    config = {"system": system, "seed": 7}
    description = {
        "engine_name": engine_name,
        "simulated": engine_name == "sim",
        "choices": {"system": system, "workload": "dice", "model": "tiny", "engine": engine_name},
        "overrides": [],
        "config_hash": hash_of(config),
        "served_hash": hash_of(config),
        "sources": {},
        "command": ["harness"],
        "started_utc": utc(datetime.now(UTC)),
        "seeds": {"seed": 7},
        "hardware": asdict(HARDWARE),
        "dataset": asdict(PROVENANCE),
        "schedule_sha256": "0" * 64,
        **surroundings(),
    }
    folder.write_schedule(schedule(service))
    folder.write_config(config)
    folder.write_requests(service.table())
    folder.write_events(events_table(service.recorder))
    at = datetime.now(UTC)
    folder.write_manifest(ended(description, "complete", resolved={}, gpu=None, at=at))
    folder.write_summary(service.summary(goodput=goodput))
    return path


def schedule(service: Service) -> Schedule:
    requests = service.requests
    return Schedule(
        arrival_s=np.array([request.arrival_s for request in requests]),
        model=[request.model for request in requests],
        prompt_tokens=np.array([request.prompt_tokens for request in requests]),
        output_tokens=np.array([request.output_tokens for request in requests]),
        provenance=PROVENANCE,
    )
