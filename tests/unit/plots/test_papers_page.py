"""The report: one file with every figure and claim, which asks nobody for anything."""

import json
import re
import shutil
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from harness.claims.__main__ import ROOT
from harness.claims.assess import judged
from harness.claims.ledger import Paper, load
from plots import papers
from plots.__main__ import main
from plots.runs import requests
from tests.unit.plots.test_report_page import Page

FIGURE = "kunserve_table1"
KEPT = {  # by figure: a column that is made of TTFT, and the row besides the schedule
    "aegaeon_fig11": ("ttft_mean_s", {"system": "aegaeon"}),
    "aqua_fig08": ("mean_ttft_s", {"system": "fcfs", "row": "run"}),
    "blitzscale_fig17": ("value", {"system": "blitzscale", "quantity": "mean TTFT"}),
    "kunserve_fig10": ("ttft_p50_s", {"system": "kunserve"}),
}
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


def test_every_link_of_the_committed_report_leads_somewhere() -> None:
    path = ROOT / "results/published/report.html"
    shown = re.sub(r'src="data:[^"]*"', "", path.read_text())
    ids = set(re.findall(r' id="([^"]+)"', shown))
    links = set(re.findall(r'href="([^"]+)"', shown))
    assert len(links) > 500
    dead = [
        link for link in links
        if not (link[1:] in ids if link[0] == "#" else (path.parent / link).is_file())
    ]  # fmt: skip
    assert not dead


@pytest.mark.parametrize("figure", KEPT)
def test_a_kept_run_has_the_requests_behind_a_row_of_its_figure(figure: str) -> None:
    """One of each paper's headline figures, made again: the schedule, the verdict and a number."""
    column, row = KEPT[figure]
    folder = ROOT / "results/published" / figure.partition("_")[0]
    manifest, summary, told = (
        json.loads(path.read_text())
        for path in (
            folder / "runs" / figure / "manifest.json", folder / "runs" / figure / "summary.json",
            folder / f"{figure}.json",
        )
    )  # fmt: skip
    assert summary["verdict"]["status"] == "VALID"
    assert any(manifest["schedule_sha256"] in run for run in told["runs"].values())
    table = pd.read_csv(folder / f"{figure}.csv", low_memory=False)
    agrees = table.schedule_sha256 == manifest["schedule_sha256"][:12]
    for name, value in row.items():
        agrees &= table[name] == value
    (published,) = table[agrees][column]
    ttft_s = requests(folder / "runs" / figure).ttft_s
    found = ttft_s.median() if "p50" in column else ttft_s.mean()
    assert found == pytest.approx(published, rel=1e-5)
    assert any(
        each.headline for each in ledger(figure.partition("_")[0]).claims if each.figure == figure
    )


def test_no_cell_is_blank_and_a_figure_without_runs_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = page(FIGURE, tmp_path, monkeypatch)
    assert not BLANK.search(shown)
    assert "no run: computed from the paper" in shown
    assert "no picture: it is made of no run" in shown


def test_a_figure_drawn_before_runs_were_named_and_its_runs_are_told() -> None:
    about = {
        "num_runs": 2, "engines": ["sim"], "refused": [], "origin": [
            "SIMULATED", "2 runs, seeds 0, 1", "h800x16", "simulator error: 5 %",
        ],
    }  # fmt: skip
    before = papers.facts(about, [])
    assert before["lineage"] == "none: drawn before runs were named"
    assert before["simulator error"] == "5 %"
    assert before["synthetic inputs"] == "none: recorded requests"
    about["runs"] = {"a" * 12: f"f-{'a' * 12}-b, schedule {'c' * 64}, VALID"}
    (run,) = papers.runs_of(about)
    assert run == {"hash": "a" * 12, "schedule": "c" * 12}
    assert "INVALID run is made again and not counted" in papers.facts(about, [run])["runs"]


def test_the_page_is_written_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papers, "assessed", dict)
    monkeypatch.setattr(papers, "REPRODUCED", tmp_path / "none")
    assert main(["papers", "--out", str(tmp_path / "a" / "page.html")]) == 0
    assert "what changed since 2" in (tmp_path / "a" / "page.html").read_text()
