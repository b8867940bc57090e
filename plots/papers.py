"""The report: every paper, figure and claim on one page that needs no network, server or script.

Per paper its figures, each with both engine profiles, where its numbers came from, the command that
makes it, its runs, and the claims that rest on it: published, ours, verdict, reason, runs.

results/published/report.html is committed, and made of what is committed. With figures that were
made again (`python -m harness reproduce`), results/reproduced/report.html has them, too, beside the
committed ones, with their verdicts; of a figure that several tiers made that of all seeds. Figures
made with HARDWARE are there, too, where no tier has all their seeds. Both pictures are then small:
no page has more than 10 MB. Links lead to files that are there: to tables, to the one run of each
paper that is committed (results/published/PAPER/runs/FIGURE), and to runs made again. Others are
named by hash.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from harness.claims import page
from harness.claims.__main__ import CLAIMS, PUBLISHED, ROOT, VERSIONS, assessed
from harness.claims.assess import BASE_PROFILE, Judged, conditional
from harness.claims.elsewhere import by_table
from harness.claims.kinds import ARITHMETIC
from harness.claims.ledger import Paper
from harness.experiments.points import RUNS
from harness.files import make_folder, read_json, write_text, writing
from harness.reproduce import report
from plots import embedded
from plots.report import template

REPRODUCED = ROOT / "results/reproduced"
NAME = "report.html"
TIERS = ("full", "smoke", "quick")  # of `reproduce`: those with all seeds first
MAX_NAMED = 40  # runs of a claim; of more, a link to the figure's
MAX_LINKED = 5  # runs made again that a claim has links to; the figure has all
HOLDS = {  # why a claim is judged so, where neither code nor ledger says more
    "reproduced": "the whole interval lies within the tolerance",
    "trend only": "outside of the tolerance, with at least half of the published effect",
    "weak": "less than half of the published effect, or more than twice it",
    "by construction": "no run could have shown otherwise",
}
OF_OTHER = ("engine", "hardware", "runs", "simulator error")  # facts of the other engine profile
NOT_DRAWN = {  # why a figure has no picture of it, where no file tells
    "kunserve_fig09": "in these runs nothing is dropped with it, so there is no exchange to draw",
}
OF_RUN = ("requests.parquet", "report.html")  # that a run made again has links to


def write(out: Path | None = None) -> Iterator[Path]:
    """Writes the committed page and, if any figure was made again, the one with both; or the latter
    alone, to `out`. Raises UsageError for a wrong ledger or table."""
    papers = assessed()
    made_again = out is not None or any(REPRODUCED.glob("*/*.csv"))
    pages = {PUBLISHED / NAME: None, REPRODUCED / NAME: REPRODUCED} if out is None else {
        out: REPRODUCED
    }  # fmt: skip
    for path, again in pages.items():
        if again is None or made_again:
            make_folder(path.parent)
            with writing(path):
                write_text(path, shown(papers, path.parent, again))
            yield path


def shown(
    papers: page.Papers, folder: Path, again: Path | None, embed: embedded.Embed = embedded.picture
) -> str:
    """The page as it is in `folder`, from where its links lead. `again`: the folder of figures that
    were made again."""
    head, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.counts(papers)
    ]
    outcomes = _outcomes(again) if again else {}
    return template("papers.html").render(
        counts={"head": head, "rows": rows[1:]},
        profiles=(BASE_PROFILE, page.OTHER),
        version=max((CLAIMS / VERSIONS).glob("*.csv")).stem,
        root=os.path.relpath(ROOT, folder),
        runs_at=os.path.relpath(RUNS, folder),
        again=again is not None,
        kept=sorted(path.name for path in PUBLISHED.glob("*/runs/*")),
        papers=[_paper(name, *each, again, outcomes, embed) for name, each in papers.items()],
    )  # fmt: skip


def _paper(
    name: str, paper: Paper, rows: Sequence[Judged], again: Path | None,
    outcomes: Mapping[str, str], embed: embedded.Embed,
) -> dict[str, Any]:  # fmt: skip
    judged_again = _judged_again(rows, again) if again else {}
    pictures = sorted((PUBLISHED / name).glob("*.png"))
    return {
        "name": name, "title": f"{paper.short} ({paper.venue})", "note": paper.note,
        "figures": [_figure(path, rows, judged_again, again, outcomes, embed) for path in pictures],
        "others": [_claim(each, {}, {}, {}, {}) for each in rows if each.claim.value is None],
    }  # fmt: skip


def _judged_again(rows: Sequence[Judged], folder: Path) -> dict[str, Judged]:
    """The claims whose figures are in `folder`, judged by these tables, which may lack rows."""
    made = [(each.claim, _made(folder, str(each.claim.figure))) for each in rows]
    found = [by_table(claim, path.parent) for claim, path in made if path is not None]
    return {each.claim.id: each for each in conditional(found)}


def _made(folder: Path, figure: str) -> Path | None:
    """The figure's table of the first folder that has one."""
    tables = [each / f"{figure}.csv" for each in _folders(folder)]
    return next((path for path in tables if path.is_file()), None)


def _folders(folder: Path) -> list[Path]:
    """Those of TIERS, with those of HARDWARE before `quick`, which makes no live figure."""
    of_tiers = [folder / tier for tier in TIERS]
    others = sorted(path.parent for path in folder.glob(f"*/{report.NAME}"))
    return [*of_tiers[:-1], *(each for each in others if each not in of_tiers), of_tiers[-1]]


def _outcomes(folder: Path) -> dict[str, str]:
    """What `reproduce` said of each figure and claim, with its tier and revision."""
    rows = [row for each in reversed(_folders(folder)) for row in report.read(each)]
    return {row.name: ": ".join(filter(None, astuple(row)[2:4])) + f" ({row.made})" for row in rows}


# --- figures


def _figure(
    path: Path, rows: Sequence[Judged], judged_again: Mapping[str, Judged], again: Path | None,
    outcomes: Mapping[str, str], embed: embedded.Embed,
) -> dict[str, Any]:  # fmt: skip
    name, about = path.stem, read_json(path.with_suffix(".json"))
    runs = runs_of(about)
    made, other = again and _made(again, name), path.parent / page.OTHER / f"{name}.csv"
    about_other = read_json(other.with_suffix(".json")) if other.is_file() else {}
    embed_pair = embedded.small if made else embed
    claims = [each for each in rows if each.claim.figure == name and each.claim.value is not None]
    again_runs: list[dict[str, Any]] = [
        run | {"files": [file for file in OF_RUN if (RUNS / run["folder"] / file).is_file()]}
        for run in runs_of(read_json(made.with_suffix(".json")) if made else {})
    ]
    linked = {str(run["hash"]): run for run in again_runs if run["files"]}
    return {
        "name": name,
        "said": embedded.description(path),
        "facts": facts(about),
        "experiments": about["experiments"],
        "runs": runs,
        "kept": (path.parent / "runs" / name).is_dir(),
        "picture": embed_pair(path),
        "other": embed(other) if about_other else None,
        "other_facts": {key: facts(about_other)[key] for key in OF_OTHER if about_other},
        "no_other": _no_other(name, about, other.parent),
        "other_runs": runs_of(about_other),
        "again": embed_pair(made.with_suffix(".png")) if made else None,
        "again_runs": again_runs,
        "outcome": outcomes.get(name, "not held against the committed one by the last command"),
        "claims": [
            _claim(each, {run["hash"]: run for run in runs}, judged_again, outcomes, linked)
            for each in claims
        ],
    }  # fmt: skip


def runs_of(about: Mapping[str, Any]) -> list[dict[str, str]]:
    """Of FIGURE.json: a run's entry is "FOLDER, schedule SHA256, VALID"."""
    found = []
    for config_hash, told in about.get("runs", {}).items():
        folder, schedule = told.split(", ")[:2]
        schedule = schedule.removeprefix("schedule ")[:12]
        found.append({"hash": config_hash, "folder": folder, "schedule": schedule})
    return found


def facts(about: Mapping[str, Any]) -> dict[str, str]:
    """What a reader should know of a figure's numbers: nothing is left empty."""
    if not about["num_runs"]:
        return {"made of": "no run: computed from the paper's numbers and the configuration"}
    origin, refused, runs = about["origin"], about["refused"], about["runs"]
    errors = [part for part in origin if part.startswith(("simulator error", "iteration times"))]
    machines = [part for part in origin[2:] if part not in errors]
    drawn = [part for part in machines if part.startswith("SYNTHETIC")]
    code = [part for part in machines if part.startswith("revision")]
    twice, invalid = about["num_runs"] - len(runs), about.get("num_invalid", "not counted")
    assert all(told.endswith(", VALID") for told in runs.values()), "an INVALID run is not drawn"
    return {
        "engine": origin[0],
        "hardware": "; ".join(part for part in machines if part not in [*drawn, *code]),
        "code": "; ".join(code) or "no revision told",
        "runs": f"{origin[1]}, all VALID; INVALID and made again: {invalid}"
        + (f"; refused in {len(refused)} ways, as: {refused[0]}" if refused else "; none refused"),
        "synthetic inputs": drawn[0].partition(": ")[2] if drawn else "none: recorded requests",
        "simulator error": "; ".join(
            part.removeprefix("simulator error: ") for part in errors
        ) or "not simulated",
        "lineage": f"{len(runs)} run{'s' * (len(runs) > 1)}, named below"
        + (f"; {twice} of them count twice, as parts of two experiments" if twice else ""),
    }  # fmt: skip


def _no_other(name: str, about: Mapping[str, Any], folder: Path) -> str:
    """Why a figure has no picture of the other engine profile, whose tables are in `folder`."""
    if not about["num_runs"]:
        return "it is made of no run"
    if about["engines"] != ["sim"]:
        return "it has runs on a real engine, which has no profile"
    if name in NOT_DRAWN:
        return NOT_DRAWN[name]
    tables = sorted(folder.glob("*.json"), reverse=True)  # of one experiment's the first counts
    made_for = {one: path.stem for path in tables for one in read_json(path)["experiments"]}
    would = f"make sensitivity-{name.partition('_')[0]} would"
    if made_for.keys() >= set(about["experiments"]):
        others = ", ".join(dict.fromkeys(made_for[one] for one in about["experiments"]))
        return f"its runs were made with it for {others}; this figure was not drawn, {would} do so"
    return (
        f"its {about['num_runs']} runs have {BASE_PROFILE} alone, vLLM as it was when the papers "
        f"were written; with {page.OTHER} they were left out for time, and {would} make them"
    )


# --- claims


def _claim(
    each: Judged, runs: Mapping[str, Mapping[str, str]], again: Mapping[str, Judged],
    outcomes: Mapping[str, str], linked: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    claim, other, made = each.claim, each.profiles.get(page.OTHER), again.get(each.claim.id)
    notes = "; ".join(page.notes(each)).replace("*", "")
    outcome = outcomes.get(f"{claim.paper}/{claim.id}", "")
    return {
        "id": claim.id, "section": claim.section, "quantity": claim.quantity,
        "headline": claim.headline, "published": page.published(claim),
        "tolerance": f"± {claim.tolerance:.0%}" if claim.tolerance else "no tolerance",
        "ours": page.values(claim, each.ours) or f"no value: {each.verdict}",
        "seeds": _seeds(each), "verdict": page.verdict(each),
        "kind": each.verdict.replace(" ", "-"),
        "rests_on": ", ".join([each.kind, *(each.source or {}).get("hardware", ())]),
        "other": _beside(claim, other) if other else _no_value(each),
        "again": (f"{_beside(claim, made)}. {outcome}" if made else "not made again"),
        "again_runs": [linked[name] for name in (made.runs if made else ()) if name in linked][
            :MAX_LINKED
        ],
        "notes": notes or HOLDS.get(each.verdict, page.verdict(each)),
        "runs": [runs[name] for name in each.runs if name in runs],
        "all_runs": len(each.runs) > MAX_NAMED,
    }  # fmt: skip


def _beside(claim: Any, other: Judged) -> str:
    told = f"{page.values(claim, other.ours) or 'no value'}: {page.verdict(other)}"
    return told if other.ours or not other.why else f"{told}: {other.why}"


def _seeds(each: Judged) -> str:
    if not each.ours:
        return ""
    count = min(ours.num_seeds for ours in each.ours)
    if count > 1:
        return f"{count} seeds"
    return "exact: nothing is drawn" if each.claim.exact else "one value, no interval"


def _no_value(each: Judged) -> str:
    """Why there is no verdict with the other engine profile."""
    if not each.ours:
        return "no value"
    if each.kind in ARITHMETIC:
        return "no engine in it"
    return "not made with it" if each.kind == "simulated" else "a real engine has no profile"
