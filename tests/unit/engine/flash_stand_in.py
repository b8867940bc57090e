"""A stand-in for FlashInfer on a CPU: what its documentation says of a plan and of a run, in plain
torch, with the checks that it makes, and those of what it would read wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention


class Wrapper:
    def __init__(self, note: Callable[[str], None], workspace: torch.Tensor, **words: str) -> None:
        assert words == {"kv_layout": "HND", "backend": "fa2"}
        assert workspace.dtype == torch.uint8
        self._note = note

    def plan(
        self, qo_indptr: torch.Tensor, paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor, paged_kv_last_page_len: torch.Tensor, num_qo_heads: int,
        num_kv_heads: int, head_dim_qk: int, page_size: int, *, causal: bool,
        q_data_type: torch.dtype, kv_data_type: torch.dtype,
    ) -> None:  # fmt: skip
        self._note("plan")
        tensors = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert {(x.device.type, x.dtype) for x in tensors} == {("cpu", torch.int32)}
        num_requests = len(paged_kv_last_page_len)
        assert len(qo_indptr) == len(paged_kv_indptr) == num_requests + 1
        assert paged_kv_indptr[-1] == len(paged_kv_indices)
        assert ((paged_kv_last_page_len >= 1) & (paged_kv_last_page_len <= page_size)).all()
        assert causal
        self._plan: Any = [x.tolist() for x in tensors]
        self._shape = num_qo_heads, num_kv_heads, head_dim_qk, page_size
        self._dtypes = q_data_type, kv_data_type

    def run(self, q: torch.Tensor, paged: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        self._note("run")
        starts, firsts, pages, lasts = self._plan
        heads, kv_heads, head_dim, size = self._shape
        assert q.shape == (starts[-1], heads, head_dim)
        assert (q.dtype, paged[0].dtype) == self._dtypes
        assert all(cache.shape[1:] == (kv_heads, size, head_dim) for cache in paged)
        found = []
        for i, last in enumerate(lasts):
            mine = pages[firsts[i] : firsts[i + 1]]
            known = (len(mine) - 1) * size + last
            k, v = (cache[mine].transpose(0, 1).flatten(1, 2)[:, :known] for cache in paged)
            new = q[starts[i] : starts[i + 1]].transpose(0, 1)
            seen = torch.arange(known) <= torch.arange(known - new.shape[1], known)[:, None]
            out = scaled_dot_product_attention(
                new[None], k[None], v[None], attn_mask=seen, enable_gqa=True
            )[0]
            found.append(out.transpose(0, 1))
        return torch.cat(found)


class Flash:
    """The package. `calls`: the plans and runs of all wrappers, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.num_wrappers = 0

    def BatchPrefillWithPagedKVCacheWrapper(
        self, workspace: torch.Tensor, kv_layout: str, backend: str
    ) -> Wrapper:
        self.num_wrappers += 1
        return Wrapper(self.calls.append, workspace, kv_layout=kv_layout, backend=backend)
