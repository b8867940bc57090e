"""The files a run leaves: each is written whole or not at all, and a full disk is told plainly.

manifest.json, schedule.parquet and config.yaml are there from the start; requests.parquet and
events.parquet come at the end, also of an aborted run (gpu.parquet where there is a GPU);
summary.json of a complete run alone. The manifest's status is `begun` until the run says how it
ended, and stays so if it is killed.
Knows the layout on disk and nothing of what the numbers mean.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from harness.errors import UsageError, first_line
from harness.files import PARTIAL, YamlDumper, YamlLoader, read_json, replaced, write_text, writing
from harness.records.folder_lock import LOCK, FolderError
from harness.records.journal import JOURNAL
from harness.records.run_shape import check_events, check_requests, read_part
from harness.records.sources import Identity
from harness.records.token_log import TokenLog
from harness.schedule import Schedule

NOISE_FLOOR = "noise_floor.json"  # of `harness.comparing`: how far repeats of the run differ
RUN_BYTES = 0.6e6  # of a run: the mean over all runs of the four papers, which take 5 GB
# What a run leaves, and what was made of it; beside it, while it lasts, its journal.
FILES = (
    "schedule.parquet", "config.yaml", "manifest.json", "requests.parquet", "events.parquet",
    "gpu.parquet", "engine_metrics.parquet", "tokens.parquet", "summary.json", "run.png",
    "engine_metrics.png", "scaling.png", "report.html", NOISE_FLOOR,
)  # fmt: skip
LOGS = "logs"  # of an engine's processes
HALF_SCORED = ""  # the config_hash of a run while `harness.running.scored_anew` is at it
EARLIER = ".earlier"  # what `begin` found of these, until it is clear that this run takes its place


class RunFolder:
    """`path` need not exist yet. Every write raises RunError with the path and the OS's words.
    Who writes holds the folder (`harness.records.folder_lock`), which also removes an empty one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: set[str] = set()  # what the folder held before `begin`

    def held(self, identity: Identity, *, again: bool) -> FinishedRun | None:
        """The complete run of `identity` that the folder holds, under whatever SLO it was scored;
        None: it is free for that run, also where it holds one of the same values that other
        sources made.

        Raises FolderError where the folder holds anything else: another run, unless `again`, or
        files that are no run's, in any case.
        """
        try:
            found = self.manifest()
        except UsageError as error:
            if again:  # it was a run's, whatever has become of it
                return None
            raise UsageError(f"{error}; set again=true, or name another folder") from error
        if not found and all(map(_of_a_killed_run, self.path.glob("*"))):
            return None
        if "config_hash" not in found:
            raise FolderError(f"{self.path} holds files that are not a run's; name another folder")
        if again:
            return None
        if found.get("served_hash") != identity.served_hash:
            raise FolderError(
                f"{self.path} holds another run ({found['config_hash']}); name another folder or "
                "set again=true"
            )
        complete = found.get("status") == "complete" and (self.path / "summary.json").is_file()
        if not complete or found.get("sources") != identity.sources:
            return None
        try:
            return FinishedRun.read(self.path)
        except UsageError as error:
            raise UsageError(f"{error}; again=true repeats the run") from error

    def manifest(self) -> dict[str, Any]:
        """Empty: there is none. UsageError where it cannot be read."""
        path = self.path / "manifest.json"
        return read_json(path) if path.is_file() else {}

    def begin(self) -> None:
        """Makes the folder; an earlier run's files in it are set aside. Raises FolderError where
        the folder cannot be made."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.forget_earlier()  # of a run that was killed, as are half-written files
            for half in self.path.glob(PARTIAL):
                half.unlink()
            names = [*FILES, LOGS, JOURNAL]
            earlier = [self.path / name for name in names if (self.path / name).exists()]
            if earlier:
                (self.path / EARLIER).mkdir()
            for path in earlier:
                path.rename(self.path / EARLIER / path.name)
            self._found = {path.name for path in self.path.iterdir()}
        except OSError as error:
            told = f"cannot make the run folder {self.path}: {error.strerror}"
            raise FolderError(told) from error

    def forget_earlier(self) -> None:
        """An earlier run's files go, lest its summary outlive this run's failure."""
        if (self.path / EARLIER).exists():
            shutil.rmtree(self.path / EARLIER)

    def restore(self) -> None:
        """The folder as `begin` found it: for a command that turns out wrong after it."""
        for path in self.path.iterdir():
            if path.name not in self._found:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if EARLIER in self._found:
            for path in (self.path / EARLIER).iterdir():
                path.rename(self.path / path.name)
            (self.path / EARLIER).rmdir()

    def write_schedule(self, schedule: Schedule) -> None:
        path = self.path / "schedule.parquet"
        with writing(path):
            schedule.save(path)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """`config` resolved, as plain data."""
        text = yaml.dump(dict(config), Dumper=YamlDumper, sort_keys=False, allow_unicode=True)
        self._write_text("config.yaml", text)

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        self._write_json("manifest.json", manifest)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        self._write_json("summary.json", summary)

    def write_requests(self, table: pa.Table) -> None:
        # Token times hardly repeat: byte planes compress where a dictionary only costs.
        dictionary = ["model", "instance", "status", "error", "chunk_tokens.list.element"]
        times = ["token_times_s.list.element"]
        self._write_table(
            "requests.parquet", table, use_dictionary=dictionary, use_byte_stream_split=times
        )

    def write_events(self, table: pa.Table) -> None:
        self._write_table("events.parquet", table)

    def write_gpu(self, rows: list[dict[str, Any]]) -> None:
        """The samples of GpuMonitor; no file where there was no GPU."""
        if rows:
            self._write_table("gpu.parquet", pa.Table.from_pylist(rows))

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        self._write_text(name, text)

    def _write_text(self, name: str, text: str) -> None:
        with writing(self.path / name):
            write_text(self.path / name, text)

    def _write_table(self, name: str, table: pa.Table, **options: Any) -> None:
        path = self.path / name
        with writing(path), replaced(path) as temporary:
            pq.write_table(table, temporary, compression="zstd", **options)


def _of_a_killed_run(path: Path) -> bool:
    """Whether it is in a run's folder before there is a manifest."""
    ours = path.name == EARLIER or path.match(PARTIAL)
    return ours or path.name.startswith((LOCK, ".nfs"))  # removed, and open on another host


@dataclass(slots=True, eq=False)
class FinishedRun:
    """What a complete run's folder holds, for those who read results: tables and plots."""

    path: Path
    config: dict[str, Any]
    manifest: dict[str, Any]
    summary: dict[str, Any]
    requests: pa.Table

    @property
    def invalid(self) -> str:
        """Why the run is INVALID; empty: it is VALID."""
        verdict = self.summary["verdict"]
        return "; ".join(verdict["reasons"]) or verdict["status"].removeprefix("VALID")

    @property
    def times_known(self) -> bool:
        """Whether the times of single tokens are; some servers tell no more than counts."""
        return self.summary["slo_attainment"]["token"] is not None

    @property
    def log(self) -> TokenLog:
        """What summary.json is of: an answer that was allowed to end early asked for no more."""
        log, answers = TokenLog.from_table(self.requests), self.summary.get("answers", {})
        return log.as_ended() if answers.get("num_early") else log

    def number(self, name: str) -> float:
        """A number of summary.json by its dotted name. Raises UsageError where there is none."""
        found: Any = self.summary
        left = name
        while left:
            keys = found if isinstance(found, dict) else {}
            fitting = [key for key in keys if f"{left}.".startswith(f"{key}.")]
            if not fitting:
                valid = ", ".join(sorted(keys)) or "none below it"
                raise UsageError(f"summary.json has no {name}; valid in place of {left}: {valid}")
            key = max(fitting, key=len)  # names of models have dots
            found, left = found[key], left[len(key) + 1 :]
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            why = "too few requests for it" if found is None else "it is no number"
            raise UsageError(f"{name} is {found} in {self.path}: {why}")
        return float(found)

    def events(self) -> pa.Table:
        """UsageError where there are none, or they are damaged."""
        path = self.path / "events.parquet"
        if not path.is_file():
            raise UsageError(f"{self.path} has no events.parquet")
        return _read_table(path, check_events)

    def event_rows(self) -> list[dict[str, Any]]:
        """The events, each with its fields decoded."""
        return [row | {"fields": json.loads(row["fields"])} for row in self.events().to_pylist()]

    @staticmethod
    def load(path: Path) -> FinishedRun:
        """Raises UsageError unless `path` is the folder of a run that was completed, and of which
        all is of one SLO."""
        found = FinishedRun.read(path)
        if found.manifest["config_hash"] == HALF_SCORED:
            raise UsageError(
                f"{path} is not a complete run's folder: it is being scored for another SLO, or "
                "that was killed; the run's command scores it"
            )
        return found

    @staticmethod
    def read(path: Path) -> FinishedRun:
        """As `load`, also of a run that is half scored: its records are whole."""
        if (path / JOURNAL).is_file():
            raise UsageError(
                f"{path} is not a complete run's folder: the run is under way, or was killed; "
                f"then python -m harness recover {path} makes requests.parquet of its journal"
            )
        for name in ("config.yaml", "manifest.json", "requests.parquet", "summary.json"):
            if not (path / name).is_file():
                raise UsageError(f"{path} is not a complete run's folder: it has no {name}")
        manifest, summary = (read_part(path / name) for name in ("manifest.json", "summary.json"))
        name = "config.yaml"
        try:
            config = yaml.load((path / name).read_text(), YamlLoader)
        except (ValueError, yaml.YAMLError, OSError) as error:
            raise UsageError(f"{path / name} is damaged: {first_line(error)}") from error
        requests = _read_table(path / "requests.parquet", check_requests)
        if len(requests) != summary["num_requests"]:
            raise UsageError(
                f"{path} is damaged: requests.parquet has {len(requests)} requests, and "
                f"summary.json tells of {summary['num_requests']}"
            )
        return FinishedRun(path, config, manifest, summary, requests)


def _read_table(path: Path, check: Callable[[pa.Table], None]) -> pa.Table:
    """Raises UsageError where it is none, or `check` raises ValueError."""
    try:
        found = pq.read_table(path)
        check(found)
    except (ValueError, pa.ArrowException, OSError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {first_line(error)}") from error
    return found
