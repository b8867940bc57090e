"""Bytes of a pooled worker: models into its weights buffer, KV blocks across the bus."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine.kv_memory import Blocks, KvMemory
from harness.engine.layout import tensor_places, write_model
from harness.engine.loader import HostLink, Source, WeightsLoader
from harness.engine.node_files import OpenFile
from harness.pooled.plan import MemoryPlan
from tests.unit.engine.serving import CPU, SPEC

AT = 4096
STAGE_BYTES = 40_000  # chunks of 10,000 bytes, which no tensor ends with


@pytest.fixture(scope="module")
def source() -> Iterator[Source]:
    with TemporaryFile() as file:
        write_model(SPEC, [OpenFile(file.fileno())])
        yield Source(OpenFile(file.fileno()), None)


@pytest.fixture(scope="module")
def content(source: Source) -> torch.Tensor:
    whole = torch.empty(SPEC.weight_bytes, dtype=torch.uint8)
    source.read(whole, 0)
    return whole


def loader() -> tuple[WeightsLoader, torch.Tensor]:
    buffer = torch.zeros(AT + SPEC.weight_bytes + 512, dtype=torch.uint8)
    return WeightsLoader(buffer, STAGE_BYTES, HostLink(None)), buffer


def test_the_tensors_are_the_model() -> None:
    found = tensor_places(SPEC)
    assert [place.start for place in found] == [0, *[place.stop for place in found[:-1]]]
    assert found[-1].stop == SPEC.weight_bytes


@pytest.mark.parametrize("staged", [True, False])
def test_a_load_writes_the_model_and_nothing_else(
    source: Source, content: torch.Tensor, staged: bool
) -> None:
    weights, buffer = loader()
    if staged:
        assert weights.staged(source, SPEC.weight_bytes, AT, threading.Event())
    else:
        weights.by_parameter(source, SPEC, AT)
    assert torch.equal(buffer[AT:-512], content)
    assert not buffer[:AT].any()
    assert not buffer[-512:].any()


def test_a_stopped_load_says_so_and_the_next_one_is_whole(
    source: Source, content: torch.Tensor
) -> None:
    weights, buffer = loader()
    stop = threading.Event()
    stop.set()
    assert not weights.staged(source, SPEC.weight_bytes, AT, stop)
    assert not torch.equal(buffer[AT:-512], content)
    assert weights.staged(source, SPEC.weight_bytes, AT, threading.Event())
    assert torch.equal(buffer[AT:-512], content)


def test_what_is_read_from_the_ssd_fills_the_cache(source: Source, content: torch.Tensor) -> None:
    weights, _ = loader()
    with TemporaryFile() as cache:
        filling = Source(source.file, OpenFile(cache.fileno()))
        assert weights.staged(filling, SPEC.weight_bytes, 0, threading.Event())
        assert cache.read() == content.numpy().tobytes()


@settings(derandomize=True, deadline=None)
@given(num_bytes=st.integers(1, 2000), to=st.integers(0, 500), distance=st.integers(1, 2000))
def test_a_model_moves_whole_even_onto_itself(num_bytes: int, to: int, distance: int) -> None:
    buffer = torch.randint(0, 256, (5000,), dtype=torch.uint8)
    before = buffer.clone()
    WeightsLoader(buffer, STAGE_BYTES, HostLink(None)).move(num_bytes, to + distance, to)
    moved = before[to + distance : to + distance + num_bytes]
    assert torch.equal(buffer[to : to + num_bytes], moved)
    assert torch.equal(buffer[:to], before[:to])


offsets = st.lists(st.integers(0, 19), min_size=1, max_size=20, unique=True)


@settings(derandomize=True, deadline=None)
@given(device=offsets, host=offsets, across=st.booleans())
def test_blocks_go_out_and_come_back_wherever_they_lie(
    device: list[int], host: list[int], across: bool
) -> None:
    """Neighbouring ones travel together; the others stay what they were."""
    size, count = 64, min(len(device), len(host))
    blocks = Blocks(size, [size * n for n in device[:count]], [size * n for n in host[:count]])
    with TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        spec: Any = SimpleNamespace(kv_bytes_per_token=size)
        plan = MemoryPlan(0, 20 * size, slab_bytes=size, block_tokens=1)
        memory = KvMemory(plan, [spec], file.fileno(), mmap.PAGESIZE, CPU)
        memory._region.copy_(torch.randint(0, 256, (20 * size,), dtype=torch.uint8))
        before = memory._region.clone()
        memory.copy_out(blocks, HostLink(None))
        for at, to in zip(blocks.device_offsets, blocks.host_offsets, strict=True):
            assert torch.equal(memory._host[to : to + size], before[at : at + size])
        memory._region.zero_()
        if across:
            carried: list[int] = []
            memory.copy_from(OpenFile(file.fileno()), blocks, 100, carried.append)
            assert sum(carried) == blocks.num_bytes
            assert max(carried) <= 100
        else:
            memory.copy_in(blocks, HostLink(None))
    for block in range(20):
        place = slice(size * block, size * (block + 1))
        expected = before[place] if block in device[:count] else torch.zeros(size)
        assert torch.equal(memory._region[place], expected.to(torch.uint8))
