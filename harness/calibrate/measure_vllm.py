"""Profiles a real vLLM server on this machine, from outside: conf/hardware/local_vllm.yaml.

The synthetic mixes and loads of `harness.calibrate.serving` go through the streaming API of one
server; `harness.calibrate.lockstep` rebuilds its iterations from the tokens' times. Their gaps
give the terms of the measured model; what the first token of a prompt that came alone takes
beyond its iteration is the API's path. The law for other models is fitted to these terms over a
grid. Peaks and links are those of the local profile, measured with engine=torch, or on a GPU of the
profile that `--hardware` names.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from harness.calibrate import zoo
from harness.calibrate.conf_files import TEMPLATES, yaml_text
from harness.calibrate.fit import fit_iterations, fit_law, served_errors
from harness.calibrate.lockstep import Budget, Stream, alone, iterations, misplaced, timeline, works
from harness.calibrate.machine import CPU, as_cells, base, check_device, measured_on, score_lines
from harness.calibrate.measure import grid, served_scores
from harness.calibrate.profiles import Floats
from harness.calibrate.serving import Iterations, Phase, Work, play_all, running, schedules
from harness.calibrate.tables import page, show
from harness.configuration.config import build
from harness.cost.hardware import Calibration, Hardware, StepCoefficients, pair_key
from harness.cost.law import coefficients
from harness.cost.terms import mixed_s
from harness.errors import RunError
from harness.files import write_text
from harness.model_spec import ModelSpec
from harness.records.gpu_monitor import devices
from harness.records.record import Recorder, TokenRecord

MISPLACED = 0.05  # of all tokens; with more the streams do not tick together


@dataclass(frozen=True)
class Seen:
    """What the clients saw, rebuilt: iterations, and prompts that came to an idle server."""

    iterations: Iterations
    alone: list[Work]
    alone_s: Floats  # from sending to the first token
    num_tokens: int
    num_misplaced: int


def profile(chosen: Namespace, console: Console) -> None:
    """Measures a server of a model, fits, and writes `chosen.out`. Lengths x batches: the law's."""
    spec = zoo.model(zoo.model_name(chosen.model))
    hardware = base(chosen.hardware)
    if not devices():
        check_device(hardware, CPU)
    cells = grid(spec, chosen.lengths, chosen.batches)
    records, server = serve(spec, hardware, schedules(chosen.num_requests), console)
    seen = rebuild(records, Budget(server["max_num_seqs"], server["max_num_batched_tokens"]))
    found = calibration(seen, spec, hardware, cells)
    (terms,) = found.measured.values()
    score = served_scores(served_errors(terms, 0.0, seen.iterations), seen.iterations)
    show(console, score, "iterations of the server")
    console.print(f"API, there and back: {1000 * found.path_s:.1f} ms")
    write_text(chosen.out, local_vllm_yaml(found, spec, hardware, server, seen, score))
    console.print(f"wrote {chosen.out}", soft_wrap=True)


def serve(
    spec: ModelSpec, hardware: Hardware, phases: Sequence[Phase], console: Console
) -> tuple[list[list[TokenRecord]], Mapping[str, Any]]:
    """Each phase's records, on a clock of its own, and what the server resolved."""
    engine = build(zoo.node("engine/vllm.yaml"), "engine")
    scheduler = zoo.node("system/vllm.yaml")
    del scheduler["_target_"]
    recorder = Recorder([request for requests, _ in phases for request in requests])
    announce = partial(console.print, markup=False, highlight=False)
    one = replace(hardware, num_devices=1)
    started = running(engine, spec, one, recorder, scheduler=scheduler, announce=announce)
    with started as (cluster, loop):
        resolved = engine.resolved()
        (device,) = set(resolved["devices"])  # of one server without ranks
        check_device(hardware, device)
        for requests, seconds in play_all(phases, cluster, loop, recorder):
            console.print(f"{len(requests)} requests in {seconds:.1f} s")
    for record in recorder.records.values():
        if record.status != "completed":
            raise RunError(f"a request of the calibration {record.status}: {record.error}")
    (server,) = resolved["servers"].values()
    records = [[recorder.records[r.request_id] for r in requests] for requests, _ in phases]
    return records, server | {"vllm_version": resolved["vllm_version"], "device": device}


def rebuild(phases: Iterable[Sequence[TokenRecord]], budget: Budget) -> Seen:
    parts, alone_s = list[Iterations](), list[Floats]()
    lone, num_tokens, num_misplaced = list[Work](), 0, 0
    for records in phases:
        streams = [stream(record) for record in records]
        found = timeline(streams)
        content = works(streams, found, budget)
        parts.append(iterations(content, found.ends_s))
        by_themselves, seconds = alone(streams, found, content)
        lone += by_themselves
        alone_s.append(seconds)
        num_tokens += sum(len(s.times_s) for s in streams)
        num_misplaced += misplaced(streams, found)
    if num_misplaced > MISPLACED * num_tokens:
        raise RunError(
            f"{num_misplaced} of {num_tokens} tokens came in another iteration than their stream "
            "says: the server preempts, or this machine is too busy to be measured"
        )
    joined = Iterations(*map(np.concatenate, zip(*parts, strict=True)))
    return Seen(joined, lone, np.concatenate(alone_s), num_tokens, num_misplaced)


def stream(record: TokenRecord) -> Stream:
    assert record.sent_s is not None
    return Stream(record.request.prompt_tokens, record.sent_s, record.token_times_s())


def calibration(
    seen: Seen, spec: ModelSpec, hardware: Hardware, cells: list[tuple[int, int]]
) -> Calibration:
    """What `seen` says of `spec`, and a law that says the same of other models."""
    terms, path_s = fit(seen, coefficients(spec, hardware)[0])
    law = fit_law([as_cells(spec, terms, cells)], {"local": hardware}).devices["local"]
    measured = {pair_key(spec.name, spec.tp): terms}
    return replace(law, turnaround_s=0.0, path_s=path_s, measured=measured)


def fit(seen: Seen, prior: StepCoefficients) -> tuple[StepCoefficients, float]:
    """The terms, and the seconds that the API takes there and back: the median over prompts that
    came alone of what their iteration does not explain, short ones weighing more."""
    if not len(seen.alone_s):
        raise RunError("no prompt came to an idle server: the API's path cannot be measured")
    terms = fit_iterations(seen.iterations, prior)
    beyond = seen.alone_s - np.array([mixed_s(terms, *work) for work in seen.alone])
    order = np.argsort(beyond)
    weight = np.cumsum(1 / seen.alone_s[order])
    middle = beyond[order][np.searchsorted(weight, weight[-1] / 2)]
    return terms, max(0.0, float(middle))


def values_of(found: Calibration, hardware: Hardware) -> dict[str, Any]:
    """What is written: of a GPU all of its profile, whose other measured models are no server's."""
    if hardware.device == CPU:
        return {"name": "local_vllm", "calibration": asdict(found)}
    source = f"{hardware.source}; calibration measured"
    return asdict(replace(hardware, name="local_vllm_gpu", calibration=found, source=source))


def local_vllm_yaml(
    found: Calibration, spec: ModelSpec, hardware: Hardware, server: Mapping[str, Any], seen: Seen,
    score: pd.DataFrame,
) -> str:  # fmt: skip
    """The file's text; `hardware` lends what was not measured."""
    return page(
        TEMPLATES / "local_vllm.yaml",
        base=hardware.name,
        version=server["vllm_version"],
        model=spec.name,
        where=measured_on(server["device"]),
        num_placed=seen.num_tokens - seen.num_misplaced,
        num_tokens=seen.num_tokens,
        scores=score_lines(score, "iterations"),
        values=yaml_text(values_of(found, hardware)),
    )
