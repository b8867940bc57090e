"""Profiles engine=torch on this machine and writes its hardware profile, conf/hardware/local.yaml.

A CPU's peaks come from a matrix product and a copy in memory, a GPU's constants from the profile
that `--hardware` names (`harness.calibrate.machine`). A grid of prefills and
decodes in a real worker process gives the law for every model; the terms of the measured model,
and the turnaround of `execute`, come from iterations as serving makes them. The engine leaves a
core to the harness: sharing all of them, equal runs differed by more than the simulator should.
Anything else that runs meanwhile is measured too.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from harness.calibrate import machine, zoo
from harness.calibrate.fit import fit_law, fit_served, served_errors
from harness.calibrate.profiles import DECODE_STEPS, Cells, Floats
from harness.calibrate.scores import mape_pct, r2
from harness.calibrate.serving import NAME, Iterations, running, served
from harness.calibrate.tables import show
from harness.configuration.config import build
from harness.cost.hardware import Calibration, Hardware, pair_key
from harness.device.instance import Instance
from harness.engine.instance import TorchInstance
from harness.errors import UsageError
from harness.files import write_text
from harness.model_spec import ModelSpec
from harness.records.gpu_monitor import devices
from harness.records.record import Recorder
from harness.request import Batch, Request

MAX_TOKENS = 4096  # of one prefill: larger cells are left out


@dataclass(frozen=True)
class MeasuredEngine:
    cells: Cells
    seen: Iterations
    layer_load_s: float
    engine: Mapping[str, Any]  # as the engine resolved it
    device: str  # that the worker ran on: cpu, or the GPU's name


def profile(chosen: Namespace, console: Console) -> None:
    """Measures a model over lengths x batches, fits, and writes `chosen.out`. `chosen.hardware`:
    the profile of the GPU here, if there is one."""
    spec, origin = zoo.model(zoo.model_name(chosen.model)), machine.base(chosen.hardware)
    cells = grid(spec, chosen.lengths, chosen.batches)
    kept = machine.kept(chosen.out, origin)
    others = {pair: terms for pair, terms in kept.items() if pair != pair_key(spec.name, spec.tp)}
    told = [  # to the law, by the models that were measured before
        machine.as_cells(other, terms, grid(other, chosen.lengths, chosen.batches))
        for other, terms in ((measured_model(pair), terms) for pair, terms in others.items())
    ]
    if not devices():
        machine.check_device(origin, machine.CPU)
    threads = chosen.num_threads
    found = run_engine(spec, origin, cells, chosen.repeats, chosen.num_requests, threads)
    known = with_peaks(origin, spec, found)
    calibration, score = fitted(spec, known, found, told)
    show(console, score, "executes as serving makes them")
    calibration = replace(calibration, measured={**others, **calibration.measured})
    comments = machine.earlier_comments(chosen.out, spec) if kept else []
    comments += [
        f"{machine.MODEL_LINE}torch {found.engine['torch']}) with {spec.name}, "
        f"engine.num_threads={threads}, {machine.measured_on(found.device)}.",
        *machine.score_lines(score, "executes"),
    ]
    name = origin.name if origin.device == machine.CPU else chosen.out.stem
    measured = replace(known, name=name, calibration=calibration)
    write_text(chosen.out, machine.profile_yaml(measured, origin, comments))
    console.print(f"wrote {chosen.out}", soft_wrap=True)


def fitted(
    spec: ModelSpec, hardware: Hardware, found: MeasuredEngine, told: Sequence[Cells]
) -> tuple[Calibration, pd.DataFrame]:
    """The calibration of `spec` by serving, its cells and `told` of other models; and how well it
    fits."""
    prior = fit_law([found.cells], {"local": hardware}).terms(found.cells)
    terms, turnaround_s = fit_served(found.seen, prior)
    law = fit_law([found.cells.without(turnaround_s), *told], {"local": hardware})
    calibration = replace(
        law.devices["local"],
        turnaround_s=turnaround_s,
        measured={pair_key(spec.name, spec.tp): terms},
    )
    return calibration, served_scores(served_errors(terms, turnaround_s, found.seen), found.seen)


def with_peaks(origin: Hardware, spec: ModelSpec, found: MeasuredEngine) -> Hardware:
    """`origin` as it is, or, for a CPU, with the peaks of this one."""
    if origin.device != machine.CPU:
        return origin
    flop_per_s, bytes_per_s = machine.peaks()
    flop = 2 * spec.num_layers * spec.token_layer_params * found.cells.tokens
    reached = flop / found.cells.prefill_s
    load_bytes_per_s = spec.layer_bytes / found.layer_load_s
    return replace(
        origin,
        dense_flop_per_s=max(flop_per_s, float(reached.max())),
        memory_bandwidth_bytes_per_s=bytes_per_s,
        pcie_peak_bytes_per_s=load_bytes_per_s,  # a CPU has no link with a nominal rate
        pcie_bytes_per_s=load_bytes_per_s,
    )


def measured_model(pair: str) -> ModelSpec:
    """The model of a key that `pair_key` made."""
    name, _, tp = pair.rpartition("_tp")
    return zoo.sharded(zoo.model_name(name), int(tp))


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
) -> MeasuredEngine:
    """Serves, then takes medians over `repeats` of each cell's prefill and mean decode step.
    UsageError, before anything is measured, where `hardware` is not what the worker runs on."""
    engine = build(zoo.node("engine/torch.yaml") | {"num_threads": num_threads}, "engine")
    recorder = Recorder([])
    with running(engine, spec, replace(hardware, num_devices=1), recorder) as (cluster, loop):
        resolved = engine.resolved()
        (device,) = resolved["devices"]
        machine.check_device(hardware, device)
        seen = served(cluster, loop, recorder, num_requests)
        bench = _Bench(cluster.instances[0], recorder)
        times = [
            np.median([loop.run(bench.cell(*cell)) for _ in range(repeats + 1)][1:], axis=0)
            for cell in track(cells, "measuring")
        ]
        layer_s = loop.run(bench.layer_load_s())
    (length, batch), (prefill_s, decode_s) = (np.array(x, float).T for x in (cells, times))
    measured = Cells(spec.name, "local", spec.tp, length, batch, prefill_s, decode_s)
    return MeasuredEngine(measured, seen, layer_s, resolved, device)


class _Bench:
    """One instance, driven cell by cell."""

    def __init__(self, instance: Instance, recorder: Recorder) -> None:
        assert isinstance(instance, TorchInstance)
        self._instance, self._recorder = instance, recorder
        self._ids = count()

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
            self._recorder.forget(request)
        if steps != DECODE_STEPS:
            raise UsageError(f"{batch} requests of {length} tokens need more KV blocks")
        return prefill_s, decode_s

    async def layer_load_s(self) -> float:
        start_s = perf_counter()
        await self._instance.reload()
        return (perf_counter() - start_s) / self._instance.model.num_layers

    def _request(self, length: int) -> Request:
        request = Request(next(self._ids), 0.0, NAME, length, DECODE_STEPS + 1)
        self._recorder.add([request])
        return request

    def _grow(self, request: Request, tokens: int) -> None:
        if not self._instance.kv.grow(request, tokens):
            raise UsageError(f"the KV cache of {self._instance.kv.num_blocks} blocks is too small")


def served_scores(error: Floats, seen: Iterations) -> pd.DataFrame:
    """Scores by kind of execute: number, mean absolute error, and error of the total time."""
    rows = []
    for kind, chosen in (("with prompts", seen.chunks > 0), ("decodes", seen.chunks == 0)):
        seconds, wrong = seen.seconds[chosen], error[chosen]
        total_pct = float(100 * (wrong * seconds).sum() / seconds.sum())
        rows.append((kind, len(seconds), mape_pct(wrong), r2(seconds, wrong), total_pct))
    return pd.DataFrame(rows, columns=["executes", "number", "mape_pct", "r2", "total_pct"])
