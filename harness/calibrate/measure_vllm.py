"""Profiles a real vLLM server on this machine, from outside: conf/hardware/local_vllm.yaml.

The synthetic mixes and loads of `harness.calibrate.serving` go through the streaming API of one
server; `harness.calibrate.lockstep` rebuilds its iterations from the tokens' times. Their gaps
give the terms of the measured model; what the first token of a prompt that came alone takes
beyond its iteration is the API's path. The law for other models is fitted to these terms over a
grid. Peaks and links are those of the local profile, measured with engine=torch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from harness.calibrate import zoo
from harness.calibrate.conf_files import yaml_lines
from harness.calibrate.fit import fit_iterations, fit_law, served_errors
from harness.calibrate.lockstep import Budget, Stream, alone, iterations, misplaced, timeline, works
from harness.calibrate.machine import CPU, as_cells, measured_on, score_lines
from harness.calibrate.measure import NAME, grid, served_scores
from harness.calibrate.profiles import Floats
from harness.calibrate.report import show
from harness.calibrate.serving import LOADS, MIXES, ROUNDS, Iterations, play, schedule
from harness.clock import Loop
from harness.cluster import Cluster
from harness.configuration.config import build
from harness.cost.hardware import Calibration, Hardware, StepCoefficients, pair_key
from harness.cost.law import coefficients
from harness.cost.terms import mixed_s
from harness.engine_api import Experiment
from harness.errors import RunError, UsageError
from harness.files import write_text
from harness.model_spec import ModelSpec
from harness.placement import dedicated
from harness.records.record import Recorder, TokenRecord
from harness.request import Request

MISPLACED = 0.05  # of all tokens; with more the streams do not tick together
Phase = tuple[Sequence[Request], float]  # its load, as a share of the rate of the burst before


@dataclass(frozen=True)
class Seen:
    """What the clients saw, rebuilt: iterations, and prompts that came to an idle server."""

    iterations: Iterations
    alone: list[dict[str, float]]  # columns of `harness.cost.model.mixed_s`
    alone_s: Floats  # from sending to the first token
    num_tokens: int
    num_misplaced: int


def profile(
    model: str,
    lengths: Sequence[int],
    batches: Sequence[int],
    num_requests: int,
    out: Path,
    console: Console,
) -> None:
    """Measures a server of `model`, fits, and writes `out`; lengths x batches: of the law."""
    if num_requests < 10:
        raise UsageError(f"--num-requests {num_requests} are too few to fit: at least 10")
    spec = zoo.model(zoo.model_name(model))
    hardware = zoo.hardware("local")
    cells = grid(spec, lengths, batches)
    phases = list(schedules(num_requests))
    records, server = serve(spec, hardware, phases, console)
    seen = rebuild(records, Budget(server["max_num_seqs"], server["max_num_batched_tokens"]))
    found = calibration(seen, spec, hardware, cells)
    (terms,) = found.measured.values()
    score = served_scores(served_errors(terms, 0.0, seen.iterations), seen.iterations)
    show(console, score, "iterations of the server")
    console.print(f"API, there and back: {1000 * found.path_s:.1f} ms")
    write_text(out, local_vllm_yaml(found, spec, server, seen, score))
    console.print(f"wrote {out}", soft_wrap=True)


def schedules(num_requests: int) -> Iterable[Phase]:
    """The requests of each mix, ROUNDS times: at once, then at each of LOADS of one request a
    second, which `play_all` scales to the rate that the burst was completed at."""
    rng, ids = np.random.default_rng(0), iter(range(10**9))
    for mix in MIXES * ROUNDS:
        for load in (inf, *LOADS):
            yield schedule(rng, ids, NAME, mix, num_requests, load), load


def serve(
    spec: ModelSpec, hardware: Hardware, phases: Sequence[Phase], console: Console
) -> tuple[list[list[TokenRecord]], Mapping[str, Any]]:
    """Each phase's records, on a clock of its own, and what the server resolved."""
    engine = build(zoo.node("engine/vllm.yaml"), "engine")
    scheduler = zoo.node("system/vllm.yaml")
    loop = engine.make_loop()
    recorder = Recorder([request for requests, _ in phases for request in requests])
    with tempfile.TemporaryDirectory() as run_dir:
        experiment = Experiment(
            loop=loop, recorder=recorder, models={NAME: spec}, hardware=hardware,
            run_dir=Path(run_dir), seed=0, placements=dedicated({NAME: spec}, hardware),
            scheduler={k: v for k, v in scheduler.items() if k != "_target_"},
            announce=lambda line: console.print(line, markup=False, highlight=False),
        )  # fmt: skip
        with engine.start(experiment) as cluster:
            if set(engine.resolved()["devices"]) != {CPU}:
                found = ", ".join(engine.resolved()["devices"])
                raise UsageError(
                    f"the server runs on {found}: --engine vllm profiles a server on a CPU only, "
                    "as the other constants that it writes are a CPU's"
                )
            for requests, seconds in play_all(phases, cluster, loop, recorder):
                console.print(f"{len(requests)} requests in {seconds:.1f} s")
            (server,) = engine.resolved()["servers"].values()
            server = server | {"vllm_version": engine.resolved()["vllm_version"]}
    for record in recorder.records.values():
        if record.status != "completed":
            raise RunError(f"a request of the calibration {record.status}: {record.error}")
    return [[recorder.records[r.request_id] for r in requests] for requests, _ in phases], server


def play_all(
    phases: Iterable[Phase], cluster: Cluster, loop: Loop, recorder: Recorder
) -> Iterator[tuple[Sequence[Request], float]]:
    """Serves phase after phase, and yields the seconds that each took."""
    capacity_per_s = 1.0
    for requests, load in phases:
        for request in requests:
            request.arrival_s /= capacity_per_s
        seconds = play(requests, cluster, loop, recorder)
        if load == inf:
            capacity_per_s = len(requests) / seconds
        yield requests, seconds


def rebuild(phases: Iterable[Sequence[TokenRecord]], budget: Budget) -> Seen:
    parts: list[Iterations] = []
    columns: list[dict[str, float]] = []
    seconds, num_tokens, num_misplaced = [], 0, 0
    for records in phases:
        streams = [stream(record) for record in records]
        found = timeline(streams)
        content = works(streams, found, budget)
        parts.append(iterations(content, found.ends_s))
        lone, lone_s = alone(streams, found, content)
        columns += [asdict(work) for work in lone]
        seconds.append(lone_s)
        num_tokens += sum(len(s.times_s) for s in streams)
        num_misplaced += misplaced(streams, found)
    if num_misplaced > MISPLACED * num_tokens:
        raise RunError(
            f"{num_misplaced} of {num_tokens} tokens came in another iteration than their stream "
            "says: the server preempts, or this machine is too busy to be measured"
        )
    names = [field.name for field in fields(Iterations)]
    joined = [np.concatenate([getattr(part, name) for part in parts]) for name in names]
    return Seen(Iterations(*joined), columns, np.concatenate(seconds), num_tokens, num_misplaced)


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
    beyond = seen.alone_s - np.array([mixed_s(terms, **work) for work in seen.alone])
    order = np.argsort(beyond)
    weight = np.cumsum(1 / seen.alone_s[order])
    middle = beyond[order][np.searchsorted(weight, weight[-1] / 2)]
    return terms, max(0.0, float(middle))


def local_vllm_yaml(
    found: Calibration,
    spec: ModelSpec,
    server: Mapping[str, Any],
    seen: Seen,
    score: pd.DataFrame,
) -> str:
    header = [
        "# This machine under vLLM: the local profile with iteration times of a real server.",
        "# Written by `python -m harness.calibrate measure --engine vllm`, from the token times",
        f"# of its clients; vLLM {server['vllm_version']} with {spec.name}, {measured_on()}.",
        f"# {seen.num_tokens - seen.num_misplaced} of {seen.num_tokens} tokens came in the "
        "iteration that their stream says.",
        *score_lines(score, "iterations"),
        "defaults:",
        "  - local",
        "  - _self_",
        "",
        "name: local_vllm",
        "calibration:",
    ]
    return "\n".join([*header, *yaml_lines(asdict(found), "  ")]) + "\n"
