"""Workloads joined in one schedule, and bursts whose followers are redirected."""

from __future__ import annotations

import numpy as np
import pytest

from harness.errors import UsageError
from harness.schedule import Provenance, Schedule
from tests.running import composed
from workloads import arrivals, compose, joined

PLAIN = Provenance("test", "test", [], "", "")

TWO = (
    "+workload@workload.parts.chat=burstgpt",
    "+workload@workload.parts.docs=burstgpt",
    "workload.parts.chat.num_requests=30",
    "workload.parts.docs.num_requests=10",
    "workload.parts.docs.scale.to_rate_per_s=0.5",
)


def test_parts_keep_their_requests_and_names_in_order_of_arrival() -> None:
    made = compose.workload(composed("+system=vllm", "+workload=joined", *TWO)).schedule()
    names = np.array(made.model)
    assert [int((names == name).sum()) for name in ("chat", "docs")] == [30, 10]
    assert (np.diff(made.arrival_s) >= 0).all()
    alone = composed("+system=vllm", "+workload=burstgpt", "workload.num_requests=30")
    expected = compose.workload(alone).schedule()
    assert made.prompt_tokens[names == "chat"].tolist() == expected.prompt_tokens.tolist()
    assert made.arrival_s[names == "chat"].tolist() == expected.arrival_s.tolist()
    assert any(step.startswith("docs: ") for step in made.provenance.steps)


def test_parts_keep_what_their_prompts_share_and_share_nothing_with_each_other() -> None:
    own = [
        f"workload.parts.{part}.prefixes.{key}"
        for part in ("chat", "docs")
        for key in ("system_prompts=2", "system_prompt_tokens=8")
    ]
    made = compose.workload(composed("+system=vllm", "+workload=joined", *TWO, *own)).schedule()
    assert made.shared is not None
    streams = {name: {s for m, row in zip(made.model, made.shared, strict=True) if m == name
                      for s, _ in row} for name in ("chat", "docs")}  # fmt: skip
    assert [len(each) for each in streams.values()] == [2, 2]
    assert not streams["chat"] & streams["docs"]
    alone = composed("+system=vllm", "+workload=joined", *TWO, *own[:2])
    one = compose.workload(alone).schedule()
    assert one.shared is not None
    assert all(
        bool(row) == (name == "chat") for name, row in zip(one.model, one.shared, strict=True)
    )


def test_a_part_without_priorities_has_the_least() -> None:
    none, some = (
        Schedule(
            np.array(at_s), ["m"] * 2, np.array([4, 4]), np.array([1, 1]), PLAIN, priority=priority
        )
        for at_s, priority in (([0.0, 2.0], None), ([1.0, 3.0], np.array([5, 6])))
    )
    order = np.array([0, 2, 1, 3])
    found = joined.priorities([none, some], order)
    assert found is not None
    assert found.tolist() == [0, 5, 0, 6]
    assert joined.priorities([none, none], order) is None


def test_no_part_is_refused() -> None:
    with pytest.raises(UsageError, match="names no workload"):
        compose.workload(composed("+system=vllm", "+workload=joined"))


def test_as_many_as_a_burst_brought_are_redirected_after_it() -> None:
    burst = arrivals.BurstConfig(factor=2.0, start_s=10.0, duration_s=5.0, redirected=True)
    times = np.arange(0.0, 30.0, 0.5)
    kept = times[arrivals.served(burst, times)]
    inside = (times >= 10) & (times < 15)
    assert len(times) - len(kept) == inside.sum()
    assert kept[kept >= 15][0] == 20.0  # 10 of the burst, 10 gone
    assert kept[kept < 15].tolist() == times[times < 15].tolist()


def test_a_recorded_burst_is_not_redirected() -> None:
    burst = "workload.arrivals.burst={factor:2,start_s:1,duration_s:1,redirected:true}"
    with pytest.raises(UsageError, match="drawn arrivals"):
        compose.workload(composed("+system=vllm", "+workload=burstgpt", burst))
