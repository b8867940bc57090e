"""AQUA's plug-in in a real vLLM: the same tokens as stock's, whoever was paged out, where and when.

All engines are made one after the other in one process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from systems.aqua.config import Coordination
from systems.aqua.plugin.servers import lending
from tests.running import ROOT, model_spec

pytestmark = [pytest.mark.vllm]  # not live: engines count steps, not seconds

PLUGIN = ROOT / "systems/aqua/plugin"
# (step of arrival, prompt tokens, output tokens); a batch is 64 tokens, a block 32
REQUESTS = [(0, 60 + 13 * i, 40 + 5 * i) for i in range(6)]
REQUESTS += [(10, 150, 30), (10, 33, 60), (12, 64, 20), (20, 5, 64)]
ROOMY, TIGHT = 64, 20  # blocks; the longest request needs 6
Found = dict[str, Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.checkpoints import save_checkpoint

    directory = tmp_path_factory.mktemp("model")
    save_checkpoint(model_spec("tiny-llama"), directory)
    return directory


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plug-in's package by itself, as pip would lay it out."""
    folder = tmp_path_factory.mktemp("site")
    setup = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["tool"]["setuptools"]
    for package in setup["packages"]:
        target = folder / package.replace(".", "/")
        target.mkdir(parents=True, exist_ok=True)
        for source in (PLUGIN / setup["package-dir"][package]).glob("*.py"):
            shutil.copy(source, target)
    return folder


LEASE = "lease"
BLOCK_BYTES = 4 * 32 * 2 * 4 * 32 * 4  # layers, tokens, K and V, heads, width of a head, float32
LENT_BLOCKS = 12  # two requests' or three
OUT, BACK = "blocks/page out to", "blocks/page in from"
JOBS: dict[str, Found] = {
    "stock": {"aqua": False, "blocks": ROOMY},
    "tight": {},
    "roomy": {"blocks": ROOMY},
    "aborted": {"abort_one_paged_at": [30, 45], "prefixes": True},
    "by_block": {"extra": {"copies": "by_block"}},
    "fcfs": {"extra": {"fcfs_when_in_dram": "any"}},
    "lost": {
        "transfer": {
            "kv_connector": "LosingConnector",
            "kv_connector_module_path": "aqua_losing",
        }
    },
    "void": {"reset_at": [30]},
    "reclaimed": {"reclaim_at": 62, "extra": {"migrate_every_iterations": 1}},
    "killed": {"kill_lender_at": 40},
    "no slices": {"extra": {"slice_iterations": 0}},
    "unknown": {"extra": {"slices": 5}},
    "priority": {"engine": {"scheduling_policy": "priority"}},
    "nobody": {"extra": {"coordinator": "http://127.0.0.1:1"}},
}


def job(model: Path, changes: Found) -> Found:
    whole: Found = {
        "aqua": True, "model": str(model), "prefixes": False, "requests": REQUESTS,
        "abort_one_paged_at": [], "reset_at": [], "reclaim_at": None, "kill_lender_at": None,
        "blocks": TIGHT, "engine": {}, "transfer": {},
    }  # fmt: skip
    whole |= changes
    whole["extra"] = {"slice_iterations": 5} | changes.get("extra", {})
    whole["engine"] = {
        "num_gpu_blocks_override": whole["blocks"], "block_size": 32, "max_num_seqs": 16,
        "max_num_batched_tokens": 64, "max_model_len": 256, **whole["engine"],
    }  # fmt: skip
    return whole


@contextmanager
def lent(num_ranks: int = 1) -> Iterator[tuple[str, list[int]]]:
    config = Coordination(heartbeat_timeout_s=60.0, process=True, port=0)
    with lending(config, LENT_BLOCKS * BLOCK_BYTES // num_ranks, num_ranks) as found:
        yield found


@pytest.fixture(scope="module")
def found(
    model: Path, installed: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Found]:
    """What each job found."""
    folder = tmp_path_factory.mktemp("jobs")
    jobs = {name: job(model, changes) for name, changes in JOBS.items()}
    with lent() as reclaimed, lent() as killed:
        for name, (url, (process,)) in {"reclaimed": reclaimed, "killed": killed}.items():
            jobs[name]["extra"]["coordinator"] = url
            jobs[name]["lender"] = process
        return run_jobs(jobs, installed, folder)


def run_jobs(jobs: dict[str, Found], installed: Path, folder: Path) -> dict[str, Found]:
    """`installed`: where the plug-in is imported from."""
    file = folder / "jobs.json"
    file.write_text(json.dumps(list(jobs.values())))
    words = [sys.executable, str(ROOT / "tests/integration/aqua_offline.py"), str(file)]
    done = subprocess.run(
        words, cwd=folder, env=os.environ | {"PYTHONPATH": str(installed)}, text=True,
        capture_output=True, timeout=850, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(zip(jobs, map(json.loads, lines), strict=True))


def needed(i: int) -> int:
    return REQUESTS[i][1] + REQUESTS[i][2] - 1


def total(counts: Found, start: str) -> int:
    return sum(int(number) for name, number in counts.items() if name.startswith(start))


def computed_once(aqua: Found) -> bool:
    once: bool = aqua["computed"] == {str(i): needed(i) for i in range(len(REQUESTS))}
    return once


@pytest.mark.parametrize("name", ["tight", "by_block"])
def test_tokens_equal_stocks_and_nothing_is_computed_twice(
    found: dict[str, Found], installed: Path, name: str
) -> None:
    aqua, counts = found[name], found[name]["counts"]
    assert aqua["module"].startswith(str(installed))  # the package, not the checkout
    assert aqua["tokens"] == found["stock"]["tokens"]
    assert len({str(tokens) for tokens in aqua["tokens"].values()}) == len(REQUESTS)
    assert counts["pages/page out to DRAM"] == counts["pages/page in from DRAM"] >= 20
    assert counts["preemptions"] == counts["pages/page out to DRAM"]
    assert total(counts, OUT) == total(counts, BACK)
    assert total(counts, "bytes/page out") == BLOCK_BYTES * total(counts, OUT)
    each = 8 * total(counts, OUT) if name == "by_block" else counts["pages/page out to DRAM"]
    assert counts["copies/page out to DRAM"] == each
    assert any(tokens % 32 for tokens, _ in aqua["paged"])  # partly filled blocks
    assert any(prefilling for _, prefilling in aqua["paged"])  # in the middle of a prefill
    assert not all(prefilling for _, prefilling in aqua["paged"])
    assert computed_once(aqua)
    assert (aqua["left"], aqua["free_blocks"]) == (0, TIGHT - 1)


def test_without_contention_its_iterations_are_stocks(found: dict[str, Found]) -> None:
    aqua, stock = found["roomy"], found["stock"]
    assert "preemptions" not in aqua["counts"]
    assert (aqua["first"], aqua["steps"]) == (stock["first"], stock["steps"])
    assert aqua["tokens"] == stock["tokens"]


def test_fcfs_while_anything_lies_in_dram(found: dict[str, Found]) -> None:
    """Section 7's fallback: nobody is preempted for fairness who would not be without it."""
    aqua = found["fcfs"]
    assert aqua["tokens"] == found["stock"]["tokens"]
    assert aqua["counts"]["preemptions"] < found["tight"]["counts"]["preemptions"]


def test_aborted_while_paged_and_beside_vllms_prefix_cache(found: dict[str, Found]) -> None:
    aqua = found["aborted"]
    assert len(set(aqua["aborted"])) == 2
    for i in range(len(REQUESTS)):
        theirs, ours = found["stock"]["tokens"][str(i)], aqua["tokens"].get(str(i), [])
        if str(i) in aqua["aborted"]:
            assert ours == theirs[: len(ours)]
        else:
            assert ours == theirs
    counts = aqua["counts"]
    assert counts["pages/page in from DRAM"] <= counts["pages/page out to DRAM"] - 2
    assert (aqua["left"], aqua["free_blocks"]) == (0, TIGHT - 1)


def test_what_was_lost_is_computed_again(found: dict[str, Found]) -> None:
    aqua = found["lost"]
    assert aqua["tokens"] == found["stock"]["tokens"]
    assert aqua["counts"]["lost_blocks"] > 0
    assert sum(aqua["computed"].values()) > sum(map(needed, range(len(REQUESTS))))


def test_void_kv_is_not_paged_in(found: dict[str, Found]) -> None:
    """After a reset, as for new weights, running and paged requests are computed again."""
    aqua, counts = found["void"], found["void"]["counts"]
    assert aqua["tokens"] == found["stock"]["tokens"]
    assert counts["pages/page in from DRAM"] < counts["pages/page out to DRAM"]
    assert sum(aqua["computed"].values()) > sum(map(needed, range(len(REQUESTS))))


def test_kv_lies_in_the_lenders_memory_and_leaves_it_when_asked(found: dict[str, Found]) -> None:
    """The lease is full now and then, and is asked back while somebody's KV lies there."""
    aqua, counts = found["reclaimed"], found["reclaimed"]["counts"]
    assert aqua["tokens"] == found["stock"]["tokens"]
    # Each block was found in the lender's memory as it had been on the device.
    assert aqua["checked"] == counts[f"{OUT} lease"] > 0
    assert counts[f"{OUT} DRAM"] > 0
    assert counts["pages/migrate from lease to DRAM"] >= 1
    assert total(counts, OUT) == total(counts, BACK)
    assert computed_once(aqua)
    assert (aqua["left"], aqua["free_blocks"]) == (0, TIGHT - 1)


def test_what_a_dead_lender_had_is_computed_again(found: dict[str, Found]) -> None:
    aqua, counts = found["killed"], found["killed"]["counts"]
    assert aqua["tokens"] == found["stock"]["tokens"]
    assert aqua["checked"] > 0
    assert counts["lost_blocks"] > 0
    assert sum(aqua["computed"].values()) > sum(map(needed, range(len(REQUESTS))))
    assert (aqua["left"], aqua["free_blocks"]) == (0, TIGHT - 1)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no slices", "slice_iterations=0 in kv_connector_extra_config; valid: a whole number"),
        ("unknown", "unknown key 'slices'; valid keys: slice_iterations, copies, "),
        ("priority", "does not run with a scheduling policy other"),
        ("nobody", "no coordinator at 127.0.0.1:1: "),
    ],
)
def test_what_it_cannot_do_is_refused(found: dict[str, Found], name: str, reason: str) -> None:
    assert reason in found[name]["refused"]
