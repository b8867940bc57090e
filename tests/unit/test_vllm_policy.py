"""The iteration scheduler against vLLM V1's rules, on plain data."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from harness.device.block_pool import BlockPool
from harness.request import Batch, Request
from systems.serving.iteration import Limits, schedule_iteration
from tests.accounts import audit


def requests(*lengths: tuple[int, int]) -> deque[Request]:
    return deque(Request(i, 0.0, "m", p, o) for i, (p, o) in enumerate(lengths))


def limits(seqs: int = 8, tokens: int = 16, chunked: bool = True, reserve: bool = True) -> Limits:
    return Limits(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        enable_chunked_prefill=chunked,
        scheduler_reserve_full_isl=reserve,
    )


class Device:
    """Applies a batch at once, as an instance would."""

    def __init__(self, num_blocks: int) -> None:
        self.kv = BlockPool(num_blocks, 4)
        self.evicted: list[int] = []

    def evict(self, request: Request) -> None:
        self.kv.release(request)
        request.computed_tokens = 0
        self.evicted.append(request.request_id)

    def run(self, batch: Batch) -> None:
        for request, n in [*batch.chunks, *((r, 1) for r in batch.decodes)]:
            assert self.kv.held[request.request_id] * 4 >= request.computed_tokens + n
            request.computed_tokens += n
            if request.computed_tokens == request.known_tokens:
                request.generated_tokens += 1
            if request.finished:
                self.kv.release(request)


def ids(batch: Batch) -> tuple[list[tuple[int, int]], list[int]]:
    return [(r.request_id, n) for r, n in batch.chunks], [r.request_id for r in batch.decodes]


def test_a_long_prompt_is_cut_to_the_budget_and_the_next_waits() -> None:
    device, running, waiting = Device(100), [], requests((20, 3), (5, 3))
    first = schedule_iteration(running, waiting, device.kv, limits(), device.evict)
    assert ids(first) == ([(0, 16)], [])
    device.run(first)
    second = schedule_iteration(running, waiting, device.kv, limits(), device.evict)
    assert ids(second) == ([(0, 4), (1, 5)], [])
    device.run(second)
    third = schedule_iteration(running, waiting, device.kv, limits(), device.evict)
    assert ids(third) == ([], [0, 1])


def test_without_chunking_a_prompt_waits_until_it_fits_whole() -> None:
    device, running, waiting = Device(100), [], requests((10, 3), (10, 3))
    chunked = limits(chunked=False)
    first = schedule_iteration(running, waiting, device.kv, chunked, device.evict)
    assert ids(first) == ([(0, 10)], [])
    device.run(first)
    second = schedule_iteration(running, waiting, device.kv, chunked, device.evict)
    assert ids(second) == ([(1, 10)], [0])


def test_prompts_first_run_whole_and_alone_and_decodes_wait() -> None:
    """vLLM's default before V1: no decode while a prompt can be admitted, no chunk ever."""
    device, running, waiting = Device(100), [], requests((10, 3), (9, 3), (4, 3))
    old = limits(chunked=False)
    old.prompts_first = True
    seen = []
    for _ in range(4):
        batch = schedule_iteration(running, waiting, device.kv, old, device.evict)
        seen.append(ids(batch))
        device.run(batch)
    assert seen == [
        ([(0, 10)], []), ([(1, 9), (2, 4)], []), ([], [0, 1, 2]), ([], [0, 1, 2])
    ]  # fmt: skip


def test_prompts_that_find_no_room_let_decodes_run() -> None:
    device, running, waiting = Device(4), [], requests((12, 3), (8, 3))
    old = limits(chunked=False)
    old.prompts_first = True
    device.run(schedule_iteration(running, waiting, device.kv, old, device.evict))
    batch = schedule_iteration(running, waiting, device.kv, old, device.evict)
    assert ids(batch) == ([], [0])


def test_max_num_seqs_bounds_what_runs() -> None:
    device, running, waiting = Device(100), [], requests((2, 3), (2, 3), (2, 3))
    schedule_iteration(running, waiting, device.kv, limits(seqs=2), device.evict)
    assert [r.request_id for r in running] == [0, 1]


def test_the_first_that_does_not_fit_blocks_those_behind_it() -> None:
    device, running, waiting = Device(2), [], requests((12, 3), (2, 3))
    batch = schedule_iteration(running, waiting, device.kv, limits(), device.evict)
    assert ids(batch) == ([], [])
    assert len(waiting) == 2


def test_no_block_left_preempts_the_last_and_it_waits_at_the_head() -> None:
    device, running, waiting = Device(2), [], requests((4, 9), (4, 9), (1, 1))
    device.run(schedule_iteration(running, waiting, device.kv, limits(seqs=2), device.evict))
    batch = schedule_iteration(running, waiting, device.kv, limits(seqs=2), device.evict)
    assert ids(batch) == ([], [0])
    assert device.evicted == [1]
    assert [r.request_id for r in waiting] == [1, 2]
    device.run(batch)
    assert waiting[0].known_tokens == 5  # its generated token is kept and will be recomputed


def test_a_prompt_whose_first_chunk_alone_fits_is_not_admitted() -> None:
    """vLLM's scheduler_reserve_full_isl: else its own growth preempts it again and again."""
    device, running, waiting = Device(5), [], requests((24, 3))
    held = schedule_iteration(running, waiting, device.kv, limits(), device.evict)
    assert ids(held) == ([], [])
    eager = schedule_iteration(running, waiting, device.kv, limits(reserve=False), device.evict)
    assert ids(eager) == ([(0, 16)], [])


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=12),
    st.integers(13, 40),
    st.integers(1, 6),
    st.integers(1, 40),
)
def test_every_request_finishes_within_budget_seats_and_blocks(
    lengths: list[tuple[int, int]], num_blocks: int, seats: int, budget: int
) -> None:
    device, running, waiting = Device(num_blocks), [], requests(*lengths)
    everything = list(waiting)
    rules = limits(seats, budget)
    for _ in range(20_000):
        if all(r.finished for r in everything):
            break
        batch = schedule_iteration(running, waiting, device.kv, rules, device.evict)
        assert 0 < batch.num_tokens <= budget
        assert len(running) <= seats
        device.run(batch)
        running = [r for r in running if not r.finished]
        audit(device.kv)
    assert all(r.finished for r in everything)
    assert device.kv.used_blocks == 0
