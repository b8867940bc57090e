"""The rules by which Aegaeon's simulated baselines queue requests, clause by clause."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from systems.serverlessllm.oracle import Oracle
from systems.serverlessllm.queues import (
    Tail,
    assign,
    batches_of,
    join,
    shortest_first,
    tail_of,
)
from tests.unit.serverlessllm.stories import MODELS, RoundProfile, requests

ORACLE = Oracle(RoundProfile(), MODELS)


def joined(model: str, *tails: tuple[str | None, int, float]) -> int:
    return join(model, [Tail(*tail) for tail in tails], queue_slots=4, free_slots=1)


def test_a_tail_is_the_last_run_of_one_model() -> None:
    assert tail_of(requests("AABBB"), "A", 1.0) == Tail("B", 3, 1.0, 5)


def test_an_idle_worker_has_a_tail_of_none_of_the_model_in_place() -> None:
    assert tail_of([], "A", 1.0) == Tail("A", 0, 1.0)
    assert tail_of([], None, 0.0) == Tail(None, 0, 0.0)


def test_a_request_joins_the_shortest_run_of_its_model() -> None:
    assert joined("A", ("A", 3, 0.0), ("A", 1, 9.0), ("B", 0, 0.0), (None, 0, 0.0)) == 1


def test_an_idle_worker_with_the_model_is_the_shortest_run() -> None:
    assert joined("A", ("A", 1, 0.0), ("A", 0, 9.0)) == 1


def test_full_runs_make_it_take_an_empty_worker_first() -> None:
    assert joined("A", ("A", 4, 9.0), ("B", 0, 0.0), (None, 0, 0.0)) == 2


def test_else_the_least_recently_used_worker_of_another_model_busy_or_not() -> None:
    assert joined("A", ("A", 4, 0.0), ("B", 0, 5.0), ("C", 9, 3.0)) == 2


def test_slots_count_over_all_runs_of_the_model() -> None:
    assert joined("A", ("A", 4, 0.0), ("A", 3, 9.0), ("B", 0, 0.0)) == 1


def test_with_no_other_model_to_take_over_it_joins_a_full_run() -> None:
    assert joined("A", ("A", 6, 0.0), ("A", 5, 9.0)) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["A", "B", "C", None]), st.integers(0, 6), st.integers(0, 9)),
        min_size=1,
        max_size=8,
    )
)
def test_a_request_goes_behind_its_model_or_takes_a_worker_over_never_both(
    tails: list[tuple[str | None, int, int]],
) -> None:
    known = [Tail(model, run if model else 0, float(t)) for model, run, t in tails]
    chosen = known[join("A", known, 4, 1)]
    own = [tail for tail in known if tail.model == "A"]
    room = any(tail.run < 4 for tail in own)
    if room or all(tail.model == "A" for tail in known):
        assert chosen.run == min(tail.run for tail in own)
        assert chosen.model == "A"
    else:
        assert chosen.model != "A"
        assert chosen.model is None or all(tail.model is not None for tail in known)


def test_a_worker_is_taken_over_by_its_last_use_or_by_its_queue() -> None:
    tails = [tail_of(requests("BB"), "B", 1.0), tail_of(requests("B"), "B", 2.0)]
    assert join("A", tails, 4, 1) == 0
    assert join("A", tails, 4, 1, shortest=True) == 1


def test_batches_have_one_model_and_four_requests_at_most() -> None:
    queue = requests("ABAAAAB")
    ids = [[r.request_id for r in batch] for batch in batches_of(queue, 4)]
    assert ids == [[0, 2, 3, 4], [1, 6], [5]]


def test_a_request_joins_the_first_batch_of_its_model_with_room() -> None:
    workers = [batches_of(requests(queue), 4) for queue in ("AAAA", "BA", "A")]
    (new,) = requests("A")
    assert assign(new, workers, 4) == 1
    assert workers[1][1][-1] is new


def test_else_it_is_a_batch_of_its_own_where_there_are_the_fewest() -> None:
    workers = [batches_of(requests(queue), 4) for queue in ("AB", "B", "BBBB")]
    assert assign(requests("C")[0], workers, 4) == 1
    assert [len(batches) for batches in workers] == [2, 2, 1]


def test_the_batch_with_the_least_left_goes_first() -> None:
    long, short = requests("AB")
    long.computed_tokens = short.computed_tokens = 10
    long.generated_tokens, short.generated_tokens = 1, 5
    assert shortest_first([[long], [short]], ORACLE) == [short, long]


def test_while_a_batch_has_prompts_its_time_is_their_prefill_alone() -> None:
    (decoding,) = requests("A", output=25)
    decoding.computed_tokens, decoding.generated_tokens = 14, 5  # 20 ms are left
    first, second = requests("BB", output=1000)  # 10 ms of prefill each, 2 s of decoding
    ahead = shortest_first([[decoding], [first]], ORACLE)
    assert ahead == [first, decoding]
    third = requests("B", prompt=11, output=1000)[0]
    assert shortest_first([[decoding], [first, third]], ORACLE)[0] is decoding
    assert second not in ahead


def test_by_the_whole_service_a_batch_with_prompts_counts_its_decoding_too() -> None:
    (decoding,) = requests("A", output=25)
    decoding.computed_tokens, decoding.generated_tokens = 14, 5  # 20 ms are left
    (new,) = requests("B", output=1000)  # 10 ms of prefill, 1 s of decoding
    assert shortest_first([[decoding], [new]], ORACLE, by_phase=False) == [decoding, new]


def test_without_preemption_the_running_batch_stays_first() -> None:
    long, middle, short = requests("ABC")
    long.output_tokens, middle.output_tokens, short.output_tokens = 900, 500, 20
    for request in (long, middle, short):
        request.computed_tokens, request.generated_tokens = 10, 1
    batches = [[long], [middle], [short]]
    assert shortest_first(batches, ORACLE, preempts=False) == [long, short, middle]
    assert shortest_first(batches, ORACLE) == [short, middle, long]
