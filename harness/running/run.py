"""One experiment from a composed configuration to a run folder: prepare, serve, draw, show."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from glob import escape
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pyarrow as pa
from omegaconf import DictConfig
from rich.console import Console

from harness.configuration.credentials import without_credentials
from harness.errors import InvalidRun, UsageError
from harness.records import certificate
from harness.records.end_table import end_table
from harness.records.folder_lock import locked
from harness.records.manifest import command_line, surroundings, utc
from harness.records.run_folder import FinishedRun, RunFolder
from harness.records.sources import Identity, why_again
from harness.running import device_lock, scored_anew
from harness.running.interrupts import check
from harness.running.prepare import Prepared, announce, prepare
from harness.running.serve import serve
from harness.running.sweep_points import mark


@dataclass(frozen=True, slots=True)
class Command:
    """How a run was asked for. `folder` is the run's own if it is `named`; else it gets one there.
    `choices`: the option of each group. `swept`: it is a point of a sweep."""

    folder: Path
    named: bool
    choices: Mapping[str, str]
    overrides: Sequence[str]
    swept: bool = False


def run(config: DictConfig, command: Command) -> float | None:
    """Runs `config`, shows what came of it and returns its `objective`: None of an INVALID run, and
    where none is asked for. Raises InvalidRun with strict=true and an INVALID run."""
    NoPandas().ask()
    parts = prepare(config)
    # Of a sweep that was killed, a process may still be at this very run, which then is there.
    wait = command.swept and not command.named
    obtained = obtain(parts, command, wait=wait, announce=announce)
    finished = FinishedRun.load(obtained.path)
    show(finished)
    if parts.options.strict and finished.invalid:
        raise InvalidRun(finished.path, finished.invalid)
    if parts.options.objective is None or finished.invalid:
        return None
    return finished.number(parts.options.objective)


class NoPandas(MetaPathFinder):
    """Finds no pandas. At the first value that it converts pyarrow imports pandas, which takes as
    long as a small run, to see whether the value is one of pandas': it asks once, and finds none.
    What uses pandas later still gets it."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "pandas":
            raise ImportError(name)

    def ask(self) -> None:
        if "pandas" not in sys.modules:
            sys.meta_path.insert(0, self)
            pa.array([0])
            sys.meta_path.remove(self)


@dataclass(frozen=True, slots=True)
class Obtained:
    path: Path
    again: str  # why a complete run was not enough; empty: it was, there was none, or only `again`


def obtain(
    parts: Prepared, command: Command, *, wait: bool, announce: Callable[[str], None]
) -> Obtained:
    """The folder of the run. One that is complete there is not repeated, unless `again` is set,
    other sources made it, or it was live and INVALID; which of these it was is announced. One that
    was scored under another SLO is scored anew; one that has to be served all the same leaves it
    as it is. `wait`: for another process that runs into the folder, see `locked`. Devices are
    always waited for."""
    check()
    identity = parts.identity()
    own = RunFolder(own_folder(identity, command))
    with ExitStack() as locks:
        locks.enter_context(locked(own.path, wait=wait))
        folder = own if command.named else RunFolder(scored_anew.place(own.path, identity))
        if folder.path != own.path:
            locks.enter_context(locked(folder.path, wait=wait))
        of_this_slo = scored_anew.served_for(folder.path) == identity.config_hash
        source = folder if parts.options.again or of_this_slo else own
        held = source.held(identity, again=parts.options.again)
        if parts.options.again:
            invalid = invalid_before(folder.path, identity)
        else:
            invalid = held.invalid if held and not held.manifest["simulated"] else ""
        again = f"it was INVALID: {invalid}" if invalid else ""
        if held is not None and not again:
            path = scored(parts, held, identity, command, announce)
        else:
            path = folder.path
            again = again or ("" if parts.options.again else of_other_sources(own.path, identity))
            if again:
                announce(f"run again: {again}")
            devices = device_lock.devices_of(parts.engine, parts.config["engine"])
            with device_lock.held(devices, announce):
                description = describe(parts, identity, command)
                folder.begin()
                run_anew(parts, folder, description)
        mark(path, command.overrides)
    return Obtained(path, again)


def scored(
    parts: Prepared,
    held: FinishedRun,
    identity: Identity,
    command: Command,
    announce: Callable[[str], None],
) -> Path:
    """The folder of the complete run `held` under the SLO of now, in which it is scored anew unless
    it has been."""
    known = held.manifest["config_hash"] == identity.config_hash
    path = held.path if known or command.named else scored_anew.beside(held.path, identity)
    if known or scored_anew.is_of(path, held, identity):
        announce(f"already run; again=true repeats it: {path}")
        if not (path / "run.png").exists():
            parts.draw(path)
        return path
    announce(f"scored for another SLO, and not served again: {held.path}")
    description = describe(parts, identity, command)
    with followed(parts, description, path):
        scored_anew.score(parts, path, description, held)
    parts.tracker.finish(complete=True)
    return path


def invalid_before(path: Path, identity: Identity) -> str:
    """Why the run in `path` that `again` repeats was INVALID; empty: it was not, or there is none
    that can be read."""
    try:
        found = FinishedRun.load(path)
    except UsageError:
        return ""
    same = found.manifest.get("served_hash") == identity.served_hash
    return found.invalid if same else ""


def own_folder(identity: Identity, command: Command) -> Path:
    names = [command.choices[group] for group in ("system", "workload", "engine")]
    return command.folder if command.named else command.folder / "-".join([*names, str(identity)])


def of_other_sources(path: Path, identity: Identity) -> str:
    """Says which complete run of the same values other sources made, in `path` or beside it, and
    what has changed since; the latest. Empty: none."""
    prefix, _, _ = path.name.rpartition(str(identity))  # none: the folder has a name of its own
    beside = path.parent.glob(f"{escape(prefix + identity.served_hash)}*") if prefix else ()
    for each in sorted({path, *beside}, key=_ended_s, reverse=True):
        found = RunFolder(each).manifest()
        same_values = found.get("served_hash") == identity.served_hash
        other = found.get("sources") != identity.sources  # else the score of a run that is gone
        if same_values and other and found["status"] == "complete":
            return f"{each} is of other sources, {why_again(found.get('sources'))}"
    return ""


def _ended_s(run: Path) -> float:
    summary = run / "summary.json"
    return summary.stat().st_mtime if summary.is_file() else 0.0


def describe(parts: Prepared, identity: Identity, command: Command) -> dict[str, Any]:
    """The content of manifest.json for a run under way; `ended` completes it."""
    simulated = parts.engine.name == "sim"
    runs_dir, sessions = Path(parts.options.runs_dir), parts.schedule.sessions
    return {
        "status": "begun",
        "reason": "",
        "engine_name": parts.engine.name,
        "simulated": simulated,
        "certificate": None if simulated else certificate.of_this_machine(runs_dir),
        "choices": {k: v for k, v in command.choices.items() if not k.startswith("hydra/")},
        "overrides": without_credentials(list(command.overrides)),
        "config_hash": identity.config_hash,
        "served_hash": identity.served_hash,
        "sources": identity.sources,
        "command": without_credentials(command_line(sys.argv)),
        "started_utc": utc(datetime.now(UTC)),
        "ended_utc": None,
        "closed_loop": parts.client.concurrency,
        **({"sessions": len({*sessions.session})} if sessions is not None else {}),
        "seeds": {"seed": parts.options.seed},
        "hardware": asdict(parts.hardware),
        "engine": {},
        "dataset": asdict(parts.schedule.provenance),
        "schedule_sha256": parts.schedule.sha256(),
        **surroundings(),
    }


def run_anew(parts: Prepared, folder: RunFolder, description: Mapping[str, Any]) -> None:
    try:
        folder.write_manifest(description)  # first: it says whose folder it is
        folder.write_schedule(parts.schedule)
        folder.write_config(parts.config)
        with followed(parts, description, folder.path):
            serve(parts, folder, description)
    except UsageError:
        folder.restore()
        raise
    finally:
        folder.forget_earlier()
    parts.tracker.finish(complete=True)


@contextmanager
def followed(parts: Prepared, description: Mapping[str, Any], path: Path) -> Iterator[None]:
    """Draws what the block leaves in `path`. The tracker follows, and is told of an abort."""
    parts.tracker.start(parts.config, description, path)
    try:
        yield
        parts.draw(path)
    except BaseException:
        parts.tracker.finish(complete=False)
        raise


def show(finished: FinishedRun) -> None:
    console = Console()
    console.print(end_table(finished.summary, finished.manifest))
    console.print(f"{finished.path}", soft_wrap=True)
