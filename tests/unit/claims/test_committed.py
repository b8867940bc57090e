"""What is committed of the papers: every claim is judged once for all of these tests."""

from __future__ import annotations

import re
from dataclasses import astuple
from pathlib import Path

import pytest

from harness.claims import __main__ as command
from harness.claims import page
from harness.claims.judging import JUDGED
from harness.claims.kinds import ARITHMETIC
from harness.claims.ledger import CAUSES
from harness.claims.page import Papers
from harness.files import read_json
from plots import embedded, papers
from tests.unit.plots.test_papers_page import BLANK
from tests.unit.plots.test_report_page import Page

COMMITTED = command.PUBLISHED / papers.NAME
MOST_BYTES = 10e6
HOLDS = ("reproduced", "trend only")
LINK_BYTES = 150  # of a run that was made again
SOME = ("aegaeon/aegaeon_fig11", "aqua/aqua_fig08", "kunserve/kunserve_table1")


@pytest.fixture(scope="module")
def committed() -> Papers:
    return command.assessed()


def test_what_is_committed_is_what_the_tables_give(
    committed: Papers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "assessed", lambda: committed)
    status = command.main(["--check"])
    assert (status, capsys.readouterr().out.splitlines()[:-1]) == (0, [])


def test_every_table_behind_a_claim_has_its_digest(committed: Papers) -> None:
    """Without it `judged` could not tell that a table was changed by hand."""
    without = {
        each.claim.figure
        for _, rows in committed.values()
        for row in rows
        for each in (row, *row.profiles.values())
        if each.source and not each.source.get("table_sha256")
    }
    assert without == set()


def test_every_claim_that_does_not_hold_has_a_cause_and_a_sentence(committed: Papers) -> None:
    wanting = [
        each.claim.id
        for _, rows in committed.values()
        for each in rows
        if each.verdict not in (*HOLDS, "by construction", "setting", "repeated")
        and not (each.claim.cause in CAUSES and len(each.claim.reason) >= 25)
    ]
    assert wanting == []
    assert "unknown" in CAUSES
    assert set(JUDGED) == {*HOLDS, "weak", "not reproduced"}


def test_each_figure_whose_runs_compare_names_regime_control_and_counter(committed: Papers) -> None:
    for paper, rows in committed.values():
        compared = {
            each.claim.figure
            for each in rows
            if each.kind not in ("", *ARITHMETIC) and (each.claim.effect or each.claim.unit == "x")
        }
        assert set(paper.comparisons) == compared
        cells = [cell for each in paper.comparisons.values() for cell in astuple(each)]
        assert min(map(len, cells)) >= len("as Fig. 11")


def test_all_that_is_arithmetic_on_the_papers_numbers_is_by_construction(committed: Papers) -> None:
    wanting = [
        each.claim.id
        for _, rows in committed.values()
        for each in rows
        if each.kind == ARITHMETIC[0] and each.verdict in HOLDS
    ]
    assert wanting == []


def without_pictures(path: Path) -> dict[str, str]:
    return {"src": "", "of": embedded.of(path)}


def text(page: str) -> str:
    return re.sub(r'src="data:[^"]*"', 'src=""', page)


def test_the_committed_page_is_of_what_is_committed(committed: Papers) -> None:
    """Whatever a table, a picture or the ledger changes: `make papers` writes the page."""
    now = papers.shown(committed, command.PUBLISHED, None, without_pictures)
    was = text(COMMITTED.read_text(encoding="utf-8"))
    differing = [(a, b) for a, b in zip(was.splitlines(), now.splitlines(), strict=False) if a != b]
    assert not differing[:3], "run: make papers"
    assert was == now
    assert COMMITTED.stat().st_size < MOST_BYTES
    assert not BLANK.search(was)
    assert not Page(was).open


def test_a_page_with_every_figure_made_again_is_not_larger() -> None:
    """Each picture twice and small, as three are, and a link to each run."""
    sources = re.findall(
        r'<img src="([^"]*)" data-of="[^"]*" alt="([^"]*)"', COMMITTED.read_text(encoding="utf-8")
    )
    large = sum(len(source) for source, alt in sources if not alt.endswith(f"with {page.OTHER}"))
    some = [command.PUBLISHED / f"{name}.png" for name in SOME]
    shares = [
        len(embedded.small(each)["src"]) / len(embedded.picture(each)["src"]) for each in some
    ]
    assert max(shares) < 0.9
    num_runs = sum(
        read_json(path).get("num_runs", 0) for path in command.PUBLISHED.glob("*/*_*.json")
    )
    more = 2 * max(shares) * large - large + LINK_BYTES * num_runs
    assert COMMITTED.stat().st_size + more < MOST_BYTES
