"""Applies each mutant to a copy of the tree and runs its test: `python -m tests.mutants [PAPER …]`.

Exit status 0: every mutant was caught. 1: some survived. 2: nothing can be said, because a name is
unknown, a mutant does not fit the code, a test cannot run, or a test fails without any mutant.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.mutants import PAPERS, ROOT, Mutant, load

TIMEOUT_S = 300  # of a test; a mutant may wait for ever
FAILED = 1  # pytest's exit status if tests failed; others mean that they did not run


def main(papers: Sequence[str]) -> int:
    try:
        unknown = [paper for paper in papers if paper not in PAPERS]
        if unknown:
            raise ValueError(
                f"there are no mutants of {', '.join(unknown)}; valid: {', '.join(PAPERS)}"
            )
        mutants = [(paper, mutant) for paper in papers or PAPERS for mutant in load(paper)]
        with tempfile.TemporaryDirectory(prefix="mutants-") as name:
            return judge(Path(name), mutants)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130


def judge(folder: Path, mutants: Sequence[tuple[str, Mutant]]) -> int:
    """Runs every mutant in `folder` and prints a table; returns the exit status. Raises ValueError
    if a test fails without a mutant."""
    copy_tree(folder)
    tests = sorted({mutant.caught_by for _, mutant in mutants})
    print(f"{len(tests)} tests without a mutant …", flush=True)
    before = run(folder, tests)
    if before.returncode:
        raise ValueError(
            f"{before.stdout}\npytest ended with status {before.returncode}: "
            "tests must pass without a mutant"
        )
    found: Counter[str] = Counter()
    for number, (paper, mutant) in enumerate(mutants, start=1):
        start_s = time.monotonic()
        ended = run_mutant(folder, mutant)
        word = {FAILED: "caught", 0: "SURVIVED"}.get(ended.returncode, "BROKEN")
        found[word] += 1
        took_s = time.monotonic() - start_s
        print(
            f"{number:3}/{len(mutants)}  {paper:10}  {word:8}  {took_s:4.0f} s  {mutant.id}",
            flush=True,
        )
        if word == "SURVIVED":
            print(f"         {mutant.breaks} {mutant.caught_by} passes.", flush=True)
        elif word == "BROKEN":
            print(f"{ended.stdout}\npytest ended with status {ended.returncode}", flush=True)
    print(f"{found['caught']} of {len(mutants)} mutants were caught")
    return 2 if found["BROKEN"] else 1 if found["SURVIVED"] else 0


def run_mutant(folder: Path, mutant: Mutant) -> subprocess.CompletedProcess[str]:
    """Runs the mutant's test with the mutant in place."""
    path = folder / mutant.file
    text = path.read_text()
    path.write_text(mutant.applied(text))
    os.utime(path, (0, 0))  # bytecode of the same second and length would pass for its own
    try:
        return run(folder, [mutant.caught_by], PYTHONDONTWRITEBYTECODE="1")
    finally:
        path.write_text(text)


def run(folder: Path, tests: Iterable[str], **env: str) -> subprocess.CompletedProcess[str]:
    """Runs tests of the copy, as Python, since compiled modules are those of other sources. What a
    test does on live workers is left out: policies need none."""
    options = ["-q", "-x", "-m", "not live", f"--timeout={TIMEOUT_S}", "-p", "no:cacheprovider"]
    known = {"HARNESS_PURE": "1", "OMP_NUM_THREADS": "1", "HYPOTHESIS": "unshrunk"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=folder, env=os.environ | known | env, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip


def copy_tree(folder: Path) -> None:
    """Copies the files that git knows or does not ignore, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
