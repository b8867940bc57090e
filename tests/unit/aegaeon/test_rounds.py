"""Algorithm 2 as the real decoder runs it: rounds, their order, quotas and turns.

Each round is written down as it begins, each turn as it is taken, and both are held to lines 4 to
11 and equations 2 and 3 as printed. Estimates of times (A.2) are the system's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby, pairwise, permutations
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from systems.aegaeon.decode import DecodeBatch, Decoder, Turn
from tests.examples import examples
from tests.unit.aegaeon.trial import Trial, requests_of

MODELS = ["deep-2", "narrow-0", "wide-1"]
MAX_QUOTA_S, MIN_ALPHA = 0.02, 0.5
TBT_S = [0.005, 0.02]  # where Q_MAX decides, and where MIN_ALPHA does

Story = list[tuple[int, str, int, int]]  # (ms since the last arrival, model, prompt, output)

stories: st.SearchStrategy[Story] = st.lists(
    st.tuples(
        st.integers(0, 40), st.sampled_from(MODELS), st.integers(1, 300), st.integers(2, 150)
    ),
    min_size=2,
    max_size=12,
)
# The third request for the deep model finds no room beside the first two, and stands behind the
# narrow model's: a batch of the model at either end of the work list.
APART: Story = [(0, "deep-2", 300, 150), (0, "deep-2", 300, 150), (40, "narrow-0", 50, 150),
                (40, "deep-2", 300, 150), (40, "wide-1", 50, 150)]  # fmt: skip


@dataclass
class Taken:
    begun_s: float
    batch: DecodeBatch
    quota_s: float
    finished: bool = False  # nobody was left in the batch as it ended


@dataclass
class Round:
    came: list[DecodeBatch]  # the work list before line 6
    forgotten: list[DecodeBatch]  # of the round before, with requests, and not in the work list
    quotas_s: dict[int, float]  # by id(batch), from eq. 2 and 3
    turns: list[Taken] = field(default_factory=list)


def played(story: Story, tbt_s: float) -> tuple[Trial, list[Round]]:
    """One decode instance that holds few of the deep model's requests at once."""
    rounds: list[Round] = []

    class Watched(Decoder):
        async def _decode(self, turn: Turn) -> bool:
            taken = Taken(self._loop.now, turn.batch, turn.left_s)
            rounds[-1].turns.append(taken)
            decoded = await super()._decode(turn)
            taken.finished = not turn.batch.requests
            return decoded

    def watch(system: Any) -> None:
        [decoder] = system._decoders
        reorder = decoder._reorder

        def reordered(batches: Sequence[DecodeBatch]) -> list[DecodeBatch]:
            before = rounds[-1].came if rounds else []
            forgotten = [batch for batch in before if batch.requests and batch not in batches]
            quotas_s = expected_quotas_s(batches, tbt_s, system._estimator)
            rounds.append(Round(list(batches), forgotten, quotas_s))
            return list(reorder(batches))

        decoder._reorder = reordered

    trial = Trial(f"system.max_quota_s={MAX_QUOTA_S}", f"system.tbt_s={tbt_s}",
                  num_models=3, num_instances=2, kv_slabs=5, watch=watch)  # fmt: skip
    at_s, wanted = 0.0, []
    for gap_ms, *rest in story:
        at_s += gap_ms * 1e-3
        wanted.append((at_s, *rest))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("systems.aegaeon.system.Decoder", Watched)
        trial.serve(requests_of(*wanted))
    assert trial.statuses() == {"completed"}
    return trial, rounds


def expected_quotas_s(
    batches: Sequence[DecodeBatch], tbt_s: float, estimator: Any
) -> dict[int, float]:
    """Eq. 2 and 3; "c is the sum of auto-scaling overhead for all models in the work list"."""
    n = []
    for batch in batches:
        contexts = [r.prompt_tokens + r.generated_tokens for r in batch.requests]
        n.append(tbt_s / estimator.decode_s(batch.model, len(contexts), sum(contexts)))
    c = sum(map(estimator.switch_s, {batch.model for batch in batches}))
    alpha = max(c / (min(n) * MAX_QUOTA_S) + sum(1 / n_k for n_k in n), MIN_ALPHA)
    slack = alpha - sum(1 / n_k for n_k in n)
    return {id(batch): c / (n_i * slack) for batch, n_i in zip(batches, n, strict=True)}


def adjacent(models: Sequence[str]) -> bool:
    stretches = [model for model, _ in groupby(models)]
    return len(stretches) == len(set(stretches))


@cache
def first_grouped(models: tuple[str, ...]) -> list[int]:
    """Of all orders with batches of a model adjacent, by trying them: the one in which whoever
    stands first goes first."""
    orders = permutations(range(len(models)))
    return list(next(order for order in orders if adjacent([models[i] for i in order])))


@examples(40)
@given(stories, st.sampled_from(TBT_S))
@example(APART, TBT_S[0])
@example(APART, TBT_S[1])
def test_rounds_are_those_of_algorithm_2(story: Story, tbt_s: float) -> None:
    trial, rounds = played(story, tbt_s)
    assert_every_batch_has_one_turn_beside_those_of_its_model(rounds)
    assert_turns_are_as_long_as_equations_2_and_3_say(trial, rounds)
    assert_the_work_list_rotates_and_forgets_nobody(rounds)


def assert_every_batch_has_one_turn_beside_those_of_its_model(rounds: list[Round]) -> None:
    for each in rounds:
        order = first_grouped(tuple(batch.model for batch in each.came))
        assert [turn.batch for turn in each.turns] == [each.came[i] for i in order]


def assert_turns_are_as_long_as_equations_2_and_3_say(trial: Trial, rounds: list[Round]) -> None:
    """A turn decodes for its quota, once its requests are there, unless it finishes them sooner."""
    for each in rounds:
        for turn in each.turns:
            assert turn.quota_s == pytest.approx(each.quotas_s[id(turn.batch)])
            assert turn.quota_s <= MAX_QUOTA_S * (1 + 1e-9)
    decodes = [e for e in trial.events("run") if e["fields"]["phase"] == "decode"]
    for turn, following in pairwise(turn for each in rounds for turn in each.turns):
        own = [e for e in decodes if turn.begun_s <= e["start_s"] < following.begun_s]
        assert {e["fields"]["model"] for e in own} <= {turn.batch.model}
        spent_s = sum(e["end_s"] - e["start_s"] for e in own)
        assert spent_s >= turn.quota_s - 1e-9 or turn.finished


def assert_the_work_list_rotates_and_forgets_nobody(rounds: list[Round]) -> None:
    for before, after in pairwise(rounds):
        left = [turn.batch for turn in before.turns if turn.batch in after.came]
        assert left == [batch for batch in after.came if batch in before.came]
        assert not after.forgotten


@pytest.mark.parametrize("tbt_s", TBT_S)
def test_the_stories_have_what_line_6_and_both_sides_of_eq_3_are_about(tbt_s: float) -> None:
    """Else the property above would hold of anything."""
    rounds = played(APART, tbt_s)[1]
    assert any(not adjacent([batch.model for batch in each.came]) for each in rounds)
    shared = [max(each.quotas_s.values()) for each in rounds if len(each.came) > 1]
    at_maximum = [quota_s == pytest.approx(MAX_QUOTA_S) for quota_s in shared]
    assert all(at_maximum) if tbt_s == TBT_S[0] else not any(at_maximum)
