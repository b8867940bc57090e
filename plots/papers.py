"""papers.html: every paper, figure and claim on one page that needs no network, server or script.

Per paper its figures, each with where its numbers came from, the command that makes it, and the
claims that rest on it: published, ours with both engine profiles, verdict, reason. A figure that
was made again (`python -m harness reproduce`) stands beside the committed one, with its verdicts.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from harness.claims import page
from harness.claims.__main__ import PUBLISHED, ROOT, assessed
from harness.claims.assess import BASE_PROFILE, Judged, conditional, judged
from harness.claims.ledger import Paper
from harness.files import make_folder, read_json, write_text, writing
from plots.report import data_url, template

COLOURS = 64  # of a picture on the page: a third of the bytes, and nothing is lost in print
REPRODUCED = ROOT / "results/reproduced"
PAGE = REPRODUCED / "papers.html"  # not committed: it is made of what is


def write(path: Path) -> Path:
    """Writes the page to `path`. Raises UsageError for a wrong ledger or table."""
    make_folder(path.parent)
    papers = assessed()
    head, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.counts(papers)
    ]
    with writing(path):
        shown = template("papers.html").render(
            counts={"head": head, "rows": rows[1:]},
            profiles=(BASE_PROFILE, page.OTHER),
            papers=[_paper(name, *each) for name, each in papers.items()],
        )
        write_text(path, shown)
    return path


def _paper(name: str, paper: Paper, rows: Sequence[Judged]) -> dict[str, Any]:
    again = _made_again(rows)
    pictures = sorted((PUBLISHED / name).glob("*.png"))
    return {
        "name": name, "title": f"{paper.short} ({paper.venue})", "note": paper.note,
        "figures": [_figure(path, rows, again) for path in pictures],
        "others": [_claim(each, {}) for each in rows if each.claim.value is None],
    }  # fmt: skip


def _made_again(rows: Sequence[Judged]) -> dict[str, Judged]:
    """The claims whose figures are in REPRODUCED, judged by these."""
    there = {
        each.claim.figure for each in rows if (REPRODUCED / f"{each.claim.figure}.csv").is_file()
    }
    found = conditional([judged(each.claim, REPRODUCED) for each in rows
                         if each.claim.figure in there])  # fmt: skip
    return {each.claim.id: each for each in found}


def _figure(path: Path, rows: Sequence[Judged], again: Mapping[str, Judged]) -> dict[str, Any]:
    name = path.stem
    about = path.with_suffix(".json")
    made = read_json(about) if about.is_file() else {"origin": [], "runs": {}}
    runs = made.get("runs", {})
    other = REPRODUCED / path.name
    return {
        "name": name,
        "origin": made["origin"],
        "invalid": sum("INVALID" in told for told in runs.values()),
        "num_runs": len(runs),
        "picture": _data_url(path),
        "again": _data_url(other) if other.is_file() else None,
        "claims": [
            _claim(each, again)
            for each in rows
            if each.claim.figure == name and each.claim.value is not None
        ],
    }


def _claim(each: Judged, again: Mapping[str, Judged]) -> dict[str, Any]:
    claim, other, made = each.claim, each.profiles.get(page.OTHER), again.get(each.claim.id)
    return {
        "id": claim.id, "section": claim.section, "quantity": claim.quantity,
        "headline": claim.headline, "published": page.published(claim),
        "ours": page.values(claim, each.ours), "verdict": page.verdict(each),
        "kind": each.verdict.replace(" ", "-"),
        "other": f"{page.values(claim, other.ours)}: {page.verdict(other)}" if other else "",
        "again": f"{page.values(claim, made.ours)}: {page.verdict(made)}" if made else "",
        "notes": "; ".join(page.notes(each)).replace("*", ""),
    }  # fmt: skip


def _data_url(path: Path) -> str:
    made = io.BytesIO()
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(COLOURS).save(made, "PNG", optimize=True)
    return data_url(made.getvalue())
