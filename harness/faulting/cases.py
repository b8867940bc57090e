"""The cases of conf/faults.yaml, and the runs that they ask for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from harness.errors import RunError, UsageError
from harness.experiments.compose import CONF, composed
from harness.experiments.points import RUNS, unwarned
from harness.faulting.outcome import Tokens
from harness.files import read_json
from harness.records.run_folder import RunFolder
from harness.running.prepare import prepare
from harness.running.run import Command, obtain, own_folder

CASES = "faults.yaml"
UNDISTURBED = "none"
FAULTED_RUNS = RUNS / "faults"
WORDS = {"torch": (), "vllm": ("engine=vllm", "+engine.token_ids=true"), "sim": ("engine=sim",)}


@dataclass(frozen=True, slots=True)
class Case:
    """`system`, `fault`: their names in conf/faults.yaml; without a fault UNDISTURBED."""

    system: str
    engine: str
    fault: str
    seed: int
    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """A case's run. `ended`: why it broke; empty: it was completed. `summary`: empty where it
    broke."""

    path: Path
    ended: str
    summary: dict[str, Any]
    manifest: dict[str, Any]
    requests: list[dict[str, Any]]
    tokens: Tokens
    faults: list[dict[str, Any]]  # the run's events of the kind


def read_cases() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONF / CASES).read_text())
    return found


def cases(systems: Sequence[str], engines: Sequence[str]) -> list[Case]:
    """Of each system on each engine, for each seed, the undisturbed run and those with faults.
    Raises UsageError for a name that there is not."""
    found = read_cases()
    known = found["systems"]
    every = sorted({engine for of in known.values() for engine in of["engines"]})
    for asked, valid, option in ((systems, list(known), "--only"), (engines, every, "--engines")):
        for name in asked:
            if name not in valid:
                raise UsageError(f"{option} {name} is unknown; valid: {', '.join(valid)}")
    made = []
    for system in systems or known:
        of = known[system]
        for engine in of["engines"]:
            if engines and engine not in engines:
                continue
            more = of.get("more", ())
            more = more if engine == "sim" else of.get("more_live", more)
            of_system = f"+system={of.get('system', system)}"
            words = (of_system, *found["schedule"], *of["set"], *more, *WORDS[engine])
            alone = found["live"] if engine == "sim" else []
            named = {UNDISTURBED: (), **{name: found["faults"][name] for name in of["faults"]}}
            made += [
                Case(system, engine, name, seed, (*words, f"seed={seed}", *strikes))
                for seed in range(found["seeds"] if engine == "sim" else 1)
                for name, strikes in named.items()
                if name not in alone
            ]
    return made


def run_case(case: Case, *, again: bool) -> Made:
    """Makes the run unless it is there, complete or broken by its fault."""
    with unwarned():
        made = composed(case.overrides)
        config = made.configured(())
        config.again = again
        parts = prepare(config)
        command = Command(FAULTED_RUNS, named=False, choices=made.choices, overrides=case.overrides)
        path = own_folder(parts.identity(), command)
        if not again and _broken_by_its_fault(path):
            return load(path)
        try:
            path = obtain(parts, command, wait=True, announce=lambda line: None).path
        except RunError:
            if not _broken_by_its_fault(path):
                raise
    return load(path)


def _broken_by_its_fault(path: Path) -> bool:
    """Whether the run in `path` ended early, behind a fault that struck."""
    whole = (path / "events.parquet").is_file() and (path / "requests.parquet").is_file()
    manifest = RunFolder(path).manifest() if whole else {}
    if manifest.get("status") != "aborted" or manifest["reason"].startswith("KeyboardInterrupt"):
        return False
    return any(fault["struck"] for fault in _faults(path))


def load(path: Path) -> Made:
    manifest = RunFolder(path).manifest()
    complete = manifest["status"] == "complete"
    ids = path / "tokens.parquet"
    tokens = {}
    if ids.is_file():
        table = pq.read_table(ids).to_pydict()
        tokens = dict(zip(table["request_id"], table["token_ids"], strict=True))
    return Made(
        path, "" if complete else str(manifest["reason"]),
        read_json(path / "summary.json") if complete else {}, manifest,
        pq.read_table(path / "requests.parquet").to_pylist(), tokens, _faults(path),
    )  # fmt: skip


def _faults(path: Path) -> list[dict[str, Any]]:
    events = pq.read_table(path / "events.parquet").to_pylist()
    return [
        {"instance": event["instance"], "start_s": event["start_s"], "end_s": event["end_s"]}
        | json.loads(event["fields"])
        for event in events
        if event["kind"] == "fault"
    ]
