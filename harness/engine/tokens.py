"""The token ids of a run's requests: prompts, made when asked for, and what engines generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from harness.device.base import advance
from harness.device.prompts import prompt_ids
from harness.engine.work import BatchWork, Chunk
from harness.files import replaced, writing
from harness.request import Batch, Request


def write_tokens(path: Path, generated: Mapping[int, Sequence[int]]) -> None:
    """Writes a table with the columns request_id and token_ids. RunError where it cannot."""
    ids = pa.array(list(generated.values()), pa.list_(pa.int32()))
    table = pa.table({"request_id": pa.array(list(generated), pa.int64()), "token_ids": ids})
    with writing(path), replaced(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


class TokenBook:
    """Shared by all instances, so that a request may go on at another one. `generated` keeps
    the ids of finished requests too: they are what exactness is judged by."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._prompts: dict[int, list[int]] = {}
        self.generated: dict[int, list[int]] = {}

    def known(self, request: Request, vocab_size: int, start: int, stop: int) -> list[int]:
        """Ids [start, stop) of the prompt followed by what was generated."""
        prompt = self._prompts.get(request.request_id)
        if prompt is None:
            prompt = prompt_ids(request, vocab_size, self._seed)
            self._prompts[request.request_id] = prompt
        if stop <= len(prompt):
            return prompt[start:stop]
        generated = self.generated[request.request_id]
        tail = generated[max(0, start - len(prompt)) : stop - len(prompt)]
        return prompt[start:] + tail if start < len(prompt) else tail

    def work(self, batch: Batch, vocab_size: int) -> BatchWork:
        """The batch in token ids and positions; blocks are the caller's to say."""
        ids: list[int] = []
        for request, num_tokens in batch.chunks:
            start = request.computed_tokens
            ids += self.known(request, vocab_size, start, start + num_tokens)
        ids += [self.generated[request.request_id][-1] for request in batch.decodes]
        return batch_work(batch, ids)

    def count(self, batch: Batch, token_ids: Sequence[int]) -> list[Request]:
        """An iteration is over and has brought `token_ids`: moves the counters, and returns whose
        tokens they are."""
        sampled = [*advance(batch), *batch.decodes]
        for request, token_id in zip(sampled, token_ids, strict=True):
            request.answer = ids = self.generated.setdefault(request.request_id, [])
            ids.append(token_id)
        return sampled

    def forget_prompt(self, request: Request) -> None:
        self._prompts.pop(request.request_id, None)


def batch_work(batch: Batch, ids: Sequence[int] = ()) -> BatchWork:
    chunks = [
        Chunk(r.computed_tokens, n, r.computed_tokens + n == r.known_tokens)
        for r, n in batch.chunks
    ]
    return BatchWork(chunks, [request.computed_tokens for request in batch.decodes], ids)
