"""Every branch for CUDA is reached on a CPU, by a test with a stand-in: of each question about CUDA
in the code, a GPU's answer has been given. Order and device of the calls are for these tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda_questions import ROOT, questions, sources

STAND_INS = (
    "tests/unit/engine/test_cuda.py", "tests/unit/engine/test_cuda_steps.py",
    "tests/unit/engine/test_flash_kernels.py", "tests/unit/engine/test_gpu_tensors.py",
    "tests/unit/engine/test_nixl_memory.py", "tests/unit/engine/test_settings.py",
    "tests/unit/engine/test_ray_launcher.py",
    "tests/unit/aqua/test_staging.py", "tests/unit/aqua/test_device_region.py",
    "tests/unit/drivers/test_vllm_values.py", "tests/unit/drivers/test_vllm_on_gpus.py",
    "tests/unit/test_device_lock.py",
)  # fmt: skip


def wanted(text: str) -> list[str]:
    return questions(text, "a.py")[1]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What the tests with stand-ins have given an answer to."""
    file: Path = tmp_path_factory.mktemp("questions") / "seen.json"
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "tests.cuda_questions",
            "-p", "no:cacheprovider", *STAND_INS,
        ],
        cwd=ROOT, env=os.environ | {"QUESTIONS": str(file), "HARNESS_PURE": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout  # what fails there is told there
    return set(json.loads(file.read_text()))


def test_each_question_about_cuda_has_had_a_gpus_answer(seen: set[str]) -> None:
    asked = {
        each
        for path in sources()
        for each in questions(path.read_text(), str(path.relative_to(ROOT)))[1]
    }
    unseen = sorted(asked - seen)
    assert not unseen, "no test with a stand-in reaches\n" + "\n".join(unseen)


@pytest.mark.parametrize(
    ("branch", "must_see"),
    [
        ("if on_gpu(x.device): go()", ["on_gpu(x.device) -> True"]),
        ("if not cuda.on_gpu(device): go()", ["cuda.on_gpu(device) -> True"]),
        ("y = 1 if x.is_cuda else 2", ["x.is_cuda -> True"]),
        ("z = x.device.type != 'cpu' and go()", ["x.device.type != 'cpu' -> True"]),
        ("while 'cpu' == device: go()", ["'cpu' == device -> False"]),
        ("torch.empty(3, pin_memory=on_gpu(d))", ["on_gpu(d) -> True"]),
        ("x = torch.device('cuda', 1)", ["'cuda'"]),
        ("torch.cuda.synchronize()", ["torch.cuda.synchronize"]),
        ("from torch import cuda\ncuda.empty_cache()", ["cuda.empty_cache"]),
        ("gpu: Any = torch.cuda\ngpu.init()", ["gpu.init"]),
        (
            "if torch.cuda.device_count() > 8: go()",
            [
                "torch.cuda.device_count() > 8 -> True",
                "torch.cuda.device_count() > 8 -> False",
                "torch.cuda.device_count",
            ],
        ),
        (
            "torch.cuda.init()\ny = 1 if self.stream else 2",
            ["torch.cuda.init", "self.stream -> True", "self.stream -> False"],
        ),
        ("if self.stream: go()", []),
        ("device: Literal['cuda', 'cpu']", []),
        ("if device.type == 'meta': go()", []),
    ],
)
def test_a_branch_that_somebody_writes_is_found(branch: str, must_see: list[str]) -> None:
    assert [each.split(": ", 1)[1] for each in wanted(branch)] == must_see


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(SyntaxError, match=r"a\.py:2: ask by `if`"):
        wanted("match device.type:\n    case 'cuda': go()")
