"""The order of service that is kept, against one that is made anew of the prompts as they are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import compiled
from systems.aqua.consumer import Consumer
from systems.aqua.prompt import Prompt
from systems.aqua.service_order import ServiceOrder
from tests.aqua import Asked, Kill, serve, system
from tests.examples import examples
from tests.unit.aqua.test_fair_scheduler import LIMITS
from tests.unit.aqua.test_kept_copies import DIRTY
from tests.unit.aqua.test_system import BURST, CROWD, LONG_CROWD, assert_all_done, bed

PREFIX = ((7, 64),)
SHARED = [each._replace(shared=PREFIX if i % 2 else ()) for i, each in enumerate(CROWD)]
CACHING = "system.consumer.prefill_caching=true"
LENDER = [Asked(0.01, 60, 400, "lender")]
FEW_SEATS = "system.max_num_seqs=16"


def shown(order: ServiceOrder) -> list[Any]:
    """Everything that a choice looks at; no numbers of arrivals, which are larger where some have
    ended."""
    lines = [
        [(served, blocks, prompt.request_id) for served, _, blocks, prompt in line]
        for line in (order.prefills, order.decodes)
    ]
    every = [
        (name, p.known_tokens, p.computed_tokens, p.generated_tokens, p.remaining_tokens,
         p.cached_tokens, p.resident)
        for name, p in order.prompts.items()
    ]  # fmt: skip
    return [lines, every, sorted(order.resident), order.contended, order._reserved_blocks]


prompts = st.builds(
    lambda name, computed, more, generated, remaining, resident, cached: Prompt(
        name, name, computed + more, computed, generated, remaining, resident, cached
    ),
    st.integers(0, 7), st.integers(0, 23), st.integers(1, 4), st.integers(0, 3),
    st.integers(1, 6), st.booleans(), st.integers(0, 9),
)  # fmt: skip


@examples(300)
@given(st.lists(st.one_of(prompts, st.integers(0, 7)), max_size=40))
def test_what_is_put_and_removed_leaves_what_is_made_anew(steps: list[Prompt | int]) -> None:
    order, live, arrivals = ServiceOrder(LIMITS), dict[Any, Prompt](), 0
    for step in steps:
        if isinstance(step, int):
            if step in live:
                order.remove(step)
                del live[step]
                assert order._moved.keys() <= live.keys() | order._lined.keys(), "nobody is kept"
            continue
        known, arrivals = live.get(step.request_id), arrivals + 1
        step.arrival = arrivals if known is None else known.arrival
        if known is not None and step.cached_tokens % 2:  # the same one, as it is now
            known.update(
                step.known_tokens, step.computed_tokens, step.generated_tokens,
                step.remaining_tokens, step.resident, step.cached_tokens,
            )  # fmt: skip
            step = known
        order.put(step)
        live[step.request_id] = step
        if step.remaining_tokens % 2:  # else the lines are sorted after several changes
            assert shown(order) == shown(ServiceOrder(LIMITS, live.values()))
    assert shown(order) == shown(ServiceOrder(LIMITS, live.values()))


@pytest.mark.skipif(compiled.state() == "compiled", reason="native classes take no stand-ins")
@pytest.mark.parametrize(
    ("name", "asked", "words", "kills"),
    [
        ("aqua", LONG_CROWD + BURST, [FEW_SEATS], []),  # tensors migrate, to DRAM and back
        ("aqua", LONG_CROWD + BURST, [FEW_SEATS, DIRTY], []),
        ("aqua", CROWD + LENDER, [], [Kill(1, 0.15)]),
        ("aqua", CROWD + LENDER, [DIRTY], [Kill(1, 0.3)]),
        ("aqua", CROWD, [], [Kill(0, 0.15)]),
        ("aqua", SHARED + LENDER, [CACHING], [Kill(1, 0.15)]),
        ("aqua", CROWD, ["system.variant=artifact"], []),
        ("vllm_cfs", CROWD, ["system.dram_bytes=1048576"], []),  # no room: some are evicted
        ("vllm_cfs", CROWD, ["system.dram_bytes=1048576", DIRTY], []),
    ],
)
def test_a_consumer_keeps_the_order_of_its_requests_as_they_are(
    name: str, asked: list[Asked], words: list[str], kills: list[Kill],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    iterate, looks = Consumer._iterate, 0

    async def checked(consumer: Consumer) -> None:
        nonlocal looks
        looks += 1
        held = consumer.instance.kv.held
        now = [
            Prompt(
                name, arrival, r.known_tokens, r.computed_tokens, r.generated_tokens,
                r.remaining_tokens, resident=name in held, cached_tokens=r.cached_tokens or 0,
            )
            for arrival, (name, r) in enumerate(consumer._requests.items())
        ]  # fmt: skip
        assert shown(consumer._order) == shown(ServiceOrder(consumer._order.limits, now))
        await iterate(consumer)

    monkeypatch.setattr(Consumer, "_iterate", checked)
    with bed() as made:
        serve(made, system(made, name, *words), asked, *kills)
        assert_all_done(made)
    assert looks > 20
