"""`make archive`: one commit, the same bytes, and a revision without git."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.records import manifest
from harness.records.manifest import PROJECT, archived_revision

pytestmark = pytest.mark.skipif(
    shutil.which("git") is None or not (PROJECT / ".git").exists(), reason="no git checkout"
)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clone") / "project"
    subprocess.run(["git", "clone", "-q", "--depth", "1", PROJECT.as_uri(), folder], check=True)
    return folder


def make(clone: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "archive"], cwd=clone, capture_output=True, text=True)


@pytest.fixture(scope="module")
def archives(clone: Path) -> list[Path]:
    """Two of one commit."""
    packed = []
    for number in range(2):
        (clone / "build/elastic-harness-0.0.1").mkdir(parents=True)  # of an earlier version
        done = make(clone)
        assert done.returncode == 0, done.stderr
        (archive,) = (clone / "build").glob("elastic-*")
        packed.append(archive.rename(clone / "build" / f"{number}.tar.gz"))
    return packed


def unpacked(archive: Path, into: Path) -> Path:
    shutil.unpack_archive(archive, into)
    (folder,) = into.iterdir()
    return folder


def test_an_archive_is_the_commit_and_says_which_one(
    archives: list[Path], clone: Path, tmp_path: Path
) -> None:
    first, second = archives
    assert first.read_bytes() == second.read_bytes()
    folder = unpacked(first, tmp_path)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=clone, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert archived_revision(folder) == {"revision": head, "dirty": False}
    assert not (folder / ".git").exists()
    next((folder / "results/published/aqua").rglob("*.csv")).write_text("drawn again")
    assert archived_revision(folder) == {"revision": head, "dirty": False}
    (folder / "conf/config.yaml").write_text("changed")
    assert archived_revision(folder) == {"revision": head, "dirty": True}


RUN = (
    "+system=vllm +workload=azure_code workload.window.seconds=[0,30] engine=sim tracking=none "
    "figure=null"
)


def test_the_unpacked_archive_needs_neither_history_nor_a_network(
    archives: list[Path], tmp_path: Path
) -> None:
    folder = unpacked(archives[0], tmp_path)
    known = {key: value for key, value in os.environ.items() if key != "HARNESS_DATA_DIR"}
    known |= dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")

    def said(arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "harness", *arguments.split()], cwd=folder, env=known,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert "reproduce" in said("--help")
    assert "num_requests" in said("+experiment=demo --cfg job")
    said("claims --check")
    assert "VALID" in said(RUN)
    (manifest_of_run,) = (folder / "results/runs").glob("*/manifest.json")
    revision = json.loads(manifest_of_run.read_text())["git"]
    assert revision == {"revision": (folder / "REVISION").read_text().strip(), "dirty": False}


def test_what_was_drawn_makes_no_run_dirty(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "PROJECT", clone)
    files = {
        "results/published/aqua/again.csv": False,
        "results/published/fidelity/again.csv": True,
        "new.py": True,
    }
    for file, dirty in ((clone / name, dirty) for name, dirty in files.items()):
        file.touch()
        found = manifest.git_revision.__wrapped__()
        file.unlink()
        assert found is not None
        assert found["dirty"] is dirty


def test_a_changed_tree_is_not_packed(clone: Path) -> None:
    new = clone / "new.txt"
    new.write_text("not committed")
    done = make(clone)
    new.unlink()
    assert done.returncode == 2
    assert "commit first" in done.stdout


def test_a_folder_that_is_neither_has_no_revision(tmp_path: Path) -> None:
    assert archived_revision(tmp_path) is None


def test_the_deposit_has_the_version_of_the_package() -> None:
    (version,) = re.findall(r'^version = "(.*)"', (PROJECT / "pyproject.toml").read_text(), re.M)
    assert json.loads((PROJECT / ".zenodo.json").read_text())["version"] == version
    assert f'version: "{version}"' in (PROJECT / "CITATION.cff").read_text()
