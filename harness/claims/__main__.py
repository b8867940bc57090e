"""`python -m harness claims`: compares published numbers with ours.

Reads the claims in results/claims/PAPER.yaml and the figures' tables in results/published/PAPER.
Runs nothing. Writes results/claims: README.md, which has the rule, claims.csv, changed.md, which
tells what changed since the last published version, experiments.md, which has each claim's command,
PAPER.json, effects.png, and the table on the front page. If the figures were also simulated with
another engine profile (`make sensitivity-PAPER`), each simulated claim has both verdicts.

What a verdict depends on (bounds, expressions, settings of runs) is registered in lock.json. The
claims that differ from it are named, and --why TEXT accepts them: the text goes to changes.csv.
Tables of runs from changed, uncommitted code are refused, unless --dirty is given.

--check writes nothing, and says whether what is committed is what the tables give, and the verdicts
in results/claims/reproductions what their values give.

--of DIR judges the tables of another folder, such as those that `python -m harness figures FIGURE
--out DIR` made on other hardware, and changes nothing that is committed; --out FILE.csv keeps the
verdicts. --of FILE.csv checks such a file: each verdict is judged again by the file's values.

--since VERSION tells what changed in claims.csv since an earlier one, which is a file or a revision
of git; --out FILE.md keeps the page.

Exit status: 0 done, whatever the verdicts; 1 --check or --of FILE.csv found a difference; 2 a wrong
command or ledger, or a change without a reason.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.claims import data, elsewhere, experiments, page, registration, since
from harness.claims.assess import Judged, by_profile, conditional, judged
from harness.claims.judging import RULE, VERDICTS
from harness.claims.ledger import Paper, load
from harness.claims.page import Papers
from harness.claims.record import as_json, committed, tally
from harness.claims.registration import Change
from harness.configuration.command_line import ends_in_order, parser
from harness.errors import UsageError
from harness.files import read_json, write_text, writing

ROOT = Path(__file__).resolve().parents[2]
CLAIMS, PUBLISHED = ROOT / "results/claims", ROOT / "results/published"
LOCK, CHANGES = "lock.json", "changes.csv"
VERSIONS = "versions"  # claims.csv as it was published, DATE.csv


@ends_in_order
def main(arguments: Sequence[str] | None = None) -> int:
    about = parser("claims", __doc__)
    one = about.add_mutually_exclusive_group()
    one.add_argument("--check", action="store_true", help="compare with what is committed")
    one.add_argument("--why", metavar="TEXT", help="why registered facts were changed")
    one.add_argument(
        "--of", type=Path, metavar="PATH", help="a folder of tables, or a CSV of verdicts"
    )
    about.add_argument(
        "--out", type=Path, metavar="FILE", help="with --of DIR or --since: keep what is told"
    )
    one.add_argument("--since", metavar="VERSION", help="what changed since a CSV, or a revision")
    about.add_argument("--dirty", action="store_true", help="judge runs of uncommitted code too")
    chosen = about.parse_args(arguments)
    if chosen.of is not None:
        return _elsewhere(chosen.of, chosen.out)
    if chosen.since is not None:
        return _changed_since(chosen.since, chosen.out)
    if chosen.out is not None:
        raise UsageError(f"--out {chosen.out} goes with --of DIR or --since VERSION")
    papers = assessed()
    if not chosen.dirty:
        refuse_dirty(papers)
    lock = locked(papers)
    changes = _changes(papers, lock, chosen.why or "")
    if changes and not (chosen.why or chosen.check):
        for change in changes:
            print(f"  {change.paper} {change.claim}: {change.what}", file=sys.stderr)
        raise UsageError(f"{len(changes)} registered facts changed: say why with --why TEXT")
    made = written(papers, lock, changes)
    if chosen.check:
        return _check(made, changes)
    for path, text in made.items():
        write_text(path, text)
    import_module("plots.claims").draw(CLAIMS)
    for name, (_, rows) in papers.items():
        _tell(name, rows)
    return 0


def _elsewhere(path: Path, out: Path | None) -> int:
    if path.is_dir():
        return elsewhere.of_folder(path, CLAIMS, out)
    if out is not None:
        raise UsageError(f"--of {path} is no folder: --out {out} goes with one")
    return elsewhere.check_file(path, CLAIMS)


def _changed_since(version: str, out: Path | None) -> int:
    old = since.earlier(version, ROOT)
    shown = since.page(old, data.read(CLAIMS / "claims.csv"), version)
    print(shown)
    if out is not None:
        with writing(out):
            write_text(out, shown)
    return 0


def assessed() -> dict[str, tuple[Paper, list[Judged]]]:
    """Every paper's claims, judged. Raises UsageError for a wrong ledger or table."""
    found = {}
    for path in sorted(CLAIMS.glob("*.yaml")):
        paper, published = load(path), PUBLISHED / path.stem
        rows = conditional([judged(each, published, paper.variations) for each in paper.claims])
        for row in rows:
            row.profiles = by_profile(row.claim, published)
        for name in {name for row in rows for name in row.profiles}:
            simulated = [row for row in rows if name in row.profiles]
            others = conditional([row.profiles[name] for row in simulated])
            for row, other in zip(simulated, others, strict=True):
                row.profiles[name] = other
        found[path.stem] = (paper, rows)
    return found


def refuse_dirty(papers: Papers) -> None:
    """Raises UsageError where a claim rests on runs of uncommitted code."""
    dirty = {
        str(row.claim.figure)
        for _, rows in papers.values()
        for each in rows
        for row in (each, *each.profiles.values())
        if row.source and any(git is None or git["dirty"] for git in row.source["runs_git"])
    }
    if dirty:
        raise UsageError(
            f"runs of uncommitted code are behind {', '.join(sorted(dirty))}: draw these figures "
            "from a clean tree, or judge them with --dirty"
        )


def locked(papers: Papers) -> dict[str, Any]:
    every = [row for _, rows in papers.values() for row in rows]
    figures = {str(row.claim.figure): row.source for row in every if row.source}
    return registration.lock(RULE, {name: paper for name, (paper, _) in papers.items()}, figures)


def _changes(papers: Papers, lock: Mapping[str, Any], why: str) -> list[Change]:
    before = read_json(CLAIMS / LOCK) if (CLAIMS / LOCK).is_file() else {}
    old = {name: row for name, row in committed(CLAIMS).items() if "registered" in row}
    now = {(name, row.claim.id): row for name, (_, rows) in papers.items() for row in rows}
    today = datetime.now(UTC).date().isoformat()
    found = []
    for paper, claim in registration.changed(before, lock):
        was, row = old.get((paper, claim)), now.get((paper, claim))
        fields = registration.differences(
            claim,
            was["registered"] if was else None,
            registration.registered(row.claim) if row else None,
        )
        verdicts = (str(was["verdict"]) if was else "", row.verdict if row else "")
        found += [
            Change(today, paper, claim, what, before, after, *verdicts, why)
            for what, before, after in fields
        ]
    return found


def written(papers: Papers, lock: Mapping[str, Any], changes: Sequence[Change]) -> dict[Path, str]:
    """Every file that this command writes, but the picture."""
    made = {
        CLAIMS / f"{name}.json": _json(as_json(name, rows)) for name, (_, rows) in papers.items()
    }
    made |= {CLAIMS / LOCK: _json(lock), CLAIMS / "README.md": page.as_markdown(papers)}
    every = [(row, PUBLISHED / name) for name, (_, rows) in papers.items() for row in rows]
    csv = made[CLAIMS / "claims.csv"] = data.as_csv(every)
    made[CLAIMS / "experiments.md"] = experiments.as_markdown(papers, PUBLISHED)
    if version := max((CLAIMS / VERSIONS).glob("*.csv"), default=None):
        old = since.earlier(str(version), ROOT)
        made[CLAIMS / "changed.md"] = since.page(old, since.table(csv), version.stem)
    if changes:
        made[CLAIMS / CHANGES] = registration.appended(CLAIMS / CHANGES, changes)
    return made | page.on_other_pages(papers, ROOT)


def _json(content: Any) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _check(made: Mapping[Path, str], changes: Sequence[Change]) -> int:
    wrong = [*_unlike(made), *(f"{c.paper} {c.claim}: {c.what} is not locked" for c in changes)]
    for line in wrong:
        print(line)
    for path in sorted((CLAIMS / "reproductions").glob("*.csv")):
        print(f"{path.name}: ", end="")
        wrong += [path.name] if elsewhere.check_file(path, CLAIMS) else []
    print(f"{len(made)} files: {'as committed' if not wrong else f'{len(wrong)} differences'}")
    return 1 if wrong else 0


def _unlike(made: Mapping[Path, str]) -> Iterator[str]:
    for path, text in made.items():
        old = path.read_text(encoding="utf-8") if path.is_file() else ""
        if old != text:
            lines = zip(old.splitlines(), text.splitlines(), strict=False)
            first = next((new for was, new in lines if was != new), "its length")
            yield f"{path.relative_to(ROOT)} differs, first at: {first.strip()[:120]}"


def _tell(name: str, rows: Sequence[Judged]) -> None:
    counts = tally(rows)
    print(f"{name}: {', '.join(f'{counts[word]} {word}' for word in VERDICTS if counts[word])}")
    for row in rows:
        if row.ours:
            ours = " to ".join(f"{each.mean:.4g}" for each in row.ours)
            published = " to ".join(f"{end:g}" for end in row.claim.ends)
            print(f"  {row.verdict:14} {row.claim.id}: {ours} ({published})")


if __name__ == "__main__":
    sys.exit(main())
