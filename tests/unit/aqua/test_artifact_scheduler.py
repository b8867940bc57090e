"""variant=artifact: admission first, whole prompts, then the fewest output tokens."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from systems.aqua.artifact_scheduler import choose, due, in_order_of_arrival, iteration
from systems.aqua.prompt import Limits, Prompt, Slice
from systems.aqua.service_order import ServiceOrder
from systems.aqua.turn import Turn
from tests.examples import examples
from tests.unit.aqua.test_fair_scheduler import asked_lists, decode, prefill, run_limits
from tests.unit.aqua.turns import Asked, Turns, changed

LIMITS = Limits(
    batch_tokens=32, slice_iterations=5, num_blocks=12, block_tokens=4, max_prompts=16
)  # fmt: skip


def on_device(prompt: Prompt) -> Prompt:
    return changed(prompt, resident=True)


def test_who_waits_is_admitted_and_the_oldest_is_paged_out_for_it() -> None:
    running = [on_device(decode(i, 9, 1, output=2)) for i in range(4)]  # 3 blocks each
    chosen = choose([*running, prefill(4, 14)], LIMITS)  # needs 5 blocks
    assert chosen == Slice((4,), (2, 3), fair=False)


def test_a_prompt_runs_whole_and_prompts_run_alone() -> None:
    prompts = [on_device(decode(0, 4, 1)), prefill(1, 10), prefill(2, 10)]
    chosen = choose(prompts, LIMITS)
    by_id = {p.request_id: p for p in prompts}
    assert iteration(chosen, by_id) == [(1, 10), (2, 10)]
    by_id = {i: decode(i, 10, 1) for i in range(3)}
    assert iteration(chosen, by_id) == [(1, 1), (2, 1), (0, 1)]


def test_a_prompt_longer_than_the_batch_goes_alone() -> None:
    chosen = choose([prefill(0, 36), prefill(1, 2)], replace(LIMITS, num_blocks=30))
    assert chosen.prefills == (0,)


def test_a_long_prompt_has_room_for_all_of_it() -> None:
    tight = replace(LIMITS, batch_tokens=2, slice_iterations=1)
    running = [on_device(decode(i, 9, 1, output=2)) for i in range(3)]  # 3 blocks each
    assert choose([*running, prefill(4, 24)], tight).decodes == (1, 2)  # it needs 6 of the 12


def test_then_the_fewest_output_tokens_whatever_the_prompt() -> None:
    crowd = [decode(0, 9, 3), decode(1, 30, 1), decode(2, 9, 2)]
    assert choose(crowd, LIMITS).decodes == (1,)  # 9 blocks, and 3 do not hold 12 tokens and more


def test_without_swap_space_who_is_on_the_device_stays_and_others_join_while_they_fit() -> None:
    running = [on_device(decode(i, 9, 1, output=2)) for i in range(2, 4)]  # 3 blocks each
    waiting = [prefill(0, 14), prefill(1, 14), decode(4, 2, 1)]  # 5 blocks, 5 and 2
    chosen = in_order_of_arrival([*waiting, *running], LIMITS)
    assert chosen == Slice((0,), (2, 3), fair=False)
    outgrown = [on_device(decode(i, 9, 1)) for i in range(5)]  # 4 blocks each
    assert in_order_of_arrival(outgrown, LIMITS).members == (0, 1, 2)
    wide = replace(LIMITS, num_blocks=30)
    assert in_order_of_arrival([prefill(0, 20), prefill(1, 20)], wide).members == (0,)
    assert in_order_of_arrival(waiting, replace(LIMITS, max_prompts=1)).members == (0,)


def test_anew_every_k_iterations_or_for_who_waits() -> None:
    crowd = [decode(i, 4, 1) for i in range(3)]
    chosen = choose(crowd, LIMITS)
    assert chosen.fair
    assert not due(4, chosen, crowd, LIMITS)
    assert due(5, chosen, crowd, LIMITS)
    assert due(1, chosen, [*crowd, prefill(9, 4)], LIMITS)
    assert due(1, chosen, [decode(7, 4, 1)], LIMITS)


def test_admissions_do_not_put_off_the_next_fair_slice() -> None:
    """Somebody is admitted every four iterations; of k = 5 that would be never."""
    turn, crowd = Turn(LIMITS, artifact=True), [decode(i, 4, 1) for i in range(3)]
    turn.choose(ServiceOrder(LIMITS, crowd), fcfs=False)
    turn.ran(4, completed=False, prefilled=False)
    turn.choose(ServiceOrder(LIMITS, [*crowd, prefill(9, 4)]), fcfs=False)
    assert turn.iterations == 4
    turn.ran(1, completed=False, prefilled=True)
    assert turn.due(ServiceOrder(LIMITS, crowd))


@examples(200)
@given(asked_lists, run_limits.filter(lambda limits: limits.max_prompts <= limits.batch_tokens))
def test_nobody_starves_is_lost_or_doubled_and_batches_fit(
    asked: list[Asked], limits: Limits
) -> None:
    turns = Turns(asked, limits, artifact=True).run()
    assert sorted(turns.finished) == list(range(len(asked)))
    for i, each in enumerate(asked):
        computed = [batch[i] for batch in turns.batches if i in batch]
        assert computed[0] == each.prompt_tokens  # no chunks
        assert sum(computed) == each.prompt_tokens + each.output_tokens - 1
