"""The report: one file with every figure and claim, which asks nobody for anything."""

import re
import shutil
from functools import cache
from pathlib import Path

import pytest

from harness.claims.__main__ import ROOT
from harness.claims.assess import judged
from harness.claims.ledger import Paper, load
from plots import papers
from plots.__main__ import main
from tests.unit.plots.test_report_page import Page

FIGURE, OF_RUNS = "kunserve_table1", "aegaeon_fig16"
BLANK = re.compile(r"<t[dh][^>]*>\s*</t[dh]>|<dd>\s*</dd>")


@cache
def ledger(paper: str) -> Paper:
    return load(ROOT / f"results/claims/{paper}.yaml")


def page(
    figure: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, again: Path | None = None
) -> str:
    """Of one figure with its claims, and of claims without a figure."""
    paper = figure.partition("_")[0]
    of_paper = ledger(paper)
    published = ROOT / "results/published" / paper
    chosen = [each for each in of_paper.claims if each.figure == figure or each.value is None]
    rows = [judged(each, published) for each in chosen]
    (folder / paper).mkdir()
    for suffix in (".png", ".json", ".csv"):
        shutil.copy(published / f"{figure}{suffix}", folder / paper)
    monkeypatch.setattr(papers, "PUBLISHED", folder)
    return papers.shown({paper: (of_paper, rows)}, folder, again)


def test_the_page_has_each_claim_beside_its_figure_and_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = page(FIGURE, tmp_path, monkeypatch)
    assert not Page(shown).open
    assert not re.search(r'src="(?!data:)|href="[a-z]+:|<script|@import|url\(', shown)
    claims = ledger("kunserve").claims
    at = shown.index(f'<h3 id="{FIGURE}">')
    for claim in (each for each in claims if each.figure == FIGURE and each.value is not None):
        assert shown.index(f'id="kunserve-{claim.id}"') > at
    assert f"make figure-{FIGURE}" in shown
    assert "Made again" not in shown


def test_a_figure_that_was_made_again_stands_beside_the_committed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "reproduced"
    made.mkdir()
    for suffix in (".png", ".json", ".csv"):
        shutil.copy(ROOT / "results/published/kunserve" / f"{FIGURE}{suffix}", made)
    row = f"| figure | {FIGURE} | the same | to six digits |"
    (made / "report.md").write_text(f"| | name | outcome | |\n| --- | --- | --- | --- |\n{row}\n")
    shown = page(FIGURE, tmp_path, monkeypatch, again=made)
    assert shown.count("data:image/webp") == 2
    assert "<th>made again</th>" in shown
    assert "Made again: the same: to six digits" in shown


def test_a_claim_leads_to_the_requests_of_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = page(OF_RUNS, tmp_path, monkeypatch)
    claim = next(each for each in ledger("aegaeon").claims if each.figure == OF_RUNS)
    row = shown[shown.index(f'id="aegaeon-{claim.id}"') :].partition("</tr>")[0]
    folders = re.findall(r'href="([^"]*/results/runs/[^"]+)">([0-9a-f]{12})<', row)
    assert folders
    assert all(config_hash in folder for folder, config_hash in folders)


def test_no_cell_is_blank_and_a_figure_without_runs_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = page(FIGURE, tmp_path, monkeypatch)
    assert not BLANK.search(shown)
    assert "no run: computed from the paper" in shown
    assert "no picture: it is made of no run" in shown


def test_a_figure_drawn_before_runs_were_named_and_an_invalid_run_are_told() -> None:
    about = {
        "num_runs": 2, "engines": ["sim"], "refused": [], "origin": [
            "SIMULATED", "2 runs, seeds 0, 1", "h800x16", "simulator error: 5 %",
        ],
    }  # fmt: skip
    before = papers.facts(about, [])
    assert before["lineage"] == "none: drawn before runs were named"
    assert before["simulator error"] == "5 %"
    assert before["synthetic inputs"] == "none: recorded requests"
    about["runs"] = {"a" * 12: f"f-{'a' * 12}-b, schedule {'c' * 64}, INVALID"}
    (run,) = papers.runs_of(about)
    assert run == {"hash": "a" * 12, "folder": f"f-{'a' * 12}-b", "schedule": "c" * 12,
                   "verdict": "INVALID"}  # fmt: skip
    assert "1 INVALID" in papers.facts(about, [run])["runs"]


def test_the_page_is_written_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papers, "assessed", dict)
    monkeypatch.setattr(papers, "REPRODUCED", tmp_path / "none")
    assert main(["papers", "--out", str(tmp_path / "a" / "page.html")]) == 0
    assert "What changed since" in (tmp_path / "a" / "page.html").read_text()
