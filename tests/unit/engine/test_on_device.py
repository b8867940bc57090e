"""What the engine computes and copies on a GPU, beside a CPU's: `make gpu`. Here they run on
the CPU alone, so that they are known to pass; two would compare it with itself, and are skipped."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from tempfile import TemporaryFile

import pytest
import torch

from harness.engine.attention_choice import kernels_of
from harness.engine.block_tables import FIRST_BLOCK
from harness.engine.command_loop import Stream
from harness.engine.cuda import finish, pick_device, staging
from harness.engine.host import memory_file
from harness.engine.kv_cache import new_cache
from harness.engine.kv_memory import Blocks, KvMemory
from harness.engine.layout import write_model
from harness.engine.linear import LoadedLayers
from harness.engine.loader import HostLink, Source, WeightsLoader
from harness.engine.model import TransformerDecoder
from harness.engine.node_files import OpenFile
from harness.engine.runner import Runner
from harness.engine.work import BatchWork, Chunk
from harness.model_spec import ModelSpec
from harness.pooled.plan import MemoryPlan
from tests.unit.engine.conftest import Family
from tests.unit.engine.serving import CPU, SPEC, in_flat_buffer

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
PROMPT, STEPS = list(range(3, 43)), 12
BLOCKS = list(range(FIRST_BLOCK, FIRST_BLOCK + 8))


ON_GPU = pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])


@pytest.fixture(params=["cpu", ON_GPU])
def device(request: pytest.FixtureRequest) -> torch.device:
    return pick_device(request.param, 0)


def runner_on(spec: ModelSpec, device: torch.device, attention: str = "torch") -> Runner:
    kernels = kernels_of(attention, spec, device)
    layers = LoadedLayers(spec, device, kernels.linear)
    decoder = TransformerDecoder(spec, layers.ends, kernels)
    return Runner(spec, decoder, layers.on_device, new_cache(spec, 64, 8, device), device)


def generated(runner: Runner, cuts: Sequence[int]) -> list[int]:
    """The tokens after PROMPT, which is computed in chunks that end at `cuts`."""
    found: list[int] = []
    for start, stop in zip([0, *cuts], [*cuts, len(PROMPT)], strict=True):
        chunk = Chunk(start, stop - start, stop == len(PROMPT))
        found += next(iter(runner.steps(BatchWork([chunk], [], PROMPT[start:stop], [BLOCKS]), 1)))
    decodes = BatchWork([], [len(PROMPT)], found[-1:], [BLOCKS])
    return found + [tokens[0] for tokens in runner.steps(decodes, STEPS - 1)]


def test_tokens_are_transformers(family: Family, device: torch.device) -> None:
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        for _ in range(STEPS):
            ids = torch.cat((ids, family.reference(ids).logits[:, -1:].argmax(-1)), 1)
    expected = ids[0, len(PROMPT) :].tolist()
    for cuts in ([], [5, 31]):
        assert generated(runner_on(family.spec, device), cuts) == expected


@pytest.mark.parametrize("device", [ON_GPU], indirect=True)
def test_logits_are_a_cpus_within_the_tolerance_of_kernels(device: torch.device) -> None:
    found = []
    for on in (device, CPU):
        runner = runner_on(SPEC, on)
        with torch.inference_mode():
            work = BatchWork([Chunk(0, len(PROMPT), True)], [], PROMPT, [BLOCKS])
            step, _ = runner.step(work, runner.attention(work))
            ids = torch.tensor(PROMPT, device=on)
            hidden = runner.forward(runner.embed(ids, step), step, 0, SPEC.num_layers)
            found.append(runner._decoder.logits(hidden[: len(PROMPT)]).cpu())
    torch.testing.assert_close(*found, atol=1e-4, rtol=0)


def test_weights_come_through_a_page_locked_stage_whole(device: torch.device) -> None:
    assert staging(64, device).is_pinned() == (device.type == "cuda")
    buffer = torch.zeros(SPEC.weight_bytes, dtype=torch.uint8, device=device)
    with TemporaryFile() as file:
        write_model(SPEC, [OpenFile(file.fileno())])
        source = Source(OpenFile(file.fileno()), None)
        loader = WeightsLoader(buffer, 40_000, HostLink(None))
        assert loader.staged(source, SPEC.weight_bytes, 0, threading.Event())
        assert torch.equal(buffer.cpu(), in_flat_buffer(SPEC)[: SPEC.weight_bytes])


def test_kv_leaves_and_comes_back_whole_while_another_stream_decodes(device: torch.device) -> None:
    """Of blocks that nobody computes with: copies and kernels are in streams of their own."""
    failed: list[BaseException] = []
    plan = MemoryPlan(0, 1 << 16, slab_bytes=1024, block_tokens=2)
    content = torch.arange(4096, dtype=torch.int32).to(torch.uint8)
    expected = generated(runner_on(SPEC, CPU), [])
    tokens: list[list[int]] = []
    with ExitStack() as stack:
        memory = KvMemory(plan, [SPEC], memory_file(stack, "kv", 8192), 8192, device)
        memory._region[:4096].copy_(content)
        finish(device)
        computing, copying = (Stream(name, device, failed.append) for name in ("a", "b"))
        done = [threading.Event(), threading.Event()]

        def decode() -> None:
            tokens.append(generated(runner_on(SPEC, device), [7]))

        def copy() -> None:
            blocks = Blocks(512, list(range(0, 4096, 512)), list(range(4096, 8192, 512)))
            for _ in range(20):
                memory.copy_out(blocks, HostLink(None))
                memory._region[:4096].zero_()
                memory.copy_in(blocks, HostLink(None))

        for stream, job, event in zip((computing, copying), (decode, copy), done, strict=True):
            stream.put(job)
            stream.put(event.set)
        assert all(event.wait(60) for event in done), failed
        assert torch.equal(memory._region[:4096].cpu(), content)
        assert torch.equal(memory._host[4096:], content)
    assert tokens == [expected]


@pytest.mark.parametrize("device", [ON_GPU], indirect=True)
def test_the_kv_of_a_chunk_that_samples_nothing_is_there_for_another_stream(
    device: torch.device,
) -> None:
    """As soon as the batch is said to be over."""
    spec = replace(SPEC, num_layers=12, hidden_size=512, intermediate_size=2048)
    half = BatchWork([Chunk(0, len(PROMPT), False)], [], PROMPT, [BLOCKS])
    caches = []
    for on in (device, CPU):
        runner = runner_on(spec, on)
        seen = threading.Event()
        copied: list[torch.Tensor] = []
        reading = Stream("copies", on, lambda error: None)
        next(iter(runner.steps(half, 1)))

        def read(runner: Runner = runner, into: list[torch.Tensor] = copied) -> None:
            into += [keys.cpu() for keys in runner._cache.keys]

        reading.put(read)
        reading.put(seen.set)
        assert seen.wait(60)
        caches.append(torch.stack(copied))
    torch.testing.assert_close(*caches, atol=1e-3, rtol=1e-3)


@pytest.mark.gpu
@NO_GPU
@pytest.mark.skipif(find_spec("flashinfer") is None, reason="needs FlashInfer")
def test_flashinfer_attends_as_torch_does_in_half_precision() -> None:
    spec = replace(SPEC, head_dim=64, dtype="bfloat16")
    on = pick_device("cuda", 0)
    found = []
    for attention in ("torch", "flashinfer"):
        runner = runner_on(spec, on, attention)
        list(runner.steps(BatchWork([Chunk(0, 30, False)], [], PROMPT[:30], [BLOCKS]), 1))
        with torch.inference_mode():
            work = BatchWork([Chunk(30, len(PROMPT) - 30, True)], [], PROMPT[30:], [BLOCKS])
            step, _ = runner.step(work, runner.attention(work))
            ids = torch.tensor(PROMPT[30:], device=on)
            found.append(runner.forward(runner.embed(ids, step), step, 0, spec.num_layers).float())
    torch.testing.assert_close(*found, atol=0.05, rtol=0.05)
