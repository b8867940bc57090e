"""docs/artifact.md: its commands judge claims, its samples are lines of the committed logs."""

import re
from pathlib import Path

import pandas as pd
import yaml

from harness.experiments.batch import of_first_seeds, wanted
from harness.experiments.compose import ROOT, composing, sweep
from harness.experiments.figures import described, figures
from harness.reproduce.asked import (
    GPU,
    asked,
    check_hardware,
    live_versions,
    live_words,
)  # fmt: skip
from harness.reproduce.holding import OUTCOMES
from harness.reproduce.times import expected, last_times
from plots.embedded import description, of


def test_each_figure_of_the_pages_table_and_each_live_example_has_a_claim() -> None:
    page = (ROOT / "docs/artifact.md").read_text()
    table = page.partition("### From a claim")[2].partition("###")[0]
    found = re.findall(r"FIGURE=(?:'([^']+)'|(\w+))", table)
    named = " ".join(map(" ".join, found)).split()
    assert {"aegaeon_fig1[123]", "blitzscale_fig20", "aegaeon_fig07", "matrix_*"} <= set(named)
    for word in set(named) - {"matrix_*"}:
        names, claims, _ = asked([word], "full")
        assert set(names) == {claim.figure for claim in claims if claim.value is not None}
    papers = re.findall(r"^make reproduce PAPER=(\w+) (?:WORLD|HARDWARE)=", page, re.M)
    assert len(papers) == 2
    assert all(live_versions(*asked([paper], "full")[:2], "sim")[1] for paper in papers)


def test_the_documented_profile_has_the_devices_of_every_live_figure() -> None:
    page = (ROOT / "docs/artifact.md").read_text()
    (profile,) = re.findall(r"^make reproduce PAPER=\w+ HARDWARE=(\w+)", page, re.M)
    names, _ = live_versions(*asked([], "full")[:2], "sim")
    assert {"aegaeon_fig10", "kunserve_fig15_live"} <= set(names)
    check_hardware(names, profile)
    assert live_words("kunserve_fig15_live", profile) == [f"hardware={profile}"]
    assert live_words("aegaeon_fig10", profile) == [GPU, f"hardware={profile}"]
    assert live_words("aegaeon_fig10", "local_x2") == ["hardware=local_x2"]
    made = composing(["+experiment=aegaeon_fig07", *live_words("aegaeon_fig10", profile)])
    assert (made.engine.device, made.hardware.name) == ("cuda", profile)


def test_each_line_of_the_pages_samples_is_in_the_log_of_its_command() -> None:
    page = (ROOT / "docs/artifact.md").read_text()
    shown = re.findall(r"^  (?:run|figure|claim) +\S+ {2,}(.+?)(?: {2,}.*)?$", page, re.M)
    assert set(shown) <= set(OUTCOMES)
    samples = [each for each in re.findall(r"```\n(.*?)```", page, re.DOTALL) if "Verdict" in each]
    for name, sample in zip(("archive", "quick"), samples, strict=True):
        log = (ROOT / f"results/published/logs/{name}.txt").read_text()
        assert set(sample.splitlines()) - {""} <= {line.rstrip() for line in log.splitlines()}


def test_the_page_has_the_time_of_each_committed_log() -> None:
    page = " ".join((ROOT / "docs/artifact.md").read_text().split())
    logs = {path.stem: path.read_text() for path in (ROOT / "results/published/logs").glob("*.txt")}
    took = {name: re.findall(r"^real\s+(\d+)m(\d+)", log, re.M) for name, log in logs.items()}
    assert {"smoke", "quick", "live", "archive", "container"} <= {
        name for name, times in took.items() if times
    }
    assert not [name for name, times in took.items() for each in times
                if "{} min {} s".format(*each) not in page]  # fmt: skip


def test_the_values_of_the_pages_samples_are_the_committed_ones() -> None:
    page = (ROOT / "docs/artifact.md").read_text()
    ledger = pd.read_csv(ROOT / "results/claims/claims.csv", dtype=str)
    names = ledger["paper"] + "/" + ledger["id"]
    line = r"^  claim +(\S+) +the same +(?:(.+) \()?([\d.]+)(?: to ([\d.]+))?[;)]"
    found = re.findall(line, page, re.M)
    assert len(found) == 5
    for name, verdict, *told in found:
        same = names.str.startswith(name[:-1]) if name.endswith("…") else names == name
        (row,) = ledger[same].to_dict("records")
        if verdict:  # of all seeds
            values = [row["ours"]]
            assert verdict == row["verdict"], name
        else:
            values = [str(row[key]).split(";")[0] for key in ("values", "values_to")]
        digits = [f"{float(each):.4g}" for each in values if each != "nan"]
        assert [each for each in told if each] == digits, name


def test_the_pages_count_the_runs_that_the_command_announces() -> None:
    page, commands = ((ROOT / "docs" / name).read_text() for name in ("artifact.md", "commands.md"))
    found = re.findall(r"^\| \w+ \| ([\d,]+) \| \d+ \| (\d+): \d+ \|$", page, re.M)
    plans = {paper: expected(asked([paper], "full")[0], "full", 2, last_times(Path("none"))) for
             paper in ("aegaeon", "aqua", "blitzscale", "kunserve")}  # fmt: skip
    announced = [(f"{round(plan.num_runs, -1):,}", str(plan.num_live)) for plan in plans.values()]
    assert found == announced
    (told,) = re.findall(r"Aegaeon has ([\d,]+) simulated runs", commands)
    simulated = plans["aegaeon"].num_runs - plans["aegaeon"].num_live
    assert told == f"{round(simulated, -2):,}"


def test_the_screens_are_of_the_committed_report_or_the_page_says_that_they_are_older() -> None:
    page = (ROOT / "docs/artifact.md").read_text()
    published = ROOT / "results/published"
    shown = {description(path) for path in (published / "screens").glob("report_*.png")}
    older = shown != {f"report.html {of(published / 'report.html')}"}
    assert older == ("An earlier state of it is here as a browser shows it" in page)


def test_the_page_counts_the_mutants() -> None:
    page = " ".join((ROOT / "docs/artifact.md").read_text().split())
    lists = [yaml.safe_load(path.read_text()) for path in (ROOT / "tests/mutants").glob("*.yaml")]
    assert f"`make mutants`: {sum(map(len, lists))} wrong changes" in page


def test_the_page_names_the_figures_that_quick_leaves_out_and_counts_those_on_coarser_grids() -> (
    None
):
    page = (ROOT / "docs/artifact.md").read_text()
    left_out = page.partition("`quick` leaves out these figures")[2].partition("Some figures")[0]
    named = set(re.findall(r"`((?:aegaeon|aqua|blitzscale|kunserve)_\w+)`", left_out))
    assert named == {name for name in figures() if not described(name).quick}
    counts = re.findall(r"^\| `(\w+)` \| .*? \| (\d+) of (\d+)(?:, and .*)? \|$", page, re.M)
    assert {name for name, *_ in counts} == {name for name in figures() if described(name).grid}
    for name, some, every in counts:
        figure, found = described(name), []
        for only in (figure.runs("quick"), figure.only):
            swept = (sweep(each)[1] for each in figure.experiments)
            found.append(sum(len(of_first_seeds(wanted(runs, [only]), 1)) for runs in swept))
        assert found == [int(some), int(every)], name
