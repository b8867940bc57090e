"""Serves a prepared experiment and writes what came of it, to the end or to an abort.

Which engine it is was decided by the configuration; nothing here asks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
from rich.console import Console

from harness.clock import Loop
from harness.cluster import Cluster
from harness.engine_api import Experiment
from harness.errors import RunError, UsageError
from harness.placement import Demand, Placement
from harness.records import certificate
from harness.records.device_events import Event
from harness.records.gpu_monitor import GpuMonitor
from harness.records.journal import JOURNAL, Journal
from harness.records.manifest import ended
from harness.records.metrics import summarise
from harness.records.record import Recorder
from harness.records.run_folder import RunFolder
from harness.records.tables import events_table, requests_table
from harness.running import faults
from harness.running.capacity_check import check_capacity
from harness.running.client import Client, Player
from harness.running.closed_loop import ClosedLoop
from harness.running.cores import others_watched, own_core
from harness.running.dashboard import Dashboard
from harness.running.interrupts import check
from harness.running.prepare import LIVE, Prepared, announce
from harness.running.progress import ProgressBar
from harness.running.session_loop import SessionLoop
from harness.running.standstill import Standstill
from harness.running.tracking import EachSecond
from harness.system import System


def serve(parts: Prepared, folder: RunFolder, manifest: Mapping[str, Any]) -> None:
    """Leaves requests, events, summary and manifest in `folder`. Whatever ends the run before
    leaves the manifest with the reason and what was recorded, and no summary. The manifest says
    that a run is complete after all else has been written."""
    gpus = GpuMonitor()
    started_s = time.monotonic()

    def settled(status: Any, reason: str = "") -> dict[str, Any]:
        return ended(
            manifest, status, reason=reason, resolved=parts.engine.resolved(),
            gpu=gpus.summary(), at=datetime.now(UTC),
        )  # fmt: skip

    with _recorder(parts, folder) as recorder:
        try:
            if manifest["certificate"] is not None:
                recorder.event(certificate.EVENT, "client", 0.0, 0.0, **manifest["certificate"])
            with gpus:
                _serve(parts, folder, recorder, _placements(parts, manifest["choices"]["system"]))
            check()
            table = _write_records(folder, recorder, gpus)
            wall_s = time.monotonic() - started_s
            folder.write_summary(summary_of(parts, table, recorder.events, wall_s))
            folder.write_manifest(settled("complete"))
        except UsageError:
            raise  # a wrong command after all: nothing of it is kept
        except BaseException as error:
            why = settled("aborted", f"{type(error).__name__}: {error}")
            _write_abort(folder, recorder, gpus, why)
            raise


def summary_of(
    parts: Prepared, table: pa.Table, events: Sequence[Event], wall_s: float
) -> dict[str, Any]:
    """The content of summary.json for a run of `parts`."""
    num_devices = parts.hardware.num_devices if parts.engine.devices_known else None
    return summarise(
        table, parts.slo, events=events, num_devices=num_devices, wall_s=wall_s,
        simulated=parts.engine.name == "sim", stall_s=parts.metrics.stall_s,
    )  # fmt: skip


@contextmanager
def _recorder(parts: Prepared, folder: RunFolder) -> Iterator[Recorder]:
    """Yields a recorder, with a journal while a live run lasts, and until its requests table is
    written."""
    requests = parts.schedule.requests()
    if parts.engine.name == "sim":
        yield Recorder(requests)
        return
    recorder = Journal(requests, folder.path / JOURNAL, announce)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.close()
        if (folder.path / "requests.parquet").is_file():
            (folder.path / JOURNAL).unlink(missing_ok=True)


def _serve(
    parts: Prepared, folder: RunFolder, recorder: Recorder, placements: Sequence[Placement]
) -> None:
    ours = parts.engine.has_devices and parts.engine.devices_known
    faults.check(parts.faults, parts.schedule, len(placements), ours=ours)
    live, loop = parts.engine.name != "sim", parts.engine.make_loop()
    plugin = getattr(parts.system, "plugin", None)
    experiment = Experiment(
        loop=loop, recorder=recorder, models=parts.models, hardware=parts.hardware,
        placements=placements, run_dir=folder.path, seed=parts.options.seed, announce=announce,
        scheduler={k: v for k, v in parts.config["system"].items() if k != "_target_"},
        concurrency=parts.client.concurrency, processes=parts.client.processes,
        plugin=partial(plugin, parts.system_config, placements) if plugin is not None else None,
    )  # fmt: skip
    with parts.engine.start(experiment) as cluster:
        check_capacity(parts.schedule, cluster)
        system = _system(parts, loop, cluster)
        client = _client(parts, loop, recorder, system)
        with (
            faults.striking(parts.faults, cluster, getattr(system, "parts", {}), loop, recorder),
            _shown(parts, recorder, cluster) as bar,
        ):
            second = EachSecond(recorder, parts.tracker.second)
            standstill = Standstill(recorder, loop)

            def watch(now_s: float) -> None:
                bar.update(recorder, now_s)
                if live:  # a simulated one is over before one could look at it
                    second.update(now_s)
                else:
                    standstill.look(now_s)

            with (
                others_watched(recorder, loop) if live else nullcontext(),
                own_core() if live and ours else nullcontext(),
            ):
                loop.run(_play(loop, system, client, recorder, watch))
        if cluster.elastic is not None:
            cluster.elastic.end()


def _shown(parts: Prepared, recorder: Recorder, cluster: Cluster) -> ProgressBar | Dashboard:
    """The display that `progress` asks for; a dashboard on a terminal alone."""
    console = Console(stderr=True, quiet=not parts.options.progress)
    if parts.options.progress == LIVE:
        if console.is_terminal:
            workload = parts.schedule.provenance.source
            title = f"{parts.system.__name__} x {workload}, {parts.engine.name}"
            return Dashboard(title, recorder, cluster, console)
        announce(f"progress={LIVE} needs a terminal: a line now and then instead")
    return ProgressBar(len(recorder.records), console)


def _placements(parts: Prepared, system: str) -> Sequence[Placement]:
    """What the system asks for, before there is anything. UsageError where that is no instance
    and the engine has nothing but instances."""
    duration_s = max(parts.schedule.duration_s, 1.0)
    counts = Counter(parts.schedule.model)
    demand = Demand({name: count / duration_s for name, count in counts.items()})
    placements = list(parts.system.place(parts.system_config, parts.models, parts.hardware, demand))
    if not placements and parts.engine.has_devices:
        raise UsageError(f"system={system} uses no device: run it with engine=none")
    return placements


def _system(parts: Prepared, loop: Loop, cluster: Cluster) -> System:
    try:
        system: System = parts.system(parts.system_config, loop=loop, cluster=cluster)
    except ValueError as error:  # what a system says of a cluster that it cannot run on
        raise UsageError(str(error)) from error
    return system


def _client(parts: Prepared, loop: Loop, recorder: Recorder, system: System) -> Player:
    config = parts.client
    given: dict[str, Any] = {"loop": loop, "recorder": recorder, "system": system}
    if parts.schedule.sessions is not None:
        return SessionLoop(config.drain_s, **given)
    if config.concurrency is None:
        return Client(config.drain_s, **given)
    return ClosedLoop(config.concurrency, config.drain_s, **given)


async def _play(
    loop: Loop, system: System, client: Player, recorder: Recorder, watch: Callable[[float], None]
) -> None:
    requests = [record.request for record in recorder.records.values()]
    # A bounded number of updates, also of a simulated month.
    interval_s = max(0.25, requests[-1].arrival_s / 2000)

    async def show_progress() -> None:
        while True:
            check()
            watch(loop.now)
            await loop.sleep(interval_s)

    loop.spawn(system.serve(), name="system")
    loop.spawn(show_progress(), name="progress")
    await client.play(requests)


def _write_records(folder: RunFolder, recorder: Recorder, gpus: GpuMonitor) -> pa.Table:
    """The requests table, as written."""
    table = requests_table(recorder)
    folder.write_requests(table)
    folder.write_events(events_table(recorder))
    folder.write_gpu(gpus.rows)
    return table


def _write_abort(
    folder: RunFolder, recorder: Recorder, gpus: GpuMonitor, manifest: Mapping[str, Any]
) -> None:
    """The manifest first: on a full disk it is the least that must be told. No summary: it may
    have been written, but nothing after it."""
    try:
        (folder.path / "summary.json").unlink(missing_ok=True)
        folder.write_manifest(manifest)
        _write_records(folder, recorder, gpus)
    except (RunError, ValueError, OverflowError) as error:  # of the disk, or of some odd value
        announce(f"the aborted run's records are incomplete: {error}")
