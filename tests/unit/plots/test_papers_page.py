"""The report: one file with every figure and claim, which asks nobody for anything."""

import json
import re
import shutil
from functools import cache
from hashlib import sha256
from pathlib import Path

import pandas as pd
import pytest

from harness.claims.__main__ import ROOT
from harness.claims.assess import judged
from harness.claims.ledger import Paper, load
from harness.claims.page import OTHER
from harness.reproduce import report
from harness.reproduce.holding import Row
from plots import embedded, papers
from plots.__main__ import main
from plots.runs import requests
from tests.unit.plots.test_report_page import Page

FIGURE = "kunserve_table1"
PAPERS = ("aegaeon", "aqua", "blitzscale", "kunserve")
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


def again_in(folder: Path, figure: str = FIGURE) -> Path:
    """A folder where two tiers say what became of a figure, and one has it."""
    made = folder / "reproduced"
    for tier, outcome in (("full", "different"), ("quick", "the same")):
        (made / tier).mkdir(parents=True)
        report.write(made / tier, [], [Row("figure", figure, outcome, "to six digits")])
    for suffix in (".png", ".json", ".csv"):
        published = ROOT / "results/published" / figure.partition("_")[0]
        shutil.copy(published / f"{figure}{suffix}", made / "quick")
    return made


def test_a_figure_that_was_made_again_stands_beside_the_committed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = page(FIGURE, tmp_path, monkeypatch, again=again_in(tmp_path))
    assert shown.count("data:image/webp") == 2
    assert "<th>made again</th>" in shown
    assert "Made again: different: to six digits (full, " in shown, "all seeds before one"


def test_a_run_that_was_made_again_is_a_link_to_its_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = "aqua_fig12_live"
    made = again_in(tmp_path, figure)
    (run,) = papers.runs_of(json.loads((made / "quick" / f"{figure}.json").read_text()))
    monkeypatch.setattr(papers, "RUNS", tmp_path / "runs")
    folder = tmp_path / "runs" / run["folder"]
    folder.mkdir(parents=True)
    (folder / "requests.parquet").touch()
    of_paper = ledger("aqua")
    shutil.copytree(made / "quick", tmp_path / "aqua")
    monkeypatch.setattr(papers, "PUBLISHED", tmp_path)
    link = f'href="../runs/{run["folder"]}/requests.parquet">{run["hash"]}</a>'
    report_too = f'href="../runs/{run["folder"]}/report.html">report</a>'
    shown = papers.shown({"aqua": (of_paper, [])}, made, made)
    assert (shown.count(link), shown.count(report_too)) == (1, 0)
    (folder / "report.html").touch()
    assert f"{link} <a {report_too}" in papers.shown({"aqua": (of_paper, [])}, made, made)
    assert link not in papers.shown({"aqua": (of_paper, [])}, made, None), "is committed"


def test_a_claim_that_was_made_again_has_links_to_the_requests_of_its_first_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = "blitzscale_fig21"
    made = again_in(tmp_path, figure)
    monkeypatch.setattr(papers, "RUNS", tmp_path / "runs")
    for run in papers.runs_of(json.loads((made / "quick" / f"{figure}.json").read_text())):
        (tmp_path / "runs" / run["folder"]).mkdir(parents=True)
        (tmp_path / "runs" / run["folder"] / "requests.parquet").touch()
    shown = page(figure, tmp_path, monkeypatch, again=made)
    cell = r'<tr id="blitzscale-([^"]+)".*?<td data-is="again">(.*?)</td>'
    cells = dict(re.findall(cell, shown, re.DOTALL))
    claims = [each for each in ledger("blitzscale").claims if each.figure == figure]
    assert any("requests.parquet" in cells[claim.id] for claim in claims)
    for claim in claims:
        linked = re.findall(r'/requests\.parquet">(\w+)</a>', cells[claim.id])
        rests_on = judged(claim, ROOT / "results/published/blitzscale").runs
        assert linked == [*rests_on][: papers.MAX_LINKED]


def test_a_table_made_again_that_lacks_a_claims_rows_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = again_in(tmp_path)
    table, about = made / "quick" / f"{FIGURE}.csv", made / "quick" / f"{FIGURE}.json"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:2]))
    digest = sha256(table.read_bytes()).hexdigest()
    about.write_text(json.dumps(json.loads(about.read_text()) | {"table_sha256": digest}))
    shown = page(FIGURE, tmp_path, monkeypatch, again=made)
    assert re.search(r'data-is="again">no value: not attempted: claim \w+, kunserve_table1', shown)


@cache
def with_both_profiles(paper: str) -> str:
    """The page of a paper as it is committed, without its claims and pictures."""
    nothing = {"src": "", "of": ""}
    return papers.shown(
        {paper: (ledger(paper), [])}, ROOT / "results/published", None, lambda path: nothing
    )  # fmt: skip


def of_figure(shown: str, name: str) -> str:
    return shown.partition(f'<h3 id="{name}">')[2].partition("<h3")[0]


def test_a_figure_with_both_engine_profiles_tells_where_each_came_from() -> None:
    shown = of_figure(with_both_profiles("aqua"), "aqua_fig08")
    told = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", shown, re.DOTALL))
    assert told["engine, vllm_v1"] == "SIMULATED, engine.profile=vllm_v1"
    assert told["runs, vllm_v1"].startswith("50 runs, seeds 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, all")
    assert told["simulator error"].startswith("not measured for H100-SXM5-80GB")
    assert "E2E 3.5 % (worst -13.5, 31 points)" in told["simulator error, vllm_v1"]
    assert "make sensitivity-aqua" in told["command, vllm_v1"]
    assert "--simulated engine.profile=vllm_v1" in told["command, vllm_v1"]


@pytest.mark.parametrize(
    ("paper", "figures", "words"),
    [
        ("blitzscale", ("fig01",), "its runs were made with it for blitzscale_fig24; "),
        ("blitzscale", ("fig19", "fig22"), "its runs were made with it for blitzscale_fig17; "),
        ("aqua", ("table_models", "table_placer"), "its runs were made with it for aqua_fig04"),
        ("aqua", ("table_sizes",), "its runs were made with it for aqua_fig08, aqua_fig13; "),
        ("aqua", ("end_to_end",), "with vllm_v1 they were left out for time"),
        ("kunserve", ("fig09",), "nothing is dropped with it"),
        ("kunserve", ("variants",), "with vllm_v1 they were left out for time"),
    ],
)
def test_a_figure_without_the_other_profile_says_why(
    paper: str, figures: tuple[str, ...], words: str
) -> None:
    shown = with_both_profiles(paper)
    for figure in figures:
        (told,) = re.findall("no picture: (.*)", of_figure(shown, f"{paper}_{figure}"))
        assert words in told, figure


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


def test_the_committed_report_is_of_the_committed_pictures_and_verdicts() -> None:
    shown = re.sub(r'src="data:[^"]*"', "", (ROOT / "results/published/report.html").read_text())
    for paper in PAPERS:
        folder = ROOT / "results/published" / paper
        for path in sorted(folder.glob("*.png")):
            told = re.findall(r'data-of="(\w+)"', of_figure(shown, path.stem))
            other = folder / OTHER / f"{path.stem}.csv"
            drawn = [path, *([other] if other.is_file() else [])]
            assert told == [embedded.of(each) for each in drawn], f"{path.stem}: make papers"
    judged_as = pd.read_csv(ROOT / "results/claims/claims.csv")
    cell = r'<tr id="([\w.-]+)".*?<td data-is="verdict" class="([^"]*)"'
    found = dict(re.findall(cell, shown, re.DOTALL))
    assert found == {
        f"{row.paper}-{row.id}": row.verdict.replace(" ", "-") for row in judged_as.itertuples()
    }, "make papers"


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


def test_facts_of_a_figure_and_its_runs_are_told() -> None:
    about = {
        "num_runs": 2, "engines": ["sim"], "refused": [], "origin": [
            "SIMULATED", "2 runs, seeds 0, 1", "h800x16", "simulator error: 5 %",
        ],
        "runs": {"a" * 12: f"f-{'a' * 12}-b, schedule {'c' * 64}, VALID"},
    }  # fmt: skip
    told = papers.facts(about)
    assert told["simulator error"] == "5 %"
    assert told["synthetic inputs"] == "none: recorded requests"
    assert told["lineage"].startswith("1 run, named below; 1 of them count twice")
    assert told["runs"].endswith("INVALID and made again: not counted; none refused")
    assert "made again: 3;" in papers.facts(about | {"num_invalid": 3})["runs"]
    (run,) = papers.runs_of(about)
    assert run == {"hash": "a" * 12, "folder": f"f-{'a' * 12}-b", "schedule": "c" * 12}


def test_the_page_is_written_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papers, "assessed", dict)
    monkeypatch.setattr(papers, "REPRODUCED", tmp_path / "none")
    assert main(["papers", "--out", str(tmp_path / "a" / "page.html")]) == 0
    assert "what changed since 2" in (tmp_path / "a" / "page.html").read_text()


def test_what_was_made_on_other_hardware_is_taken_where_no_tier_has_all_seeds(
    tmp_path: Path,
) -> None:
    made = {"full": "a", "h100x8": "ab", "quick": "abc"}
    for folder, names in made.items():
        (tmp_path / folder).mkdir()
        rows = [Row("figure", name, folder) for name in names]
        report.write(tmp_path / folder, rows)
        for name in names:
            (tmp_path / folder / f"{name}.csv").touch()
    found = {name: papers._made(tmp_path, name) for name in "abc"}
    assert [path and path.parent.name for path in found.values()] == ["full", "h100x8", "quick"]
    told = papers._outcomes(tmp_path)
    assert [told[name].split(" ")[0] for name in "abc"] == ["full", "h100x8", "quick"]


def test_a_table_with_an_invalid_run_is_not_said_to_be_valid() -> None:
    about = {
        "num_runs": 1,
        "origin": ["sim", "1 run"],
        "refused": [],
        "runs": {"h": "f, s, INVALID"},
    }
    with pytest.raises(AssertionError, match="an INVALID run is not drawn"):
        papers.facts(about)
