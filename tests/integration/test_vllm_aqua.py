"""AQUA's plug-in in a real vLLM: the same tokens as stock's, whoever was paged out and when."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.running import ROOT, model_spec

pytestmark = [pytest.mark.vllm, pytest.mark.slow]  # not live: engines count steps, not seconds

PLUGIN = ROOT / "systems/aqua/plugin"
# (step of arrival, prompt tokens, output tokens); a batch is 64 tokens, a block 32
REQUESTS = [(0, 60 + 13 * i, 40 + 5 * i) for i in range(6)]
REQUESTS += [(10, 150, 30), (10, 33, 60), (12, 64, 20), (20, 5, 64)]
ROOMY, TIGHT = 64, 20  # blocks; the longest request needs 6
Found = dict[str, Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from harness.engine.weights import save_checkpoint

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


def run(model: Path, installed: Path, folder: Path, **changes: Any) -> Any:
    """The process that served a job; its last line of output is what it found."""
    job: dict[str, Any] = {
        "aqua": True, "slice_iterations": 5, "model": str(model), "prefixes": False,
        "requests": REQUESTS, "abort_one_paged_at": [], "reset_at": [], "blocks": TIGHT,
        "engine": {},
    }  # fmt: skip
    job |= changes
    job["engine"] = {
        "num_gpu_blocks_override": job["blocks"], "block_size": 32, "max_num_seqs": 16,
        "max_num_batched_tokens": 64, "max_model_len": 256, **job["engine"],
    }  # fmt: skip
    file = folder / "job.json"
    file.write_text(json.dumps(job))
    words = [sys.executable, str(ROOT / "tests/integration/aqua_offline.py"), str(file)]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def found(model: Path, installed: Path, folder: Path, **changes: Any) -> Found:
    done = run(model, installed, folder, **changes)
    assert done.returncode == 0, done.stderr[-4000:]
    result: Found = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def stock(model: Path, installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Nobody is preempted."""
    folder = tmp_path_factory.mktemp("stock")
    return found(model, installed, folder, aqua=False, blocks=ROOMY)


def needed(i: int) -> int:
    return REQUESTS[i][1] + REQUESTS[i][2] - 1


def test_tokens_equal_stocks_and_nothing_is_computed_twice(
    model: Path, installed: Path, stock: Found, tmp_path: Path
) -> None:
    aqua = found(model, installed, tmp_path)
    assert aqua["module"].startswith(str(installed))  # the package, not the checkout
    assert aqua["tokens"] == stock["tokens"]
    assert len({str(tokens) for tokens in aqua["tokens"].values()}) == len(REQUESTS)
    assert aqua["num_out"] == aqua["num_in"] >= 20
    assert aqua["blocks_out"] == aqua["blocks_in"]
    assert any(tokens % 32 for tokens, _ in aqua["paged"])  # partly filled blocks
    assert any(prefilling for _, prefilling in aqua["paged"])  # in the middle of a prefill
    assert not all(prefilling for _, prefilling in aqua["paged"])
    assert aqua["computed"] == {str(i): needed(i) for i in range(len(REQUESTS))}
    assert (aqua["left"], aqua["free_blocks"]) == (0, TIGHT - 1)


def test_without_contention_its_iterations_are_stocks(
    model: Path, installed: Path, stock: Found, tmp_path: Path
) -> None:
    aqua = found(model, installed, tmp_path, blocks=ROOMY)
    assert aqua["num_out"] == 0
    assert (aqua["first"], aqua["steps"]) == (stock["first"], stock["steps"])
    assert aqua["tokens"] == stock["tokens"]


def test_aborted_while_paged_and_beside_vllms_prefix_cache(
    model: Path, installed: Path, stock: Found, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"abort_one_paged_at": [30, 45], "prefixes": True}
    aqua = found(model, installed, tmp_path, **changes)
    assert len(set(aqua["aborted"])) == 2
    for i in range(len(REQUESTS)):
        theirs, ours = stock["tokens"][str(i)], aqua["tokens"].get(str(i), [])
        if str(i) in aqua["aborted"]:
            assert ours == theirs[: len(ours)]
        else:
            assert ours == theirs
    assert aqua["num_in"] <= aqua["num_out"] - 2
    assert (aqua["left"], aqua["free_blocks"]) == (0, TIGHT - 1)


def test_what_was_lost_is_computed_again(
    model: Path, installed: Path, stock: Found, tmp_path: Path
) -> None:
    transfer = {
        "kv_connector": "LosingConnector", "kv_connector_module_path": "aqua_losing",
    }  # fmt: skip
    aqua = found(model, installed, tmp_path, transfer=transfer)
    assert aqua["tokens"] == stock["tokens"]
    assert sum(aqua["computed"].values()) > sum(map(needed, range(len(REQUESTS))))


def test_void_kv_is_not_paged_in(
    model: Path, installed: Path, stock: Found, tmp_path: Path
) -> None:
    """After a reset, as for new weights, running and paged requests are computed again."""
    aqua = found(model, installed, tmp_path, reset_at=[30])
    assert aqua["tokens"] == stock["tokens"]
    assert aqua["num_in"] < aqua["num_out"]
    assert sum(aqua["computed"].values()) > sum(map(needed, range(len(REQUESTS))))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"slice_iterations": 0}, "slice_iterations=0 in kv_connector_extra_config; valid: a who"),
        (
            {"engine": {"scheduling_policy": "priority"}},
            "does not run with a scheduling policy other",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(
    model: Path, installed: Path, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    done = run(model, installed, tmp_path, **changes)
    assert done.returncode != 0
    assert reason in done.stderr
