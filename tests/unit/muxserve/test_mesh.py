"""A mesh's loop, over an instance that is a block pool alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from harness.clock import VirtualLoop
from harness.device.block_pool import BlockPool
from harness.request import Request
from systems.muxserve.adbs import QuotaConfig
from systems.muxserve.mesh import Mesh
from systems.muxserve.resident import Resident
from systems.serving.iteration import Limits

LIMITS = Limits(
    max_num_seqs=4, max_num_batched_tokens=64, enable_chunked_prefill=False,
    scheduler_reserve_full_isl=True,
)  # fmt: skip


def never(request: Request, why: str) -> None:
    raise AssertionError(why)


def test_a_decode_that_preempts_all_of_its_batch_starts_no_job() -> None:
    loop, kv = VirtualLoop(), BlockPool(2, 16)
    instance: Any = SimpleNamespace(
        name="one", kv=kv, evict=kv.release, model=SimpleNamespace(held_kv_bytes_per_token=1)
    )
    request = Request(0, 0.0, "m", 32, 8, computed_tokens=32, generated_tokens=1)
    assert kv.grow(request, 32)
    resident = Resident(instance, 0.5, loop, LIMITS)
    resident.running.append(request)
    quotas = QuotaConfig(window_s=1.0, high=0.9, keep=0.8, growth=0.1)
    mesh = Mesh(loop, never, prefill_share=0.5, total_share=1.2, quotas=quotas)
    mesh.residents.append(resident)
    assert not mesh._start_decodes()
    assert resident.idle
    assert (list(resident.waiting), resident.running) == ([request], [])
    assert mesh._wake.is_set
