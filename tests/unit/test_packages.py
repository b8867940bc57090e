"""What an evaluator installs and cites: requirements with checksums, the citation, the paper."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def pinned(name: str) -> list[str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_every_pinned_package_has_checksums_and_no_index_is_named() -> None:
    hashed = [line.split() for line in pinned("cpu.hashes.txt")]
    assert [name for name, *_ in hashed] == pinned("cpu.txt")
    for name, *sums in hashed:
        assert sums, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in sums), name
        assert len(set(sums)) == len(sums), name
    assert "://" not in (ROOT / "requirements/cpu.hashes.txt").read_text()


@pytest.mark.parametrize("failed", [0, 1])
def test_the_self_test_keeps_what_it_found_and_the_certificate(tmp_path: Path, failed: int) -> None:
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport sys; from pathlib import Path\n"
        "runs = Path('results/runs'); runs.mkdir(parents=True, exist_ok=True)\n"
        "made = runs / 'certificate.json' if '--certificate' in sys.argv else sys.argv[-1]\n"
        "Path(made).write_text('{}')\n"
        f"sys.exit({failed} and '--certificate' not in sys.argv)\n"
    )
    python.chmod(0o755)
    words = ["make", "-f", str(ROOT / "Makefile"), "-o", "setup", "selftest", f"PY={python}"]
    ended = subprocess.run(words, cwd=tmp_path, check=False, capture_output=True)
    assert bool(ended.returncode) == bool(failed)
    assert not (tmp_path / "results/published").exists()
    kept = (tmp_path / "results/runs/selftest").iterdir()
    assert {path.name for path in kept} == {"selftest.json", "certificate.json"}


def test_the_citation_and_the_deposit_say_the_same() -> None:
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    deposit = json.loads((ROOT / ".zenodo.json").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for key in ("title", "version", "license", "keywords"):
        assert cff[key] == deposit[key], key
    assert (project["version"], project["license"]) == (cff["version"], cff["license"])
    assert list(map(named, cff["authors"])) == [each["name"] for each in deposit["creators"]]


def named(author: dict[str, str]) -> str:
    return author.get("name") or f"{author['family-names']}, {author['given-names']}"


def test_a_person_is_named_as_in_a_deposit() -> None:
    assert named({"family-names": "Lovelace", "given-names": "Ada"}) == "Lovelace, Ada"


def test_each_citation_of_the_paper_is_in_its_bibliography() -> None:
    cited = re.findall(r"@([\w-]+)", (ROOT / "paper.md").read_text().partition("---\n\n")[2])
    listed = re.findall(r"^@\w+\{([\w-]+),", (ROOT / "paper.bib").read_text(), re.MULTILINE)
    assert len(set(listed)) == len(listed)
    assert set(cited) == set(listed), "neither a citation without an entry nor an entry unused"


SECTIONS = (  # that the Journal of Open Source Software asks for since 2026
    "Summary", "Statement of need", "State of the field", "Software design",
    "Research impact statement", "AI usage disclosure", "Acknowledgements", "References",
)  # fmt: skip


def test_the_paper_has_the_journals_sections_and_two_pages() -> None:
    text = (ROOT / "paper.md").read_text().partition("---\n\n")[2]
    heads = re.findall(r"^# (.+)", text, re.MULTILINE)
    assert [each for each in heads if each in SECTIONS] == [*SECTIONS]
    assert 750 <= len(text.split()) <= 1000
