"""A batch that has been given up writes no KV any more: its blocks may be another's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.engine.attention import cache_attentions
from harness.engine.given_up import Abandoned, GivenUp
from harness.engine.kv_cache import KvCache
from harness.engine.paced_links import LinkPath
from harness.engine.routed_attention import LentAttention, RoutedAttention
from harness.engine.work import BatchWork, HoldWork, Part, StageWork

CPU = torch.device("cpu")
BATCH, BLOCKS, BLOCK_TOKENS, HEADS, HEAD_DIM = 7, 4, 4, 2, 8
PATH = LinkPath({}, None, 0.0)
WIDTH = 3 * HEADS * HEAD_DIM  # of a token's q, k and v


@pytest.fixture(name="cache")
def make_cache() -> KvCache:
    shape = (1 + BLOCKS, HEADS, BLOCK_TOKENS, HEAD_DIM)
    return KvCache([torch.zeros(shape)], [torch.zeros(shape)])


@pytest.fixture(name="over")
def make_over() -> GivenUp:
    return GivenUp(CPU)


class Peers:
    """What is sent to others is kept."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, name: str, path: object, tensor: torch.Tensor, header: dict[str, Any]) -> None:
        self.sent.append(header)

    def tensor(self, payload: bytes, shape: list[int]) -> torch.Tensor:
        return torch.frombuffer(bytearray(payload), dtype=torch.float32).view(shape)


class Stream:
    """Jobs wait until they are run."""

    def __init__(self) -> None:
        self._jobs: list[Callable[[], None]] = []

    def put(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)

    def run(self) -> None:
        while self._jobs:
            self._jobs.pop(0)()


def runner_of(cache: KvCache) -> Any:
    return SimpleNamespace(
        device=CPU,
        spec=SimpleNamespace(num_heads=HEADS, num_kv_heads=HEADS, head_dim=HEAD_DIM),
        attentions=lambda batch, tables: cache_attentions(cache, batch, tables, CPU),
    )


def part() -> Part:
    return Part("here", [], [0], [[1]])


def written(cache: KvCache) -> bool:
    return bool(cache.keys[0].any() or cache.values[0].any())


def qkv() -> Iterator[torch.Tensor]:
    return (torch.ones(1, HEADS, HEAD_DIM) for _ in range(3))


@pytest.mark.parametrize("given_up", [False, True])
def test_attention_that_was_asked_for_does_not_write_once_the_batch_is_over(
    cache: KvCache, over: GivenUp, given_up: bool
) -> None:
    stream: Any = Stream()
    peers: Any = Peers()
    lent = LentAttention(runner_of(cache), peers, stream, over)
    lent.hold({"work": HoldWork(BATCH, BatchWork([], [1]), PATH, {0: part()})})
    stream.run()
    asked = {"batch": BATCH, "step": 0, "layer": 0, "group": 0, "tokens": 1}
    lent.asked("there", asked, bytearray(torch.ones(WIDTH).numpy().tobytes()))
    if given_up:
        over.add(BATCH, broken=True)
        lent.let_go(BATCH)
    stream.run()
    assert written(cache) is not given_up
    assert len(peers.sent) == (0 if given_up else 1)


def test_a_step_does_not_write_once_its_batch_is_over(cache: KvCache, over: GivenUp) -> None:
    work = StageWork(
        BATCH, BatchWork([], [1]), range(1), 1, 1, inf, {0: [part()]}, None, None, "here", PATH, {}
    )  # fmt: skip
    peers: Any = Peers()
    routed = RoutedAttention("here", runner_of(cache), peers, over)
    with torch.inference_mode():
        attend = routed.routed(work, [], lambda: 0)
        over.add(BATCH, broken=True)
        with pytest.raises(Abandoned):
            attend(0, *qkv())
        assert not written(cache)


def test_a_batch_is_over_when_nobody_writes_for_it(over: GivenUp) -> None:
    """Who is in the midst of it ends first."""
    writes, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def write() -> None:
        with over.writing(BATCH, "attend"):
            writes.set()
            may_end.wait(20)
            order.append("written")

    def give_up() -> None:
        over.add(BATCH, broken=True)
        order.append("over")

    threads = [threading.Thread(target=job, daemon=True) for job in (write, give_up)]
    threads[0].start()
    assert writes.wait(20)
    threads[1].start()
    may_end.set()
    for thread in threads:
        thread.join(20)
    assert order == ["written", "over"]
    with pytest.raises(Abandoned), over.writing(BATCH, "compute"):
        pass
    with over.writing(BATCH + 1, "compute"):
        assert BATCH in over
