"""Profiles engine=torch on this machine and writes its hardware profile, conf/hardware/local.yaml.

The machine's peaks come from a matrix product and a copy in memory. A grid of prefills and
decodes in a real worker process gives the law for every model; the terms of the measured model,
and the turnaround of `execute`, come from iterations as serving makes them. The engine leaves a
core to the harness: sharing all of them, equal runs differed by more than the simulator should.
Anything else that runs meanwhile is measured too.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from harness.calibrate import zoo
from harness.calibrate.conf_files import yaml_lines
from harness.calibrate.fit import fit_law, fit_served, served_errors
from harness.calibrate.profiles import DECODE_STEPS, Cells, Floats
from harness.calibrate.report import show
from harness.calibrate.scores import mape_pct, r2
from harness.calibrate.serving import Iterations, served
from harness.cluster import Instance, ModelSpec
from harness.config import build, typed
from harness.engine_api import Experiment
from harness.errors import UsageError
from harness.files import write_text
from harness.hardware import Hardware, pair_key
from harness.placement import dedicated
from harness.record import Recorder
from harness.request import Batch, Request

MAX_TOKENS = 4096  # of one prefill: larger cells are left out
NAME = "default"


@dataclass(frozen=True)
class Profile:
    cells: Cells
    seen: Iterations
    layer_load_s: float
    engine: dict[str, object]  # as the engine resolved it


def profile(
    model: str,
    lengths: Sequence[int],
    batches: Sequence[int],
    repeats: int,
    num_requests: int,
    num_threads: int,
    out: Path,
    console: Console,
) -> None:
    """Measures `model` over lengths x batches, fits, and writes `out`."""
    if repeats < 1:
        raise UsageError(f"--repeats {repeats} must be at least 1")
    if num_requests < 10:
        raise UsageError(f"--num-requests {num_requests} are too few to fit: at least 10")
    spec = zoo.model(zoo.model_name(model))
    hardware: Hardware = typed(zoo.node("hardware/local.yaml"), Hardware, "hardware/local")
    found = run_engine(
        spec, hardware, grid(spec, lengths, batches), repeats, num_requests, num_threads
    )
    flop_per_s, bytes_per_s = peaks()
    reached = 2 * spec.num_layers * spec.layer_params * found.cells.tokens / found.cells.prefill_s
    hardware = replace(
        hardware,
        dense_flop_per_s=max(flop_per_s, float(reached.max())),
        memory_bandwidth_bytes_per_s=bytes_per_s,
    )
    prior = fit_law([found.cells], {"local": hardware}).terms(found.cells)
    terms, turnaround_s = fit_served(found.seen, prior)
    law = fit_law([found.cells.without(turnaround_s)], {"local": hardware})
    score = served_scores(served_errors(terms, turnaround_s, found.seen), found.seen)
    show(console, score, "executes as serving makes them")
    calibration = replace(
        law.devices["local"],
        turnaround_s=turnaround_s,
        measured={pair_key(spec.name, spec.tp): terms},
    )
    load_bytes_per_s = spec.layer_bytes / found.layer_load_s
    measured = replace(
        hardware,
        pcie_peak_bytes_per_s=load_bytes_per_s,  # a CPU has no link with a nominal rate
        pcie_bytes_per_s=load_bytes_per_s,
        calibration=calibration,
    )
    write_text(out, local_yaml(measured, spec, found, score, num_threads))
    console.print(f"wrote {out}", soft_wrap=True)


def grid(spec: ModelSpec, lengths: Sequence[int], batches: Sequence[int]) -> list[tuple[int, int]]:
    cells = [
        (length, batch)
        for length in lengths
        for batch in batches
        if length * batch <= MAX_TOKENS and length + DECODE_STEPS + 1 <= spec.max_position
    ]
    if len(cells) < 4:
        raise UsageError(f"{len(cells)} cells of at most {MAX_TOKENS} tokens cannot be fitted")
    return cells


def run_engine(
    spec: ModelSpec,
    hardware: Hardware,
    cells: list[tuple[int, int]],
    repeats: int,
    num_requests: int,
    num_threads: int,
) -> Profile:
    """Serves, then takes medians over `repeats` of each cell's prefill and mean decode step."""
    node = zoo.node("engine/torch.yaml")
    engine = build(node | {"num_threads": num_threads}, "engine")
    loop, recorder = engine.make_loop(), Recorder([])
    with tempfile.TemporaryDirectory() as run_dir:
        experiment = Experiment(
            loop=loop, recorder=recorder, models={NAME: spec}, hardware=hardware,
            run_dir=Path(run_dir), seed=0, placements=dedicated({NAME: spec}, hardware),
            scheduler={}, announce=lambda line: None,
        )  # fmt: skip
        with engine.start(experiment) as cluster:
            seen = served(cluster, loop, recorder, NAME, num_requests)
            bench = _Bench(cluster.instances[0], recorder)
            times = [
                np.median([loop.run(bench.cell(*cell)) for _ in range(repeats + 1)][1:], axis=0)
                for cell in track(cells, "measuring")
            ]
            layer_s = loop.run(bench.layer_load_s())
    (length, batch), (prefill_s, decode_s) = (np.array(x, float).T for x in (cells, times))
    measured = Cells(spec.name, "local", spec.tp, length, batch, prefill_s, decode_s)
    return Profile(measured, seen, layer_s, dict(engine.resolved()))


class _Bench:
    """One instance, driven cell by cell."""

    def __init__(self, instance: Instance, recorder: Recorder) -> None:
        self._instance, self._recorder = instance, recorder
        self._next_id = 0

    async def cell(self, length: int, batch: int) -> tuple[float, float]:
        """(seconds of one prefill of `batch` prompts, seconds per decode step after it)."""
        requests = [self._request(length) for _ in range(batch)]
        for request in requests:
            self._grow(request, length)
        start_s = perf_counter()
        await self._instance.execute(Batch(chunks=[(request, length) for request in requests]))
        prefill_s = perf_counter() - start_s
        for request in requests:
            self._grow(request, length + 1)
        start_s = perf_counter()
        steps = await self._instance.execute(Batch(decodes=requests))
        decode_s = (perf_counter() - start_s) / steps
        for request in requests:
            del self._recorder.records[request.request_id]
        if steps != DECODE_STEPS:
            raise UsageError(f"{batch} requests of {length} tokens need more KV blocks")
        return prefill_s, decode_s

    async def layer_load_s(self) -> float:
        layers = range(self._instance.model.num_layers)
        await self._instance.drop(layers)
        start_s = perf_counter()
        await self._instance.load(layers)
        return (perf_counter() - start_s) / len(layers)

    def _request(self, length: int) -> Request:
        request = Request(self._next_id, 0.0, NAME, length, DECODE_STEPS + 1)
        self._next_id += 1
        self._recorder.records |= Recorder([request]).records
        return request

    def _grow(self, request: Request, tokens: int) -> None:
        if not self._instance.kv.grow(request, tokens):
            raise UsageError(f"the KV cache of {self._instance.kv.num_blocks} blocks is too small")


def peaks() -> tuple[float, float]:
    """(float32 FLOP/s, bytes/s copied) of this machine, best of several."""
    side, copied = 1024, np.ones(1 << 26, np.uint8)
    square, target = np.ones((side, side), np.float32), np.empty_like(copied)
    product_s = min(_seconds(lambda: square @ square) for _ in range(10))
    copy_s = min(_seconds(lambda: np.copyto(target, copied)) for _ in range(10))
    return 2 * side**3 / product_s, 2 * copied.nbytes / copy_s


def _seconds(action: Callable[[], object]) -> float:
    start_s = perf_counter()
    action()
    return perf_counter() - start_s


def served_scores(error: Floats, seen: Iterations) -> pd.DataFrame:
    """By kind of execute: how many, their mean absolute error, and that of their total time."""
    rows = []
    for kind, chosen in (("with prompts", seen.chunks > 0), ("decodes", seen.chunks == 0)):
        seconds, wrong = seen.seconds[chosen], error[chosen]
        rows.append(
            {
                "executes": kind,
                "number": len(seconds),
                "mape_pct": mape_pct(wrong),
                "r2": r2(seconds, wrong),
                "total_pct": float(100 * (wrong * seconds).sum() / seconds.sum()),
            }
        )
    return pd.DataFrame(rows)


def local_yaml(
    hardware: Hardware, spec: ModelSpec, found: Profile, score: pd.DataFrame, num_threads: int
) -> str:
    header = [
        "# This machine, as one device (or more: hardware.num_devices=2 runs two CPU instances).",
        "# Written by `python -m harness.calibrate measure`; the constants serve engine=sim only.",
        f"# engine=torch (torch {found.engine['torch']}) with {spec.name}, "
        f"engine.num_threads={num_threads}, {measured_on()}.",
        *score_lines(score, "executes"),
    ]
    values = asdict(replace(hardware, source="measured"))
    return "\n".join([*header, *yaml_lines(values)]) + "\n"


def measured_on() -> str:
    cpu = platform.processor() or platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores of {cpu}, {datetime.now(UTC):%Y-%m-%d}"


def score_lines(score: pd.DataFrame, what: str) -> list[str]:
    """How well `what` were fitted, as comments."""
    return [
        f"# {row.number} {what} of serving {row.executes}: R² {row.r2:.3f}, MAPE "
        f"{row.mape_pct:.1f} %, total time {row.total_pct:+.1f} %."
        for row in score.itertuples(index=False)
    ]
