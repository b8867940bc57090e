"""A producer's region in a GPU's memory, written and read by another process. It needs one GPU, and
has never run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from tests.running import ROOT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.vllm,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="needs a GPU: two processes share its memory by a CUDA IPC handle",
    ),
]
BLOCKS, BYTES = 8, 1 << 20
LENDER = f"""
import sys
from systems.aqua.plugin import region
lent = region.lend("test", {BYTES})
print(lent.lease, flush=True)
sys.stdin.readline()
print(lent.memory.cpu().numpy().tobytes().hex(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def lender() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", LENDER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        yield process
        process.kill()


@pytest.mark.parametrize("by_block", [False, True])
def test_kv_lies_in_the_other_processs_gpu_memory_and_is_lost_with_it(
    lender: subprocess.Popen[str], by_block: bool
) -> None:
    from systems.aqua.plugin.paged import PagedKv
    from systems.aqua.plugin.pages import Page, Pages, Slots

    assert lender.stdin is not None
    assert lender.stdout is not None
    lease = lender.stdout.readline().strip()
    assert ".cuda." in lease
    ours = torch.arange(BLOCKS * 6, dtype=torch.int32).reshape(BLOCKS, 2, 3)
    caches = [(ours + k).to("cuda") for k in (0, 9)]
    worker = PagedKv(caches, by_block=by_block)
    size = worker.block_bytes
    slots = [Slots(lease, "a", [4, 5, 2])]
    worker.before(Pages(out=[Page("r", [5, 2, 7], 0, slots)], leases={lease}))
    lender.stdin.write("\n")
    lender.stdin.flush()
    lent = bytes.fromhex(lender.stdout.readline())
    for slot, block in zip([4, 5, 2], [5, 2, 7], strict=True):
        row = b"".join((ours[block] + k).numpy().tobytes() for k in (0, 9))
        assert lent[slot * size : (slot + 1) * size] == row
    for cache in caches:
        cache.zero_()
    assert worker.page_in(Page("r", [1, 3, 6], 0, slots))
    for k, cache in zip((0, 9), caches, strict=True):
        assert torch.equal(cache[[1, 3, 6]].cpu(), ours[[5, 2, 7]] + k)
    assert worker.counts["blocks/page in from lease"] == 3
    lender.kill()
    lender.wait()
    assert not worker.page_in(Page("r", [1, 3, 6], 0, slots))
    worker.close_all_but(set())
    torch.cuda.synchronize()
