"""papers.html: one file with every figure and claim, which asks nobody for anything."""

import re
import shutil
from pathlib import Path

import pytest

from harness.claims.assess import judged
from harness.claims.ledger import load
from plots import papers
from plots.__main__ import main

ROOT = Path(__file__).resolve().parents[3]
FIGURE = "kunserve_table1"


def page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of one figure with its claims, and of one claim without a figure."""
    of_paper = load(ROOT / "results/claims/kunserve.yaml")
    published = ROOT / "results/published/kunserve"
    rows = [judged(each, published) for each in of_paper.claims if each.figure == FIGURE]
    without = next(each for each in of_paper.claims if each.setting)
    rows.append(judged(without, published))
    (folder / "kunserve").mkdir()
    for suffix in (".png", ".json"):
        shutil.copy(published / f"{FIGURE}{suffix}", folder / "kunserve")
    monkeypatch.setattr(papers, "PUBLISHED", folder)
    monkeypatch.setattr(papers, "assessed", lambda: {"kunserve": (of_paper, rows)})
    assert main(["papers", "--out", str(folder / "papers.html")]) == 0
    return (folder / "papers.html").read_text()


@pytest.fixture
def nothing_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(papers, "REPRODUCED", tmp_path / "reproduced")
    (tmp_path / "reproduced").mkdir()
    return tmp_path / "reproduced"


def test_the_page_has_each_claim_beside_its_figure_and_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_made_again: Path
) -> None:
    shown = page(tmp_path, monkeypatch)
    assert not re.search(r"(src|href)=\"(?!data:|#)|<script|@import|url\(", shown)
    ledger = load(ROOT / "results/claims/kunserve.yaml").claims
    at = shown.index(f'<h3 id="{FIGURE}">')
    for claim in (each for each in ledger if each.figure == FIGURE and each.value is not None):
        assert shown.index(claim.id) > at
    assert f"make figure-{FIGURE}" in shown
    assert "made again" not in shown


def test_a_figure_that_was_made_again_stands_beside_the_committed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_made_again: Path
) -> None:
    for suffix in (".png", ".json", ".csv"):
        name = f"{FIGURE}{suffix}"
        shutil.copy(ROOT / "results/published/kunserve" / name, nothing_made_again)
    shown = page(tmp_path, monkeypatch)
    assert shown.count("data:image/png") == 2
    assert "<th>made again</th>" in shown
