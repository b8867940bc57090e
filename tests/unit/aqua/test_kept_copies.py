"""PagingCopies that stay in swap space: a page-out copies what was written since the last one."""

from __future__ import annotations

import pytest

from harness.request import Request
from systems.aqua.copies import PagingCopies, block_bytes
from systems.aqua.swap_space import SwapSpace
from systems.aqua.tensors import Tensor
from tests.aqua import moved_bytes, serve, system
from tests.unit.aqua.test_system import (
    CROWD,
    DIRTY,
    INTO,
    LONG_CROWD,
    NEVER,
    OUT,
    assert_all_done,
    assert_empty,
    bed,
)


def test_fewer_bytes_leave_the_device_than_with_all_blocks() -> None:
    out: dict[bool, int] = {}
    for dirty in (False, True):
        with bed() as made:
            words = () if not dirty else (DIRTY,)
            aqua = system(made, "aqua", "system.copies=gathered", *words)
            serve(made, aqua, LONG_CROWD)
            assert_all_done(made)
            assert_empty(made, aqua)
            out[dirty] = moved_bytes(made, *OUT)
            assert (out[dirty] < moved_bytes(made, *INTO)) == dirty
    assert 0 < out[True] < 0.5 * out[False]


@pytest.mark.parametrize("name", ["aqua", "vllm_cfs"])
def test_a_page_out_copies_the_blocks_that_were_written_since(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: dict[int, int] = {}  # by request: tokens that its copy has
    dropped: list[int] = []
    save, free = PagingCopies._save, SwapSpace._free

    with bed() as made:
        size = made.instances[0].kv.block_tokens

        async def checked_save(
            copies: PagingCopies, tensors: list[Tensor], lease: str | None, purpose: str
        ) -> None:
            blocks, requests = 0, [tensor.paged for tensor in tensors]
            for request in requests:
                since = saved.get(request.request_id, 0)
                blocks += -(-request.computed_tokens // size) - since // size
            before = moved_bytes(made, *OUT)
            await save(copies, tensors, lease, purpose)
            assert moved_bytes(made, *OUT) - before == blocks * block_bytes(made.instances[0])
            saved.update({r.request_id: r.computed_tokens for r in requests})

        async def checked_free(swap: SwapSpace, tensor: Tensor) -> None:
            dropped.append(saved.pop(tensor.paged.request_id, 0))
            await free(swap, tensor)

        monkeypatch.setattr(PagingCopies, "_save", checked_save)
        monkeypatch.setattr(SwapSpace, "_free", checked_free)
        serve(made, system(made, name, "system.copies=gathered", DIRTY), LONG_CROWD)
        assert_all_done(made)
        assert any(dropped)
        assert not saved


def test_others_need_comes_before_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody goes to DRAM while a copy of who stays on the device lies in the lease."""
    new = SwapSpace._new_tensor
    overflows = []

    async def checked(swap: SwapSpace, request: Request, leaving: set[int]) -> Tensor | None:
        tensor = await new(swap, request, leaving)
        if tensor is not None and tensor.lease is None:
            overflows.append(request.request_id)
            for each in swap.tensors:
                stays = swap._here(each) and each.name not in leaving
                assert not (stays and each.lease is not None)
        return tensor

    monkeypatch.setattr(SwapSpace, "_new_tensor", checked)
    with bed() as made:
        aqua = system(made, "aqua", "system.lender.free_share=0.2", NEVER, DIRTY)
        serve(made, aqua, CROWD)
        assert_all_done(made)
        assert overflows
        assert_empty(made, aqua)


def test_prefixes_and_copies_beside_one_another() -> None:
    shared = [each._replace(shared=((7, 64),)) for each in CROWD]
    with bed() as made:
        aqua = system(made, "aqua", "system.consumer.prefill_caching=true", DIRTY)
        serve(made, aqua, shared)
        assert_all_done(made)
        assert 0 < moved_bytes(made, *OUT) < moved_bytes(made, *INTO)
        assert len(list(aqua.pairs[0].consumer.swap.tensors)) == 1  # the prefix stays
