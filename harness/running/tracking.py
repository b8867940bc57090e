"""Weights & Biases: config, summary, series over time, figures, the run folder, and what it used.

The only file that knows wandb. Online where an API key is set up, offline otherwise, and it
never asks. wandb failing must not cost a run its results: that is told in one line and tracking
ends. `tracking=none` is the base, which tracks nothing.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.configuration.checks import one_of
from harness.errors import first_line
from harness.records.attainment import good_requests
from harness.records.metrics import over_time
from harness.records.record import Recorder
from harness.records.run_folder import FILES, FinishedRun
from harness.records.slo import slo_of
from harness.records.smoothness import fluidity_indices, qoe_of_requests
from harness.records.sources import Identity

MODES = ("auto", "online", "offline")
# Of the manifest, in W&B's config: what runs are filtered by there.
KNOWN_BY = ("choices", "simulated", "config_hash", "schedule_sha256", "git")


class EachSecond:
    """Calls `tell` about once a second of a live run, with what the recorder counted since: sampled
    while the run lasts, where the series over the token log (`over_time`) come after it."""

    def __init__(self, recorder: Recorder, tell: Callable[[Mapping[str, float]], None]) -> None:
        self._recorder, self._tell = recorder, tell
        self._before = (0.0, 0, 0, 0)

    def update(self, now_s: float) -> None:
        """Tells how the run goes, at most once a second; may be called as often as one likes."""
        since_s, *before = self._before
        if now_s - since_s < 1.0:
            return
        recorder = self._recorder
        now = recorder.num_sent, recorder.num_done, recorder.num_tokens
        sent, done, tokens = ((b - a) / (now_s - since_s) for a, b in zip(before, now, strict=True))
        self._before = now_s, *now
        self._tell(
            {
                "time_s": now_s, "sent_per_s": sent, "done_per_s": done, "tokens_per_s": tokens,
                "running": recorder.num_running, "queued": recorder.num_queued,
            }
        )  # fmt: skip


class Tracker:
    """What every tracker can be told; this base tracks nothing. Built as `cls(config,
    announce=...)`; `announce` tells the user one line."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        pass

    def __init__(self, config: Any, *, announce: Callable[[str], None]) -> None:
        self._config, self._announce = config, announce

    def start(self, config: Mapping[str, Any], manifest: Mapping[str, Any], run_dir: Path) -> None:
        """Is called before the run, once `run_dir` exists. `config` is the resolved one, as plain
        data; `manifest` that of a run under way."""

    def second(self, row: Mapping[str, float]) -> None:
        """Is called while a live run lasts, about once a second, with what `EachSecond` counts."""

    def finish(self, *, complete: bool) -> None:
        """Is called after the run's files are written; not complete: it was aborted."""

    def sweep(
        self, rows: Sequence[Mapping[str, Any]], keys: Sequence[str], name: str, folder: Path
    ) -> None:
        """Is called after a sweep: `rows` of one set of columns, a row a run; `keys`: the columns
        that were swept, the one to draw over first. `folder` holds the runs."""


class WandbTracker(Tracker):
    """wandb's own files go to `run_dir`/wandb; `wandb sync` uploads an offline run later."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        mode: str  # auto, online or offline
        project: str
        group: str | None  # runs of one sweep share it
        tags: list[str]

    def __init__(self, config: Config, *, announce: Callable[[str], None]) -> None:
        one_of(config.mode, MODES, "tracking.mode", "choose one of")
        super().__init__(config, announce=announce)
        self._run: Any = None  # wandb's; None: not tracking, or wandb failed
        self._run_dir = Path()

    def start(self, config: Mapping[str, Any], manifest: Mapping[str, Any], run_dir: Path) -> None:
        """The run's id is that of what is served and of the code, and of the host if it is live:
        made again, or scored for another SLO, it takes the place of its own. Runs that differ in
        values alone are a group, where no sweep is one."""
        self._run_dir = run_dir
        job_type = "simulated run" if manifest["simulated"] else "live run"
        group = "-".join(manifest["choices"][each] for each in ("system", "workload", "engine"))
        known_by = {**config, **{key: manifest[key] for key in KNOWN_BY}}
        run_id = str(Identity(manifest["served_hash"], manifest["sources"]))
        if not manifest["simulated"]:
            run_id += "-" + _plain(platform.node())
        self._attempt(lambda: self._init(known_by, run_dir.name, run_id, job_type, group))

    def second(self, row: Mapping[str, float]) -> None:
        self._track(lambda: self._run.log({f"live/{key}": row[key] for key in row}))

    def sweep(
        self, rows: Sequence[Mapping[str, Any]], keys: Sequence[str], name: str, folder: Path
    ) -> None:
        self._run_dir = folder
        self._attempt(lambda: self._init({"swept": list(keys)}, name, name, "sweep", None))
        self._track(lambda: _log_sweep(self._run, rows, keys, name))
        self._track(lambda: self._end(exit_code=0))

    def finish(self, *, complete: bool) -> None:
        if complete:
            self._track(self._log)
        self._track(lambda: self._end(exit_code=0 if complete else 1))

    def _track(self, action: Callable[[], None]) -> None:
        """Runs `action` unless the tracking has ended."""
        if self._run is not None:
            self._attempt(action)

    def _attempt(self, action: Callable[[], None]) -> None:
        """Runs `action`; whatever wandb raises ends the tracking and not the run."""
        try:
            action()
        except Exception as error:
            self._run = None
            said = first_line(error)
            self._announce(f"W&B tracking stopped: {said}; the run's own files are unaffected")

    def _init(
        self, config: Mapping[str, Any], name: str, run_id: str, job_type: str, group: str | None
    ) -> None:
        import wandb  # 0.3 s that tracking=none need not pay

        # It would advertise Weave on the terminal wherever a library of OpenAI's is imported.
        os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")
        mode = wandb_mode(self._config.mode)
        self._run = wandb.init(
            project=self._config.project,
            group=self._config.group or group,
            tags=self._config.tags,
            id=run_id,
            job_type=job_type,
            name=name,
            dir=str(self._run_dir),
            config=dict(config),
            mode=mode,
            settings=wandb.Settings(
                silent=True,
                console="off",
                init_timeout=30,
                x_disable_stats=True,  # it would compete with the client; GpuMonitor samples
                disable_git=True,
                disable_code=True,
            ),
        )
        self._run.define_metric("live/*", step_metric="live/time_s")
        # wandb's first call imports for 0.1 s, in which the client could send nothing.
        self._run.log({"live/time_s": 0.0})
        if mode == "online":
            self._announce(f"W&B: {self._run.url}")

    def _end(self, exit_code: int) -> None:
        import wandb

        run, self._run = self._run, None
        run.finish(exit_code=exit_code)
        # finish returns before wandb's own process has written everything; its end means it has.
        wandb.teardown()

    def _log(self) -> None:
        import wandb

        finished = FinishedRun.load(self._run_dir)
        self._run.summary.update(finished.summary)
        _log_series(self._run, "per_second", pa.table(over_time(finished.requests, 1.0)))
        _log_requests(self._run, finished)
        if figures := sorted(self._run_dir.glob("*.png")):
            self._run.log({f"figures/{path.stem}": wandb.Image(str(path)) for path in figures})
        made = wandb.Artifact(self._run_dir.name or self._run.id, type="run")
        for path in (self._run_dir / name for name in FILES):
            if path.exists():
                _add(made, path)
        self._run.log_artifact(made)
        self._use(finished.manifest)
        if (samples := self._run_dir / "gpu.parquet").exists():
            _log_series(self._run, "gpu", by_gpu(pq.read_table(samples)))

    def _use(self, manifest: Mapping[str, Any]) -> None:
        """The schedule and the hardware profile are artifacts of their own, which runs share."""
        import wandb

        schedule = wandb.Artifact(f"schedule-{manifest['schedule_sha256'][:12]}", type="schedule")
        _add(schedule, self._run_dir / "schedule.parquet")
        name = _plain(f"hardware-{manifest['hardware']['name']}")
        profile = wandb.Artifact(name, type="profile")
        with profile.new_file("hardware.json") as file:
            json.dump(manifest["hardware"], file, indent=1)
        for used in (schedule, profile):
            # what use_artifact calls, which itself refuses to work offline
            self._run._log_artifact(used, is_user_created=True, use_after_commit=True)


def wandb_mode(mode: str) -> Literal["online", "offline"]:
    """`auto` is online where wandb would find an API key (WANDB_API_KEY or netrc), else offline."""
    from wandb.sdk.lib.wbauth import read_netrc_auth

    if mode != "auto":
        return "online" if mode == "online" else "offline"
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    key = os.environ.get("WANDB_API_KEY") or read_netrc_auth(host=host)
    return "online" if key else "offline"


def _log_requests(run: Any, finished: FinishedRun) -> None:
    """A histogram of each latency of requests, of lag and smoothness; and of those that arrived in
    each second the latencies' means, and the share within the SLO."""
    import wandb

    log, slo = finished.log, slo_of(finished.summary)
    good = good_requests(log, slo, times_known=finished.times_known)
    latencies_s = {"ttft_s": log.ttft_s, "tpot_s": log.tpot_s, "e2e_s": log.e2e_s}
    columns = {"time_s": np.floor(log.arrival_s), **latencies_s, "within_slo": good.astype(float)}
    served = pa.table({key: pa.array(of, from_pandas=True) for key, of in columns.items()})
    means = served.group_by("time_s").aggregate([(key, "mean") for key in [*columns][1:]])
    means = means.rename_columns([key.removesuffix("_mean") for key in means.column_names])
    _log_series(run, "by_arrival", means.sort_by("time_s"))
    drawn = latencies_s | {"send_lag_s": log.send_lag_s}
    if finished.times_known:
        smooth = {"fluidity_index": fluidity_indices(log, slo), "qoe": qoe_of_requests(log, slo)}
        drawn |= {"tbt_s": log.tbt_s()} | smooth
    histograms = {key: wandb.Histogram(of[np.isfinite(of)]) for key, of in drawn.items()}
    run.log({f"requests/{key}": histogram for key, histogram in histograms.items()})


def by_gpu(samples: pa.Table) -> pa.Table:
    """The samples of GpuMonitor, a column for each reading of each GPU."""
    frame = samples.to_pandas().pivot(index="time_s", columns="gpu")
    frame.columns = [f"{gpu}/{reading}" for reading, gpu in frame.columns]
    return pa.Table.from_pandas(frame.reset_index(), preserve_index=False)


def _log_series(run: Any, prefix: str, rows: pa.Table) -> None:
    """Logs one step for each row, over its `time_s`."""
    run.define_metric(f"{prefix}/*", step_metric=f"{prefix}/time_s")
    for row in rows.to_pylist():
        # nan, e.g. no first token in that second: wandb draws a gap where the key is absent
        known = {key: value for key, value in row.items() if value is not None and value == value}
        run.log({f"{prefix}/{key}": value for key, value in known.items()})


def _plain(name: str) -> str:
    """`name` in letters that W&B takes in ids and names."""
    return re.sub(r"[^\w.-]", "_", name)


def _add(artifact: Any, path: Path) -> None:
    """Uploaded from the run folder itself (immutable), not from a copy elsewhere."""
    artifact.add_file(str(path), policy="immutable", skip_cache=True)


def _log_sweep(run: Any, rows: Sequence[Mapping[str, Any]], keys: Sequence[str], name: str) -> None:
    """One table, and each number over the first key, a line for each value of the second."""
    import wandb

    # a dot means something in W&B's plots
    columns = {key: key.replace(".", "_") for key in rows[0]}
    table = wandb.Table(columns=list(columns.values()), data=[list(row.values()) for row in rows])
    x, *others = [columns[key] for key in keys] or [columns["run"]]
    stroke = others[0] if others else None
    plots = {
        f"sweep/{columns[y]}": wandb.plot.line(
            table, x, columns[y], stroke=stroke, title=f"{name}: {y}", split_table=True
        )
        for y in rows[0]
        if y not in keys and any(isinstance(row[y], int | float) for row in rows)
    }
    run.log({"sweep/table": table, **plots})
