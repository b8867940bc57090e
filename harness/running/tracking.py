"""Weights & Biases: config, summary, per-second series, figures and the run folder.

The only file that knows wandb. Online where an API key is set up, offline otherwise, and it
never asks. wandb failing must not cost a run its results: that is told in one line and tracking
ends. `tracking=none` is `NullTracker`.
"""

from __future__ import annotations

import netrc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

import pyarrow as pa

from harness.configuration.checks import one_of
from harness.errors import first_line
from harness.records.manifest import hash_of
from harness.records.metrics import over_time
from harness.records.record import Recorder
from harness.records.run_folder import FILES, FinishedRun

MODES = ("auto", "online", "offline")


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

    def start(self, config: Mapping[str, Any], name: str, run_dir: Path) -> None:
        """Is called before the run, once `run_dir` exists. `config` is the resolved one, as plain
        data."""

    def second(self, row: Mapping[str, float]) -> None:
        """Is called while a live run lasts, about once a second, with what `EachSecond` counts."""

    def finish(self, *, complete: bool) -> None:
        """Is called after the run's files are written; not complete: it was aborted."""

    def sweep(
        self, rows: Sequence[Mapping[str, Any]], keys: Sequence[str], name: str, folder: Path
    ) -> None:
        """Is called after a sweep: `rows` of one set of columns, a row a run; `keys`: the columns
        that were swept, the one to draw over first. `folder` holds the runs."""


class NullTracker(Tracker):
    """Tracks nothing."""


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

    def start(self, config: Mapping[str, Any], name: str, run_dir: Path) -> None:
        self._run_dir = run_dir
        simulated = "SimEngine" in str(config.get("engine"))
        job_type = "simulated run" if simulated else "live run"
        self._attempt(lambda: self._init(config, name, hash_of(config), job_type))

    def second(self, row: Mapping[str, float]) -> None:
        self._track(lambda: self._run.log({f"live/{key}": row[key] for key in row}))

    def sweep(
        self, rows: Sequence[Mapping[str, Any]], keys: Sequence[str], name: str, folder: Path
    ) -> None:
        self._run_dir = folder
        self._attempt(lambda: self._init({"swept": list(keys)}, name, name, "sweep"))
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

    def _init(self, config: Mapping[str, Any], name: str, run_id: str, job_type: str) -> None:
        """`run_id`: a run of the same configuration, seed included, takes the place of an earlier
        one, as when an INVALID run is made again."""
        import wandb  # 0.3 s that tracking=none need not pay

        # It would advertise Weave on the terminal wherever a library of OpenAI's is imported.
        os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")
        mode = wandb_mode(self._config.mode)
        self._run = wandb.init(
            project=self._config.project,
            group=self._config.group,
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
                x_disable_stats=True,  # its sampling thread would compete with the client
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
        _log_series(self._run, finished.requests)
        self._run.summary.update(finished.summary)
        figure = self._run_dir / "run.png"
        if figure.exists():
            self._run.log({"figures/run": wandb.Image(str(figure))})
        artifact = wandb.Artifact(self._run_dir.name or self._run.id, type="run")
        for path in (self._run_dir / name for name in FILES):
            if path.exists():
                # immutable: uploaded from the run folder itself, not from a copy elsewhere
                artifact.add_file(str(path), policy="immutable", skip_cache=True)
        self._run.log_artifact(artifact)


def wandb_mode(mode: str) -> Literal["online", "offline"]:
    """`auto` is online where wandb would find an API key (WANDB_API_KEY or netrc), else offline."""
    if mode == "auto":
        return "online" if _has_api_key() else "offline"
    return "online" if mode == "online" else "offline"


def _log_series(run: Any, requests: pa.Table) -> None:
    """Logs one step for each second of the run."""
    run.define_metric("per_second/*", step_metric="per_second/time_s")
    columns = over_time(requests, interval_s=1.0)
    series = {f"per_second/{key}": column for key, column in columns.items()}
    for row in zip(*(column.tolist() for column in series.values()), strict=True):
        # nan: no first token in that second; wandb draws a gap where the key is absent
        run.log({key: value for key, value in zip(series, row, strict=True) if value == value})


def _log_sweep(run: Any, rows: Sequence[Mapping[str, Any]], keys: Sequence[str], name: str) -> None:
    """One table, and the mean TTFT over the first key, a line for each value of the second."""
    import wandb

    # a dot means something in W&B's plots
    columns = {key: key.replace(".", "_") for key in rows[0]}
    table = wandb.Table(columns=list(columns.values()), data=[list(row.values()) for row in rows])
    x, *others = [columns[key] for key in keys] or [columns["run"]]
    plot = wandb.plot.line(
        table, x, columns["ttft_s.mean"], stroke=others[0] if others else None, title=name,
        split_table=True,
    )  # fmt: skip
    run.log({"sweep/table": table, "sweep/ttft_mean_s": plot})


def _has_api_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    path = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    return host is not None and path.is_file() and host in netrc.netrc(path).hosts
