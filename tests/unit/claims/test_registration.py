"""What was registered, and that a change of it needs a reason."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pandas as pd
import pytest

from harness.claims import __main__ as command
from harness.claims import registration
from harness.claims.ledger import Claim
from harness.claims.page import BEGIN, END
from tests.unit.claims.test_ledger import ABOUT

LEDGER = """title: A Paper
venue: X'99
short: A
claims:
- {id: a, section: '1', quantity: q, published: 2, unit: x, figure: p_fig01,
   value: {mean: {column: y}}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger of one claim with its table, and the pages that have the marks."""
    claims, published = tmp_path / "results/claims", tmp_path / "results/published"
    for folder in (claims / "versions", published / "p", tmp_path / "systems/p"):
        folder.mkdir(parents=True)
    (claims / "versions/2026-01-01.csv").write_text("paper,id,ours,verdict\np,a,1,weak\n")
    (claims / "p.yaml").write_text(LEDGER)
    for page in (tmp_path / "README.md", tmp_path / "systems/p/README.md"):
        page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    table(tmp_path, dirty=False)
    for name, value in (("ROOT", tmp_path), ("CLAIMS", claims), ("PUBLISHED", published)):
        monkeypatch.setattr(command, name, value)
    return tmp_path


def table(project: Path, *, dirty: bool) -> None:
    folder = project / "results/published/p"
    rows = pd.DataFrame({"seed": range(5), "y": [2.0] * 5, "config_hash": "h"})
    rows.to_csv(folder / "p_fig01.csv", index=False)
    git = [{"revision": "0123456789", "dirty": dirty}]
    about = ABOUT | {"runs_git": git, "experiments": ["aegaeon_fig01"]}
    (folder / "p_fig01.json").write_text(json.dumps(about))


def changes(project: Path) -> list[dict[str, str]]:
    with (project / "results/claims/changes.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_change_needs_a_reason_which_is_kept(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([]) == 2
    assert "registered facts changed: say why with --why TEXT" in capsys.readouterr().err
    assert not (project / "results/claims/lock.json").exists(), "nothing is half written"
    assert command.main(["--why", "the first ledger"]) == 0
    assert command.main([]) == 0
    ledger = project / "results/claims/p.yaml"
    ledger.write_text(LEDGER.replace("published: 2", "published: 3"))
    capsys.readouterr()
    assert command.main([]) == 2
    said = capsys.readouterr().err
    assert "  p a: published\n" in said
    assert "1 registered facts changed: say why with --why TEXT" in said
    assert command.main(["--why", "misread"]) == 0
    last = changes(project)[-1]
    assert (last["paper"], last["claim"], last["what"]) == ("p", "a", "published")
    assert (last["before"], last["after"], last["why"]) == ("2", "3", "misread")
    assert (last["verdict_before"], last["verdict_after"]) == ("reproduced", "not reproduced")
    assert command.main(["--check"]) == 0


def test_minutes_weigh_each_experiment_by_the_runs_of_its_sweep(project: Path) -> None:
    path = project / "results/published/p/p_fig01.json"
    run_s = {"aegaeon_fig01": 1000.0, "kunserve_fig16_groups": 1.0}  # 1 and 110 runs
    about = json.loads(path.read_text()) | {"run_s": run_s, "num_runs": 111}
    path.write_text(json.dumps(about))
    assert command.main(["--why", "the first ledger"]) == 0
    page = (project / "results/claims/experiments.md").read_text()
    assert "| 111 | 19 | 67 |" in page


def test_check_finds_what_was_edited(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["--why", "the first ledger"])
    changed = (project / "results/claims/changed.md").read_text()
    assert "since 2026-01-01" in changed
    assert "| p/a | q | 2.0 x | 1: weak | 2: reproduced |" in changed
    files = ("README.md", "p.json", "changed.md", "experiments.md")
    for name in (*(f"results/claims/{file}" for file in files), "README.md"):
        path = project / name
        before = path.read_text()
        path.write_text(before.replace("reproduce", "REPRODUCE"))
        capsys.readouterr()
        assert command.main(["--check"]) == 1
        assert f"{name} differs, first at:" in capsys.readouterr().out
        path.write_text(before)
    assert command.main(["--check"]) == 0
    (project / "results/claims/p.yaml").write_text(
        LEDGER.replace("unit: x", "unit: x, exact: true")
    )
    assert command.main(["--check"]) == 1


def test_runs_of_uncommitted_code_are_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table(project, dirty=True)
    assert command.main(["--why", "the first ledger"]) == 2
    assert "runs of uncommitted code are behind p_fig01" in capsys.readouterr().err
    assert command.main(["--why", "the first ledger", "--dirty"]) == 0
    assert "0123456+dirty" in (project / "results/claims/README.md").read_text()


def test_a_page_without_marks_is_told(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "README.md").write_text("no marks\n")
    assert command.main(["--why", "the first ledger"]) == 2
    assert "README.md has no place for the claims" in capsys.readouterr().err


def test_the_lock_holds_what_a_verdict_depends_on() -> None:
    base = {"id": "a", "section": "1", "quantity": "q", "published": 2.0, "unit": "x"}
    base |= {"figure": "p_fig01", "value": {"mean": {"column": "y"}}}
    registered = registration.registered(Claim(**base))
    assert registered == {
        "published": 2.0, "unit": "x", "relation": "about", "figure": "p_fig01",
        "value": {"mean": {"column": "y"}},
    }  # fmt: skip
    words = Claim(**base | {"quantity": "other words", "reason": "why", "cause": "unknown"})
    assert registration.registered(words) == registered
    for field in ({"tolerance": 0.1}, {"effect": "ratio"}, {"published": [1, 2]}, {"exact": True}):
        assert registration.registered(Claim(**base | field)) != registered


def test_settings_are_those_of_the_experiments_files() -> None:
    one, other = registration.settings(("aegaeon_fig11a",)), registration.settings(("aqua_fig08",))
    assert one != other
    assert one == registration.settings(("aegaeon_fig11a",))
    assert registration.settings(()) == registration.digest([])
