"""A producer's region on a GPU, by the order of calls to a recorded stand-in for CUDA, whose memory
is the host's. None of this has run on a GPU; `tests/integration/test_vllm_device_region.py` would.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from systems.aqua.plugin.region import Lent, Regions, lend

NO_UUID = "GPU GPU-b of the lease is not visible; CUDA_VISIBLE_DEVICES shows GPU-a"


class Machine:
    """`seen`: the GPUs that the process sees, by UUID."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.seen = ["GPU-b"]
        self.shared: Any = None
        self._empty = torch.empty

    def empty(self, size: int, *, dtype: torch.dtype, device: Any) -> Tensor:
        if size:
            self.calls.append(f"allocate {size} on {device}")
        return self._empty(size, dtype=dtype)

    def share(self, storage: Any) -> tuple[Any, ...]:
        self.calls.append("share")
        self.shared = storage
        return 0, b"\x00handle", storage.nbytes(), 512, b"counter", 3, b"event", True

    def open(self, *parts: Any) -> Any:
        if self.shared is None:
            raise RuntimeError("invalid resource handle")
        self.calls.append(parts)
        return self.shared


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()

    def put(name: str, stand_in: Callable[..., Any]) -> None:
        monkeypatch.setattr(torch.cuda, name, stand_in)

    put("is_available", lambda: True)
    put("init", lambda: None)
    put("mem_get_info", lambda: (1000, 2000))
    put("device_count", lambda: len(made.seen))
    put("get_device_properties", lambda i: SimpleNamespace(uuid=made.seen[i]))
    monkeypatch.setattr(torch, "empty", made.empty)
    monkeypatch.setattr(torch.UntypedStorage, "_share_cuda_", lambda storage: made.share(storage))
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", made.open)
    return made


def written(regions: Regions, lent: Lent, blocks: list[int]) -> None:
    for run in regions.rows(lent.lease, blocks, 10):
        run.fill_(7)


def test_a_region_is_the_gpus_memory_and_is_opened_once_by_its_uuid(machine: Machine) -> None:
    lent = lend("lender", 100)
    assert machine.calls == ["allocate 100 on cuda", "share"]
    assert lent.memory is not None
    lent.memory.zero_()
    machine.seen = ["GPU-a", "GPU-b"]  # the borrower counts otherwise
    regions = Regions()
    written(regions, lent, [3, 4])
    written(regions, lent, [9])
    opened = (1, b"\x00handle", 100, 512, b"counter", 3, b"event", True)
    assert machine.calls[2:] == [opened]
    assert lent.memory.view(10, 10).any(1).tolist() == [i in (3, 4, 9) for i in range(10)]
    regions.keep({lent.lease})
    written(regions, lent, [0])
    assert machine.calls[2:] == [opened]
    regions.keep(set())  # nothing lies there: it is closed, and opened anew when it is used again
    written(regions, lent, [0])
    assert machine.calls[2:] == [opened, opened]
    lent.end()


def test_a_region_that_was_ended_is_not_used_although_it_is_mapped(machine: Machine) -> None:
    lent = lend("lender", 100)
    regions = Regions()
    written(regions, lent, [0])
    lent.end()
    assert lent.memory is None
    with pytest.raises(OSError, match="No such file"):
        regions.rows(lent.lease, [0], 10)


def test_a_gpu_that_the_borrower_does_not_see_is_named(machine: Machine) -> None:
    lent = lend("lender", 100)
    machine.seen = ["GPU-a"]
    with pytest.raises(OSError, match=NO_UUID):
        Regions().rows(lent.lease, [0], 10)
    lent.end()


def test_a_handle_that_cuda_refuses_and_memory_that_is_short(machine: Machine) -> None:
    lent = lend("lender", 100)
    machine.shared = None
    with pytest.raises(OSError, match="handle cannot be opened: invalid resource handle"):
        Regions().rows(lent.lease, [0], 10)
    lent.end()
    with pytest.raises(OSError, match="a lease of 1001 bytes is beyond the 1000 bytes available"):
        lend("lender", 1001)


def test_neighbours_are_one_run_and_the_end_is_kept() -> None:
    lent = lend("lender", 100)
    runs = Regions().rows(lent.lease, [2, 3, 4, 7, 6, 9], 10)
    assert [run.shape for run in runs] == [(3, 10), (1, 10), (1, 10), (1, 10)]
    with pytest.raises(OSError, match="ends before the end of block 10"):
        Regions().rows(lent.lease, [10], 10)
    lent.end()
