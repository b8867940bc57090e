"""The report: every paper, figure and claim on one page that needs no network, server or script.

Per paper its figures, each with both engine profiles, where its numbers came from, the command that
makes it, its runs, and the claims that rest on it: published, ours, verdict, reason, runs.

results/published/report.html is committed, and made of what is committed. With figures that were
made again (`python -m harness reproduce`), results/reproduced/report.html has them, too, beside the
committed ones, with their verdicts. Links lead to files that are there: to tables, and to the one
run of each paper that is committed (results/published/PAPER/runs/FIGURE). Others are named by hash.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.claims import page
from harness.claims.__main__ import CLAIMS, PUBLISHED, ROOT, VERSIONS, assessed
from harness.claims.assess import BASE_PROFILE, Judged, conditional, judged
from harness.claims.kinds import ARITHMETIC
from harness.claims.ledger import Paper
from harness.files import make_folder, read_json, write_text, writing
from plots import embedded
from plots.report import template

REPRODUCED = ROOT / "results/reproduced"
NAME = "report.html"
MAX_NAMED = 40  # runs of a claim; of more, a link to the figure's
HOLDS = {  # why a claim is judged so, where neither code nor ledger says more
    "reproduced": "the whole interval lies within the tolerance",
    "trend only": "outside of the tolerance, with at least half of the published effect",
    "weak": "less than half of the published effect",
}


def write(out: Path | None = None) -> Iterator[Path]:
    """Writes the committed page and, if any figure was made again, the one with both; or the latter
    alone, to `out`. Raises UsageError for a wrong ledger or table."""
    papers = assessed()
    made_again = out is not None or any(REPRODUCED.glob("*.csv"))
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
        "others": [_claim(each, {}, {}) for each in rows if each.claim.value is None],
    }  # fmt: skip


def _judged_again(rows: Sequence[Judged], folder: Path) -> dict[str, Judged]:
    """The claims whose figures are in `folder`, judged by these."""
    there = [each.claim for each in rows if (folder / f"{each.claim.figure}.csv").is_file()]
    return {each.claim.id: each for each in conditional([judged(one, folder) for one in there])}


def _outcomes(folder: Path) -> dict[str, str]:
    """What `reproduce` said of each figure and claim: report.md's rows."""
    path = folder / "report.md"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rows = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in lines if line.startswith("| ")]
    return {name: ": ".join(filter(None, told)) for _, name, *told in rows[2:]}


# --- figures


def _figure(
    path: Path, rows: Sequence[Judged], judged_again: Mapping[str, Judged], again: Path | None,
    outcomes: Mapping[str, str], embed: embedded.Embed,
) -> dict[str, Any]:  # fmt: skip
    name, about = path.stem, read_json(path.with_suffix(".json"))
    runs = runs_of(about)
    other, made = path.parent / page.OTHER, again and again / path.name
    claims = [each for each in rows if each.claim.figure == name and each.claim.value is not None]
    return {
        "name": name,
        "said": embedded.description(path),
        "facts": facts(about, runs),
        "experiments": about["experiments"],
        "runs": runs,
        "kept": (path.parent / "runs" / name).is_dir(),
        "picture": embed(path),
        "other": embed(other / f"{name}.csv") if (other / f"{name}.csv").is_file() else None,
        "no_other": _no_other(name, about),
        "other_runs": runs_of(read_json(other / f"{name}.json"))
        if (other / f"{name}.json").is_file() else [],
        "again": embed(made) if made and made.is_file() else None,
        "again_runs": runs_of(read_json(made.with_suffix(".json")))
        if made and made.is_file() else [],
        "outcome": outcomes.get(name, "not held against the committed one by the last command"),
        "claims": [
            _claim(each, {run["hash"]: run for run in runs}, judged_again, outcomes)
            for each in claims
        ],
    }  # fmt: skip


def runs_of(about: Mapping[str, Any]) -> list[dict[str, str]]:
    """Of FIGURE.json: a run's entry is "FOLDER, schedule SHA256, VALID"."""
    found = []
    for config_hash, told in about.get("runs", {}).items():
        schedule = told.split(", ")[1].removeprefix("schedule ")[:12]
        found.append({"hash": config_hash, "schedule": schedule})
    return found


def facts(about: Mapping[str, Any], runs: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What a reader should know of a figure's numbers: nothing is left empty."""
    if not about["num_runs"]:
        return {"made of": "no run: computed from the paper's numbers and the configuration"}
    origin = about["origin"]
    errors = [part for part in origin if part.startswith(("simulator error", "iteration times"))]
    machines = [part for part in origin[2:] if part not in errors]
    refused = about["refused"]
    drawn = [part for part in machines if part.startswith("SYNTHETIC")]
    code = [part for part in machines if part.startswith("revision")]
    twice = about["num_runs"] - len(runs)
    return {
        "engine": origin[0],
        "hardware": "; ".join(part for part in machines if part not in [*drawn, *code]),
        "code": "; ".join(code) or "no revision told",
        "runs": f"{origin[1]}, all VALID: an INVALID run is made again and not counted"
        + (f"; refused in {len(refused)} ways, as: {refused[0]}" if refused else "; none refused"),
        "synthetic inputs": drawn[0].partition(": ")[2] if drawn else "none: recorded requests",
        "simulator error": "; ".join(
            part.removeprefix("simulator error: ") for part in errors
        ) or "not simulated",
        "lineage": f"{len(runs)} run{'s' * (len(runs) > 1)}, named below"
        + (f"; {twice} of them count twice, as parts of two experiments" if twice else "")
        if runs else "none: drawn before runs were named",
    }  # fmt: skip


def _no_other(name: str, about: Mapping[str, Any]) -> str:
    """Why a figure has no picture of the other engine profile."""
    if not about["num_runs"]:
        return "it is made of no run"
    if about["engines"] != ["sim"]:
        return "it has runs on a real engine, which has no profile"
    paper = name.partition("_")[0]
    return (
        f"its {about['num_runs']} runs have {BASE_PROFILE} alone, vLLM as it was when the papers "
        f"were written; with {page.OTHER} they were left out for time, and "
        f"make sensitivity-{paper} would make them"
    )


# --- claims


def _claim(
    each: Judged, runs: Mapping[str, Mapping[str, str]], again: Mapping[str, Judged],
    outcomes: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    claim, other, made = each.claim, each.profiles.get(page.OTHER), again.get(each.claim.id)
    notes = "; ".join(page.notes(each)).replace("*", "")
    outcome = (outcomes or {}).get(f"{claim.paper}/{claim.id}", "")
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
        "notes": notes or HOLDS.get(each.verdict, page.verdict(each)),
        "runs": [runs[name] for name in each.runs if name in runs],
        "all_runs": len(each.runs) > MAX_NAMED,
    }  # fmt: skip


def _beside(claim: Any, other: Judged) -> str:
    return f"{page.values(claim, other.ours) or 'no value'}: {page.verdict(other)}"


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
