"""The engine's CUDA branches, by the order of calls to a recorded stand-in for torch.cuda: copies
are waited for before anybody is told, and memory is page-locked before it is copied from. Tensors
stay on the CPU. That a real GPU does the same is for tests on one."""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.elastic.device_layout import DeviceLayout, memory_for_blocks
from harness.engine import attention, cuda, device_share
from harness.engine.command_loop import Stream
from harness.engine.copies import Copies
from harness.engine.dedicated_memory import fitting_blocks
from harness.engine.device_buffer import DeviceBuffer
from harness.engine.elastic_memory import ElasticMemory
from harness.engine.given_up import GivenUp
from harness.engine.host import memory_file
from harness.engine.kv_memory import Blocks, KvMemory
from harness.engine.layer_loads import LayerLoads
from harness.engine.layout import write_model
from harness.engine.linear import LoadedLayers, TorchLinear, packed, placed
from harness.engine.loader import HostLink, Source, WeightsLoader
from harness.engine.node_files import OpenFile
from harness.engine.padding import padded, padding_rows
from harness.engine.peer_memory import SocketMemory
from harness.engine.pooled_memory import PooledMemory
from harness.engine.warm_up import warm_up
from harness.engine.weights import HostWeights
from harness.pooled.plan import MemoryPlan
from harness.records import gpu_monitor
from tests.unit.engine.serving import CPU, SPEC
from tests.unit.engine.stand_in_cuda import Calls, calls_answer

ENGINE = Path(cuda.__file__).parent
CUDA_WORDS = re.compile(
    r"torch\.cuda|is_cuda|pin_memory|cudart|[\"']cuda[\"']|[!=]= *[\"']cpu[\"']"
)


def test_workers_take_the_gpus_in_turn_unless_told_otherwise(calls: Calls) -> None:
    assert [cuda.pick_device("auto", i) for i in range(3)] == [
        torch.device("cuda", i) for i in (0, 1, 0)
    ]
    assert cuda.pick_device("cpu", 0) == CPU
    assert cuda.device_name(torch.device("cuda", 0)) == "H100"


def test_without_a_gpu_auto_is_the_cpu_and_cuda_is_refused(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda.pick_device("auto", 0) == CPU
    with pytest.raises(RuntimeError, match=r"engine\.device=cuda, but torch finds no CUDA device"):
        cuda.pick_device("cuda", 0)


def test_a_streams_thread_has_a_cuda_stream_of_its_own(calls: Calls) -> None:
    done = threading.Event()
    stream = Stream("copies", CPU, lambda error: pytest.fail(str(error)))
    stream.put(calls.note("work"))
    stream.put(done.set)
    assert done.wait(10)
    assert calls.made == ["set device", "on a stream", "work"]


def test_a_gpus_workers_share_it_beside_what_they_have_allocated(calls: Calls) -> None:
    config: Any = SimpleNamespace(block_tokens=16, cpu_kv_bytes=1, memory_fraction=0.9)
    size = 2 * 16 * SPEC.num_layers * SPEC.num_kv_heads * SPEC.head_dim * SPEC.dtype_bytes
    assert fitting_blocks(SPEC, CPU, config, num_workers=2) == 800_000 // size
    assert fitting_blocks(SPEC, CPU, config, num_workers=3) == 350_000 // size
    config.memory_fraction = 0.1
    with pytest.raises(MemoryError, match="no room for a KV block"):
        fitting_blocks(SPEC, CPU, config, num_workers=1)


@pytest.mark.parametrize(
    ("visible", "num_workers", "share"),
    [(None, 1, 60), (None, 3, 30), ("1", 2, 30), ("GPU-a,GPU-b", 2, 60), ("", 1, None)],
)
def test_the_share_that_the_harness_gives(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, num_workers: int, share: int | None
) -> None:
    sizes: list[dict[str, Any]] = [{"memory_bytes": 80}, {"memory_bytes": 60}]
    monkeypatch.setattr(gpu_monitor, "devices", lambda: sizes)
    monkeypatch.setattr(device_share, "version", lambda package: "2.13.0+cu130")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device_share.gpu_share_bytes("auto", num_workers) == share
    assert device_share.gpu_share_bytes("cpu", num_workers) is None
    monkeypatch.setattr(device_share, "version", lambda package: "2.13.0+cpu")
    assert device_share.gpu_share_bytes("auto", num_workers) is None


def test_host_layers_are_page_locked_before_they_are_fetched(calls: Calls) -> None:
    source = HostWeights(SPEC)
    num_tensors = sum(len(source.tensors(layer)) for layer in range(SPEC.num_layers))
    calls.made.clear()
    LoadedLayers(SPEC, CPU, TorchLinear)
    assert calls.made.count("lock") == num_tensors


def test_a_staged_load_copies_from_locked_memory_and_waits_for_each_chunk(calls: Calls) -> None:
    buffer = torch.zeros(SPEC.weight_bytes, dtype=torch.uint8)
    with TemporaryFile() as file:
        source = Source(OpenFile(file.fileno()), None)
        write_model(SPEC, [source.file])
        calls.made.clear()
        loader = WeightsLoader(buffer, 40_000, HostLink(None))
        assert loader.staged(source, SPEC.weight_bytes, 0, threading.Event())
        assert calls.made[0] == "lock"
        assert calls.made[1:] == ["copy beside", "wait"] * -(-SPEC.weight_bytes // 10_000)
        calls.made.clear()
        loader.by_parameter(source, SPEC, 0)
        assert calls.made[-2:] == ["copy", "wait"]
        calls.made.clear()
        loader.move(100, 60, 20)
        assert calls.made == ["copy"] * 3 + ["wait"]


def test_on_a_cpu_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", None)
    with cuda.stream_of_its_own(CPU):
        cuda.finish(CPU)
        cuda.finish_all(CPU)
        cuda.release_cached(CPU)
    cuda.lock_pages(torch.zeros(1, dtype=torch.uint8), CPU)
    assert cuda.bytes_left(CPU, 0.9, 1) is None
    tensor = torch.zeros(1)
    assert cuda.staged(tensor, CPU) is tensor
    assert not cuda.staging(8, CPU).is_pinned()


def test_each_call_is_of_the_device_that_it_is_asked_for(calls: Calls) -> None:
    other = torch.device("cuda", 1)
    with cuda.stream_of_its_own(other):
        cuda.finish(other)
    cuda.finish_all(other)
    assert calls.made == [
        "set device cuda:1", "on a stream of cuda:1", "wait cuda:1", "wait for all cuda:1",
    ]  # fmt: skip


def test_kv_crosses_the_bus_from_locked_memory_and_is_waited_for(calls: Calls) -> None:
    plan = MemoryPlan(0, 4096, slab_bytes=1024, block_tokens=2)
    with ExitStack() as stack:
        memory = KvMemory(plan, [SPEC], memory_file(stack, "kv", 8192), 8192, CPU)
        assert calls.made == ["lock 8192"]
        calls.made.clear()
        blocks = Blocks(512, [0, 512, 2048], [0, 512, 1024])
        memory.copy_out(blocks, HostLink(None))
        memory.copy_in(blocks, HostLink(None))
        assert calls.made == ["copy beside", "copy beside", "wait"] * 2
        calls.made.clear()
        with TemporaryFile() as file:  # that of another node
            file.truncate(8192)
            memory.copy_from(OpenFile(file.fileno()), blocks, 700, calls.note("carry"))
    assert calls.made == ["carry", "copy"] * 3 + ["wait"]


def test_memory_that_cuda_does_not_lock_is_an_error(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = SimpleNamespace(cudaHostRegister=lambda at, size, flags: 2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: refuses)
    with pytest.raises(RuntimeError, match="cannot page-lock 16 bytes: CUDA error 2"):
        cuda.lock_pages(torch.zeros(16, dtype=torch.uint8), CPU)


def test_what_tensor_libraries_keep_is_given_back(calls: Calls) -> None:
    pooled: Any = SimpleNamespace(_device=CPU, _loop=SimpleNamespace(answer=calls_answer(calls)))
    PooledMemory._collect(pooled, {"seq": 1})
    assert calls.made == ["empty cache", "answer"]


def test_elastic_copies_are_over_before_the_answer(calls: Calls) -> None:
    memory = torch.zeros(64, dtype=torch.uint8)
    acks = SimpleNamespace(put=calls.note("acknowledge"))
    loop: Any = SimpleNamespace(answer=calls_answer(calls), stream=lambda name: acks)
    no_mesh: Any = None
    copies = Copies(loop, memory, {}, no_mesh, no_mesh, SocketMemory(memory, no_mesh))
    copies.in_streams["relocate"]({"seq": 1, "spans": [(0, 32, 8), (8, 40, 8)]})
    assert calls.made == ["copy", "copy", "wait", "answer"]
    calls.made.clear()
    copies.from_peers["bytes"]("torch-1", {"at": 8}, bytearray(16))
    copies.from_peers["end"]("torch-1", {"copy": 1, "complete": True}, bytearray())
    assert calls.made == ["copy", "wait", "acknowledge"]


def test_a_layer_is_there_before_others_are_told(calls: Calls) -> None:
    """Of a peer, and one that is forgotten, whose bytes are pages next."""
    layout = DeviceLayout(SPEC, memory_for_blocks(SPEC, 16, 4), 16)
    buffer = DeviceBuffer(layout, CPU, TorchLinear)
    stream = SimpleNamespace(put=calls.note("adopt"))
    loop: Any = SimpleNamespace(answer=calls_answer(calls), stream=lambda name: stream)
    none: Any = None
    loads = LayerLoads(loop, buffer, none, none, none)
    calls.made.clear()
    loads.from_peers["layer"]("torch-1", {"load": 1, "layer": 0, "begin_s": 0.0}, bytearray())
    assert calls.made == ["wait", "adopt"]
    calls.made.clear()
    elastic: Any = SimpleNamespace(_loads=loads, _buffer=buffer, _loop=loop)
    ElasticMemory._forget(elastic, {"seq": 1, "layers": [0]})
    assert calls.made == ["zero", "wait", "answer"]


@pytest.mark.parametrize("broken", [True, False])
def test_kernels_of_a_broken_batch_are_waited_for(calls: Calls, broken: bool) -> None:
    GivenUp(CPU).add(7, broken=broken)
    assert calls.made == (["wait for all"] if broken else [])


def test_what_a_gpu_does_without() -> None:
    """Padding, packing and warming up are oneDNN's; torch's meta device stands for a GPU."""
    meta = torch.device("meta")
    weights = placed({"qkv": torch.zeros(8, 4), "input_norm": torch.zeros(4)}, meta)
    assert [weight.device for weight in weights.values()] == [meta, meta]
    assert packed(weights["qkv"]) is weights["qkv"]
    none: Any = None
    assert padding_rows(33) == 1
    assert padded(torch.zeros((33, 4), device=meta)).shape == (33, 4)
    warm_up(SPEC, none, none, meta, 2048)


def test_attention_with_a_mask_is_that_in_two_parts() -> None:
    """The first is a GPU's, the second needs a kernel that is for CPUs alone."""
    torch.manual_seed(0)
    q, k, v = torch.randn(8, 5, 16), torch.randn(2, 12, 16), torch.randn(2, 12, 16)
    expected = attention._in_two_parts(q, k, v, 7)
    torch.testing.assert_close(attention._masked(q, k, v, 7), expected)


def test_the_engine_asks_cuda_in_one_file() -> None:
    """A branch elsewhere would have no stand-in."""
    by_name = {
        "attention_choice.py", "config.py", "cuda.py", "device_share.py", "engine.py",
        "ray_launcher.py",
    }  # fmt: skip
    cpu_alone = {"attention.py", "linear.py", "padding.py", "warm_up.py"}  # above: what a GPU does
    found = {path.name for path in ENGINE.glob("*.py") if CUDA_WORDS.search(path.read_text())}
    assert found == by_name | cpu_alone
