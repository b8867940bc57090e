"""FlashInfer's attention, by a stand-in for the package: the same tokens and logits as torch's, on
each kind of memory, and the order of its calls. The package itself has not run."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from harness.engine import attention_choice, flash_kernels
from harness.engine.block_tables import FIRST_BLOCK
from harness.engine.work import BatchWork, Chunk
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.request import Request
from tests.running import model_spec
from tests.unit.engine.flash_stand_in import Flash
from tests.unit.engine.serving import SPEC, in_flat_buffer, loaded, runner_of, served
from tests.unit.engine.stand_in_cuda import Calls

FIRST, SECOND = [FIRST_BLOCK + 4, FIRST_BLOCK], [FIRST_BLOCK + 2, FIRST_BLOCK + 3]
HALF = replace(model_spec("tiny-llama"), dtype="bfloat16", head_dim=64)


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Flash:
    made = Flash()
    monkeypatch.setitem(sys.modules, "flashinfer", made)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.7.0")
    monkeypatch.setattr(flash_kernels, "WORKSPACE_BYTES", 1)
    monkeypatch.setattr(flash_kernels, "PLANNED", flash_kernels._Planned())
    return made


@pytest.mark.parametrize("memory", ["paged", "slabbed", "elastic"])
def test_tokens_are_those_of_torch(flash: Flash, memory: str) -> None:
    """Chunks of any size, runs of decodes, preemptions."""
    layers, buffer = loaded(SPEC), in_flat_buffer(SPEC)
    generated = []
    for attention in ("torch", "flashinfer"):
        server = served(memory, layers, buffer, SPEC, 40, 4, attention)
        requests = [Request(i, 0.0, "default", 5 + 7 * i, 6 + i) for i in range(5)]
        server.serve_at_random(requests, np.random.default_rng(3))
        generated.append(dict(server.book.generated))
    assert generated[0] == generated[1]
    assert "run" in flash.calls


def test_logits_are_those_of_torch(flash: Flash) -> None:
    """Within 1e-4, of a chunk beside a decode and of decodes."""
    found = []
    for attention in ("torch", "flashinfer"):
        runner = runner_of(loaded(SPEC), SPEC, block_tokens=8, attention=attention)
        logits = []
        for work in (
            BatchWork(
                [Chunk(0, 11, True), Chunk(0, 5, True)], [], list(range(16)), [FIRST, SECOND]
            ),
            BatchWork([Chunk(5, 4, True)], [11], [7, 8, 9, 3, 4], [SECOND, FIRST]),
            BatchWork([], [12, 9], [5, 6], [FIRST, SECOND]),
        ):
            with torch.inference_mode():
                step, _ = runner.step(work, runner.attention(work))
                ids = torch.tensor(work.ids)
                hidden = runner.forward(runner.embed(ids, step), step, 0, SPEC.num_layers)
                logits.append(runner._decoder.logits(hidden[: len(work.ids)]))
        found.append(torch.cat(logits))
    torch.testing.assert_close(*found, atol=1e-4, rtol=0)


def test_the_layers_of_a_step_share_a_plan_that_waits_for_the_last_ones_copy(
    flash: Flash, calls: Calls
) -> None:
    runner = runner_of(loaded(SPEC), SPEC, attention="flashinfer")
    assert flash.calls == ["plan", "run"], "compiled before the first request"
    calls.made.clear()
    flash_kernels.PLANNED.wrapper._note = calls.made.append
    work = BatchWork([], [3], [1], [FIRST])
    list(runner.steps(work, 2))
    of_step = ["wait", "plan", *["run"] * SPEC.num_layers, "wait"]
    assert [word for word in calls.made if not word.startswith("copy")] == 2 * of_step


def test_each_stream_has_a_wrapper_of_its_own(flash: Flash) -> None:
    """A plan's memory is used again: two threads attend at a time on an elastic instance."""
    runner = runner_of(loaded(SPEC), SPEC, attention="flashinfer")
    work = BatchWork([], [3], [1], [FIRST])
    other = threading.Thread(target=lambda: list(runner.steps(work, 1)))
    other.start()
    list(runner.steps(work, 1))
    other.join(10)
    assert flash.num_wrappers == 2


@pytest.mark.parametrize(
    ("device", "changes", "says"),
    [
        ("cpu", {}, r"is for GPUs, engine\.device=cpu is not; valid here: auto, torch"),
        ("auto", {"head_dim": 48}, r"heads of width 48; .* takes 64, 128, 256"),
        ("cuda", {"dtype": "float32"}, r"numbers of float32; .* takes float16 and bfloat16"),
    ],
)
def test_what_it_does_not_take_is_refused(
    monkeypatch: pytest.MonkeyPatch, device: str, changes: dict[str, Any], says: str
) -> None:
    monkeypatch.setattr(attention_choice, "find_spec", lambda name: name)
    monkeypatch.setattr(attention_choice, "gpu_share_bytes", lambda device, num: 80 * 2**30)

    def check(device: str, spec: ModelSpec) -> None:
        attention_choice.check_choice("flashinfer", device, 16)
        attention_choice.check_models("flashinfer", device, [spec])

    with pytest.raises(UsageError, match=says):
        check(device, replace(HALF, **changes))
    check("cuda", HALF)


def test_it_is_refused_where_nothing_could_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_choice, "find_spec", lambda name: None)
    monkeypatch.setattr(attention_choice, "gpu_share_bytes", lambda device, num: None)
    with pytest.raises(UsageError, match="needs the package flashinfer-python"):
        attention_choice.check_choice("flashinfer", "auto", 16)
    with pytest.raises(UsageError, match="workers see none here"):
        attention_choice.check_models("flashinfer", "auto", [HALF])
    attention_choice.check_models("flashinfer", "cuda", [HALF], far=True)
