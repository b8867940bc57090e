"""One experiment from a composed configuration to a run folder: the place that knows every part.

prepare (no file is written, every user error is found) → serve → write. Which world it is was
decided by the engine that the configuration names; nothing here asks.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hydra.utils import get_method
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from harness.client import Client
from harness.clock import Loop
from harness.cluster import Cluster, ModelSpec
from harness.config import build, typed
from harness.engine_api import Engine, Experiment
from harness.errors import UsageError
from harness.fit import fit_context, models_of_schedule
from harness.gpu_monitor import GpuMonitor
from harness.hardware import Hardware
from harness.manifest import ended, hash_of, manifest
from harness.metrics import summarise
from harness.options import known_keys, plain
from harness.progress import ProgressBar
from harness.record import Recorder
from harness.report import end_table
from harness.request import Request
from harness.run_folder import FinishedRun, RunFolder
from harness.schedule import Schedule
from harness.slo import Slo
from harness.sweep import SWEEP_ID_VARIABLE
from harness.system import System
from harness.tables import events_table, requests_table
from harness.tracking import Tracker

GROUPS = ("system", "workload", "model", "hardware", "engine", "slo", "tracking", "data", "client")
# Keys that say how a run is shown or where its data lies, not what is run.
PRESENTATION = ("tracking", "progress", "again", "data", "figure", "runs_dir")


@dataclass(kw_only=True, slots=True)
class Options:
    """The keys of conf/config.yaml that belong to no group."""

    seed: int
    fit_context: str
    figure: str  # module.function that draws a finished run's figure, given its folder
    progress: bool
    again: bool
    runs_dir: str


KEYS = (*GROUPS, *(field.name for field in fields(Options)))


@dataclass(slots=True)
class Prepared:
    """An experiment whose every part has been built and checked."""

    config: dict[str, Any]
    options: Options
    schedule: Schedule
    models: dict[str, ModelSpec]
    hardware: Hardware
    engine: Engine
    slo: Slo
    tracker: Tracker
    client: Client.Config


def prepare(config: DictConfig) -> Prepared:
    """Builds what needs no device. Raises UsageError for everything a user can get wrong."""
    known_keys(config, KEYS)
    scalars = OmegaConf.create({field.name: config[field.name] for field in fields(Options)})
    options = typed(scalars, Options, "config")
    hardware = typed(config.hardware, Hardware, "hardware")
    spec = typed(config.model, ModelSpec, "model")
    data = build(config.data, "data")
    schedule = build(config.workload, "workload", data=data, seed=options.seed).schedule()
    models = models_of_schedule(schedule, spec)
    return Prepared(
        config=plain(config),
        options=options,
        schedule=fit_context(schedule, models, options.fit_context),
        models=models,
        hardware=hardware,
        engine=build(config.engine, "engine"),
        slo=build(config.slo, "slo"),
        tracker=build(config.tracking, "tracking", announce=announce),
        client=typed(config.client, Client.Config, "client"),
    )


def run(
    config: DictConfig,
    *,
    output_dir: Path,
    named: bool,
    choices: Mapping[str, str],
    overrides: Sequence[str],
) -> Path:
    """Runs `config` and returns its folder: `output_dir` if it is `named` for it, else one in it.

    A run that is already complete there is shown, not repeated, unless `again` is set.
    """
    console = Console()
    parts = prepare(config)
    what = {key: value for key, value in parts.config.items() if key not in PRESENTATION}
    digest = hash_of(what | {"schedule": parts.schedule.sha256()})
    name = f"{choices['system']}-{choices['workload']}-{choices['engine']}-{digest}"
    folder = RunFolder(output_dir if named else output_dir / name)
    if not parts.options.again and is_complete(folder.path, digest):
        console.print(f"already run; again=true repeats it: {folder.path}", soft_wrap=True)
        held = FinishedRun.load(folder.path)
        # A sweep finds its runs by this mark, the reused ones too.
        folder.write_manifest(held.manifest | {"sweep_id": os.environ.get(SWEEP_ID_VARIABLE)})
        show(console, held)
        return folder.path
    folder.begin()
    try:
        description = manifest(
            world=parts.engine.world,
            choices=choices,
            overrides=overrides,
            config_hash=digest,
            command=sys.argv,
            hardware=parts.hardware,
            provenance=parts.schedule.provenance,
            schedule_sha256=parts.schedule.sha256(),
            seeds={"seed": parts.options.seed},
            resolved={},
            started=datetime.now(UTC),
            sweep_id=os.environ.get(SWEEP_ID_VARIABLE),
        )
        folder.write_schedule(parts.schedule)
        folder.write_config(parts.config)
        folder.write_manifest(description)
        tracked(parts, folder, description, config)
    except UsageError:
        folder.remove()
        raise
    show(console, FinishedRun.load(folder.path))
    return folder.path


def tracked(
    parts: Prepared, folder: RunFolder, description: dict[str, Any], config: DictConfig
) -> None:
    """Serves, draws the figure, and has the tracker follow, to the end or to an abort."""
    parts.tracker.start(parts.config, folder.path.name, folder.path)
    try:
        serve_and_write(parts, folder, description, config)
        get_method(parts.options.figure)(folder.path)
    except BaseException:
        parts.tracker.finish(None, None)
        raise
    finished = FinishedRun.load(folder.path)
    parts.tracker.finish(finished.summary, finished.requests)


def is_complete(path: Path, digest: str) -> bool:
    """Whether `path` holds this very run; UsageError where it holds another one, complete."""
    if not (path / "summary.json").exists():
        return False
    held = FinishedRun.load(path).manifest["config_hash"]
    if held != digest:
        raise UsageError(
            f"{path} holds another run ({held}); name another folder or set again=true"
        )
    return True


def show(console: Console, finished: FinishedRun) -> None:
    console.print(end_table(finished.summary, finished.manifest))
    console.print(f"{finished.path}", soft_wrap=True)


def serve_and_write(
    parts: Prepared, folder: RunFolder, description: dict[str, Any], config: DictConfig
) -> None:
    """Serves the schedule and writes what came of it, also when it ends in an exception: then
    without summary.json and with the reason in the manifest."""
    requests = parts.schedule.requests()
    recorder = Recorder(requests)
    loop = parts.engine.make_loop()
    gpus = GpuMonitor()
    started_s = time.monotonic()
    experiment = Experiment(
        loop=loop,
        recorder=recorder,
        models=parts.models,
        hardware=parts.hardware,
        run_dir=folder.path,
        seed=parts.options.seed,
        scheduler={k: v for k, v in parts.config["system"].items() if k != "_target_"},
        announce=announce,
    )

    def end(status: Any, reason: str = "") -> None:
        resolved, gpu, at = parts.engine.resolved(), gpus.summary(), datetime.now(UTC)
        # The manifest first: on a full disk it is the least that must be told.
        folder.write_manifest(
            ended(description, status, reason=reason, resolved=resolved, gpu=gpu, at=at)
        )
        folder.write_requests(requests_table(recorder))
        folder.write_events(events_table(recorder))
        folder.write_gpu(gpus.rows)

    try:
        with gpus, parts.engine.start(experiment) as cluster:
            check_capacity(parts, cluster)
            system = build(config.system, "system", loop=loop, cluster=cluster)
            client = Client(parts.client, loop=loop, recorder=recorder, system=system)
            quiet = Console(stderr=True, quiet=not parts.options.progress)
            with ProgressBar(len(requests), quiet) as bar:
                loop.run(play(loop, recorder, system, client, requests, bar))
    except UsageError:
        raise
    except BaseException as error:
        end("aborted", f"{type(error).__name__}: {error}")
        raise
    end("complete")
    folder.write_summary(
        summarise(
            requests_table(recorder),
            parts.slo,
            num_devices=parts.hardware.num_devices,
            wall_s=time.monotonic() - started_s,
        )
    )


async def play(
    loop: Loop,
    recorder: Recorder,
    system: System,
    client: Client,
    requests: Sequence[Request],
    bar: ProgressBar,
) -> None:
    # A bounded number of updates, also of a simulated month.
    interval_s = max(0.25, requests[-1].arrival_s / 2000)

    async def show_progress() -> None:
        while True:
            bar.update(recorder, loop.now)
            await loop.sleep(interval_s)

    loop.spawn(system.serve(), name="system")
    loop.spawn(show_progress(), name="progress")
    await client.play(requests)


def announce(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def check_capacity(parts: Prepared, cluster: Cluster) -> None:
    """Raises UsageError where a request is larger than an instance's whole KV pool."""
    longest = int((parts.schedule.prompt_tokens + parts.schedule.output_tokens).max())
    for instance in cluster.instances:
        room = instance.kv.num_blocks * instance.kv.block_tokens
        if longest > room:
            raise UsageError(
                f"the longest request needs KV for {longest} tokens, but {instance.name} has "
                f"room for {room}; raise engine.num_kv_blocks, or lower model.max_position (longer "
                "prompts are then cut) or workload.lengths.max_prompt_tokens"
            )
