"""What a fault did to a run: requests lost, wrong tokens, seconds to recover; and the command."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from harness.configuration.config import typed
from harness.configuration.options import CONF
from harness.errors import InstanceLost, RunError
from harness.faulting import __main__ as command
from harness.faulting import cases as made_cases
from harness.faulting.cases import UNDISTURBED, cases, read_cases
from harness.faulting.outcome import harm, recovery_s
from harness.running.faults import Faults
from systems.serverlessllm.paper import PaperScheduler, Server


def row(
    number: int, arrival_s: float, *times_s: float, status: str = "completed"
) -> dict[str, Any]:
    return {
        "request_id": number, "arrival_s": arrival_s, "token_times_s": list(times_s),
        "status": status,
    }  # fmt: skip


BEFORE = [row(0, 0, 1.0, 1.5, 2.0), row(1, 2, 2.5, 3.0)]


def test_lost_and_hurt_requests_are_counted() -> None:
    after = [row(0, 0, 1.0, status="failed"), row(1, 2, 2.5, 3.0)]
    found = harm(after, BEFORE, 1.2, {}, {}, 1.5)
    assert (found.lost, found.hurt, found.wrong, found.compared) == (1, 1, None, 0)


def test_a_request_that_also_fails_undisturbed_is_not_lost_to_the_fault() -> None:
    failed = [row(0, 0, status="failed"), BEFORE[1]]
    assert harm(failed, failed, 1.0, {}, {}, 1.5).lost == 0


def test_wrong_tokens_are_of_completed_requests_whose_ids_are_known() -> None:
    after = [row(0, 0, 1.0, status="failed"), row(1, 2, 2.5, 3.0)]
    found = harm(after, BEFORE, 1.2, {0: [1], 1: [4, 6]}, {0: [1, 2, 3], 1: [4, 5]}, 1.5)
    assert (found.wrong, found.compared) == (1, 1)


def test_recovery_ends_with_the_last_wait_longer_than_any_undisturbed() -> None:
    assert recovery_s(BEFORE, BEFORE, 0.5, 1.0) == 0
    gap = [row(0, 0, 1.0, 1.5, 4.0), row(1, 2, 2.5, 3.0)]  # waits 2.5 s, 0.5 s undisturbed
    assert recovery_s(gap, BEFORE, 1.6, 1.5) == pytest.approx(2.4)
    first = [BEFORE[0], row(1, 2, 4.5, 5.0)]  # its first token after 2.5 s, 1 s undisturbed
    assert recovery_s(first, BEFORE, 2.0, 1.5) == pytest.approx(2.5)
    assert recovery_s(gap, BEFORE, 4.0, 1.5) == 0  # it struck after that
    assert recovery_s(gap, BEFORE, 1.6, 6.0) == 0  # nor is that late


def test_every_case_names_faults_that_can_be_read() -> None:
    found = read_cases()
    for words in found["faults"].values():
        for word in words:
            parsed = OmegaConf.from_dotlist([word]).faults
            assert typed(OmegaConf.to_container(parsed), Faults, "faults").every
    every = cases([], [])
    assert {case.system for case in every} == found["systems"].keys()
    for case in every:
        if case.fault == UNDISTURBED:
            continue
        assert any(word.startswith("faults.") for word in case.overrides)
    assert {fault for of in found["systems"].values() for fault in of["faults"]} == set(
        found["faults"]
    )


def test_the_hosts_that_die_have_two_devices() -> None:
    struck = [case for case in cases([], []) if case.fault == "kill_host"]
    assert {case.system for case in struck} == {"blitzscale_two_a_node"}
    for case in struck:
        assert {"+system=blitzscale", "hardware.devices_per_node=2"} <= set(case.overrides)


def test_vllms_servers_are_asked_for_ids_in_both_runs_that_are_compared() -> None:
    asked = {
        (case.engine, case.fault): "+engine.token_ids=true" in case.overrides
        for case in cases(["vllm"], [])
    }
    assert asked["vllm", UNDISTURBED]
    assert {engine for (engine, _), ids in asked.items() if ids} == {"vllm"}
    assert all(ids for (engine, _), ids in asked.items() if engine == "vllm")


def test_each_system_and_part_that_the_page_tells_of_has_a_case() -> None:
    page = (CONF.parent / "docs/faults.md").read_text()
    deaths = page.partition("## What a system does with a death")[2].partition("\n## ")[0]
    names = {
        name
        for line in deaths.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    known = read_cases()["systems"]
    assert names == {of.get("system", name) for name, of in known.items()}
    for of in known.values():
        assert any(fault.startswith("kill") for fault in of["faults"])
    assert "kill_coordinator" in known["aqua"]["faults"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "vlm"], "--only vlm is unknown; valid: vllm, "),
        (["--engines", "gpu"], "--engines gpu is unknown; valid: sim, torch, vllm"),
    ],
)
def test_a_name_that_there_is_not_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(words) == 2
    assert said in capsys.readouterr().err


@pytest.fixture
def command_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command sets its process up for itself alone: Hydra, and handlers of signals."""
    monkeypatch.setattr(command, "listen", lambda: None)
    yield
    GlobalHydra.instance().clear()


@pytest.mark.usefixtures("command_alone")
def test_a_run_that_breaks_by_itself_is_told_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "FAULTED_RUNS", tmp_path)

    def breaks(case: made_cases.Case, *, again: bool) -> None:
        raise RunError(f"{case.fault} broke\nat length")

    monkeypatch.setattr(command, "run_case", breaks)
    assert command.main(["--only", "aegaeon", "--engines", "torch"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[:2] == [
        "aegaeon torch none, seed 0: none broke", "aegaeon torch kill, seed 0: kill broke",
    ]  # fmt: skip
    assert len((tmp_path / "faults.csv").read_text().splitlines()) == 1


@pytest.mark.usefixtures("command_alone")
@pytest.mark.parametrize(
    ("engines", "names"),
    [(["torch", "sim", "vllm"], {"faults": 1, "live": 2}), (["sim"], {"faults": 1})],
)
def test_the_whole_table_is_written_by_the_published_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engines: list[str], names: dict[str, int]
) -> None:
    blank = dict.fromkeys(("seed", *command.COLUMNS, "config_hash"))
    monkeypatch.setattr(command, "rows", lambda *_, **__: [blank | {"engine": e} for e in engines])
    assert command.main(["--out", str(tmp_path)]) == 0
    kinds = ("csv", "json", "md")
    assert {path.name for path in tmp_path.iterdir()} == {f"{n}.{k}" for n in names for k in kinds}
    for name, count in names.items():
        assert len((tmp_path / f"{name}.csv").read_text().splitlines()) == count + 1
        assert ("## SIMULATED" in (tmp_path / f"{name}.md").read_text()) == (name == "faults")


def break_off(scheduler: PaperScheduler, server: Server, leaving: set[int]) -> None:
    """As a system that cannot go on without an instance."""
    raise InstanceLost(server.name, "killed")


@pytest.mark.usefixtures("command_alone")
def test_a_part_of_the_table_goes_beside_the_runs_and_complete_runs_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PaperScheduler, "_lost", break_off)
    monkeypatch.setattr(made_cases, "FAULTED_RUNS", tmp_path)
    monkeypatch.setattr(command, "FAULTED_RUNS", tmp_path)
    monkeypatch.setattr(command, "PUBLISHED", tmp_path / "published")
    few = read_cases() | {"seeds": 2}
    for system in ("vllm", "serverlessllm"):
        few["systems"][system]["faults"] = ["kill"]
    monkeypatch.setattr(made_cases, "read_cases", lambda: few)
    words = ["--only", "vllm", "serverlessllm", "--engines", "sim"]
    assert command.main(words) == 0
    with (tmp_path / "faults.csv").open() as file:
        every = list(csv.DictReader(file))
    assert [each["seed"] for each in every] == ["0", "1", "0", "1"]
    assert all(int(each["hurt"]) >= 8 for each in every)
    rows = {(each["system"], each["fault"]): each for each in every if each["seed"] == "0"}
    assert rows["vllm", "kill"]["struck"] == "True"
    assert rows["vllm", "kill"]["verdict"] == "VALID"
    assert rows["serverlessllm", "kill"]["verdict"] == "ended"
    assert int(rows["serverlessllm", "kill"]["lost"]) > int(rows["vllm", "kill"]["lost"]) >= 1
    assert "InstanceLost: instance sim-1 is lost" in rows["serverlessllm", "kill"]["ended"]
    page = (tmp_path / "faults.md").read_text()
    assert "## SIMULATED" in page
    lost = [int(each["lost"]) for each in every if each["system"] == "vllm"]
    assert f"| {sum(lost) / 2:.3g} ({min(lost)} to {max(lost)}) |" in page
    assert not (tmp_path / "published").exists()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/requests.parquet")}
    assert len(before) == 8
    assert command.main(words) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
