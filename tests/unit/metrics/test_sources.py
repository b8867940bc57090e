"""A run's identity: the files that make it count, and no others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.configuration.options import plain
from harness.records import sources
from harness.records.sources import PROJECT, Identity, changed, why_again
from harness.running.prepare import prepare
from harness.running.run import Command, Obtained, obtain
from tests.running import composed

SIM = ("+system=vllm", "+workload=azure_code", "engine=sim", "hardware=a100x1", "model=llama2-7b",
       "tracking=none", "progress=false", "figure=null", "data.dir=null", "data.download=false",
       "workload.num_requests=5")  # fmt: skip


def forget() -> None:
    """What this process has seen of the files, as another process would not have."""
    for seen in (sources.content, sources._file, sources._needed, sources._made_by, sources._read):
        seen.cache_clear()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the sources, of which runs are told to be made."""
    for package in sources.PACKAGES:
        shutil.copytree(PROJECT / package, tmp_path / "copy" / package)
    monkeypatch.setattr(sources, "PROJECT", tmp_path / "copy")
    forget()
    yield tmp_path / "copy"
    forget()


def made_by(*words: str) -> dict[str, str]:
    return sources.sources(plain(composed(*words)))


def test_the_parts_of_a_run_count_and_those_of_others_do_not() -> None:
    found = set(made_by("+system=aegaeon", "+workload=aegaeon", "engine=sim", "hardware=h800x16"))
    for part in (
        "systems/aegaeon/decode.py", "harness/sim/network.py", "harness/records/metrics.py",
        "harness/records/verdict.py", "workloads/arrivals.py", "harness/cost/law.py",
    ):  # fmt: skip
        assert part in found
    assert not [path for path in found if path.startswith(("systems/muxserve", "systems/server"))]
    for room in ("engine", "drivers", "claims", "experiments", "fidelity", "calibrate"):
        assert not [path for path in found if path.startswith(f"harness/{room}/")], room
    assert "harness/records/run_table.py" not in found


def test_worker_processes_count_which_no_module_imports() -> None:
    found = made_by("+system=vllm", "+workload=azure_code", "engine=torch")
    assert {"harness/engine/worker.py", "harness/engine/pooled_memory.py"} <= set(found)
    assert not [path for path in found if path.startswith("harness/sim/")]


def test_another_checkout_of_the_same_files_is_the_same(checkout: Path) -> None:
    here = made_by(*SIM)
    assert not (checkout / ".git").exists()
    forget()
    assert made_by(*SIM) == here
    assert changed(here) == []


def test_what_was_found_in_files_before_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "cache" / "named.json"
    monkeypatch.setattr(sources, "NAMED", kept)
    forget()
    first = made_by(*SIM)
    assert set(first.values()) <= set(json.loads(kept.read_text()))
    monkeypatch.setattr(sources, "_named", None)  # no file is searched once more
    forget()
    assert made_by(*SIM) == first
    kept.write_text("{")
    monkeypatch.undo()
    forget()
    assert made_by(*SIM) == first


def test_one_edit_is_found_and_named(checkout: Path) -> None:
    before = made_by(*SIM)
    with (checkout / "systems/baselines/vllm.py").open("a") as file:
        file.write("\nEDITED = True\n")
    (checkout / "systems/aegaeon/decode.py").write_text("")  # of another system
    forget()
    after = made_by(*SIM)
    assert after != before
    assert changed(before) == ["systems/baselines/vllm.py"]
    assert why_again(before) == "changed since: systems/baselines/vllm.py"
    assert str(Identity("0", before)) != str(Identity("0", after))


def obtained(runs: Path, *words: str, named: bool = False, lines: list[str]) -> Obtained:
    choices = {"system": "vllm", "workload": "azure_code", "engine": "sim", "model": "llama2-7b"}
    command = Command(runs, named, choices, [])
    return obtain(prepare(composed(*SIM, *words)), command, wait=False, announce=lines.append)


@pytest.mark.parametrize("named", [False, True])
def test_an_edited_policy_is_run_again_and_it_is_said_why(
    checkout: Path, tmp_path: Path, named: bool
) -> None:
    said: list[str] = []
    first = obtained(tmp_path / "runs", named=named, lines=said)
    assert said == []
    assert obtained(tmp_path / "runs", named=named, lines=said).path == first.path
    assert said == [f"already run; again=true repeats it: {first.path}"]
    with (checkout / "systems/baselines/vllm.py").open("a") as file:
        file.write("\n# edited\n")
    forget()
    second = obtained(tmp_path / "runs", named=named, lines=said)
    assert (second.path == first.path) == named  # the earlier one is kept, to compare with
    why = f"{first.path} is of other sources, changed since: systems/baselines/vllm.py"
    assert second.again == why
    assert said[1:] == [f"run again: {why}"]
    obtained(tmp_path / "runs", named=named, lines=said)
    assert said[2:] == [f"already run; again=true repeats it: {second.path}"]


@pytest.mark.parametrize("live", [True, False])
def test_an_invalid_run_is_run_again_if_it_was_live(
    checkout: Path, tmp_path: Path, live: bool
) -> None:
    """The machine was busy, and may not be now; a simulation would come to the same."""
    said: list[str] = []
    path = obtained(tmp_path / "runs", lines=said).path
    disturbed(path, live=live)
    obtained(tmp_path / "runs", lines=said)
    again = "run again: it was INVALID: the client was late"
    assert said == [again if live else f"already run; again=true repeats it: {path}"]
    assert ("INVALID" in (path / "summary.json").read_text()) != live


def test_a_run_that_is_repeated_by_command_says_that_it_was_invalid(
    checkout: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    path = obtained(tmp_path / "runs", lines=said).path
    disturbed(path, live=False)
    again = "it was INVALID: the client was late"
    assert obtained(tmp_path / "runs", "again=true", lines=said) == Obtained(path, again)
    assert obtained(tmp_path / "runs", "again=true", lines=said) == Obtained(path, "")
    assert said == [f"run again: {again}"]


def disturbed(path: Path, *, live: bool) -> None:
    for name, key, value in (
        ("manifest.json", "simulated", not live),
        ("summary.json", "verdict", {"status": "INVALID", "reasons": ["the client was late"]}),
    ):
        content = json.loads((path / name).read_text())
        (path / name).write_text(json.dumps(content | {key: value}))
