"""Mutation, pre-scaling and how instances end (§5.3, §5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from systems.blitzscale.growth import (
    Changes,
    Counts,
    changes,
    drained,
    least_busy,
    prescaled_decodes,
    released,
    revived,
)
from systems.blitzscale.instances import Role, State


def test_a_decode_is_a_mutated_prefill_whose_replacement_loads_live() -> None:
    found = changes(Counts(4, 2, spare=8), 4, 4, 0, mutation=True)
    assert found == Changes(mutate=2, load_prefills=2)


def test_a_surplus_prefill_becomes_a_decode_without_any_load() -> None:
    found = changes(Counts(4, 2, spare=0), 3, 3, 0, mutation=True)
    assert found == Changes(mutate=1)


def test_the_last_prefill_stays_and_without_mutation_decodes_are_loaded() -> None:
    assert changes(Counts(1, 1, spare=4), 1, 2, 0, mutation=True) == Changes(load_decodes=1)
    assert changes(Counts(4, 2, spare=8), 4, 4, 0, mutation=False) == Changes(load_decodes=2)


def test_both_scale_up_and_the_spares_go_first_to_what_is_needed() -> None:
    grows = Counts(2, 2, spare=5)
    assert changes(grows, 4, 2, 4, mutation=True) == Changes(load_prefills=2, load_decodes=2)
    short = Counts(2, 2, spare=3)
    assert changes(short, 4, 2, 4, mutation=True) == Changes(load_prefills=2, load_decodes=1)
    assert changes(short, 9, 2, 9, mutation=True) == Changes(load_prefills=3)


def test_where_deaths_leave_a_role_without_an_instance_the_other_gives_one_up() -> None:
    no_decode, no_prefill = Counts(2, 0, spare=0), Counts(0, 2, spare=0)
    for mutation in (True, False):
        assert changes(no_decode, 2, 1, 0, mutation=mutation) == Changes(mutate=1)
        assert changes(no_prefill, 1, 2, 0, mutation=mutation) == Changes(stop_decodes=1)
    # while that one drains it is not taken back for what it was
    assert changes(Counts(0, 1, spare=1), 1, 2, 0, mutation=True) == Changes(load_prefills=1)
    assert changes(Counts(0, 1, spare=0), 1, 1, 0, mutation=True) == Changes()


def test_scale_down() -> None:
    assert changes(Counts(4, 3, 0), 2, 1, 0, mutation=True) == Changes(
        stop_prefills=2, stop_decodes=2
    )


@pytest.mark.parametrize(
    ("fleet", "prefills", "expected"),
    [
        (Counts(2, 2, 8), 4, 4),
        (Counts(4, 2, 8), 6, 3),
        (Counts(4, 2, 8), 5, 2),  # 1.25 is below 1.5
        (Counts(4, 3, 8), 4, 3),
        (Counts(4, 3, 8), 2, 3),
    ],
)
def test_decodes_are_prescaled_in_proportion_to_significant_growth(
    fleet: Counts, prefills: int, expected: int
) -> None:
    assert prescaled_decodes(fleet, prefills, significant_growth=1.5) == expected


@given(
    prefills=st.integers(1, 8),
    decodes=st.integers(1, 8),
    spare=st.integers(0, 8),
    want=st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 12)),
    mutation=st.booleans(),
)
def test_changes_take_no_more_than_the_spares_and_leave_a_prefill(
    prefills: int, decodes: int, spare: int, want: tuple[int, int, int], mutation: bool
) -> None:
    found = changes(Counts(prefills, decodes, spare), *want, mutation=mutation)
    assert found.load_prefills + found.load_decodes <= spare
    assert prefills - found.mutate - found.stop_prefills >= 1
    after_p = prefills - found.mutate + found.load_prefills - found.stop_prefills
    after_d = decodes + found.mutate + found.load_decodes - found.stop_decodes
    assert after_p <= max(prefills, want[0])
    assert after_d <= max(decodes, *want[1:])
    if spare >= 24:
        assert (after_p, after_d) == (want[0], max(want[1:]))
    again = Counts(after_p, after_d, spare - found.load_prefills - found.load_decodes)
    if after_p >= want[0] and after_d >= max(want[1:]):
        assert changes(again, *want, mutation=mutation) == Changes()


@dataclass
class Member:
    name: str
    role: Role
    state: State | None
    since_s: float
    tokens: int


def names(members: Sequence[Member]) -> list[str]:
    return [member.name for member in members]


def member(name: str, state: State, tokens: int = 0, since_s: float = 0.0) -> Member:
    role = Role.DECODE if name.startswith("d") else Role.PREFILL
    return Member(name=name, role=role, state=state, since_s=since_s, tokens=tokens)


FLEET = [
    member("p0", State.SERVING, 500),
    member("p1", State.SERVING, 100),
    member("p2", State.SHUTTING, 50),
    member("p3", State.SHUTTING, 0),
    member("d0", State.SERVING, 900),
    member("d1", State.SHUTTING, 70),
    member("d2", State.NULL, since_s=1.0),
    member("p4", State.NULL, since_s=2.0),
    member("p5", State.LOADING),
]


def test_a_scale_up_takes_back_who_drains_then_who_is_null() -> None:
    assert names(revived(FLEET, Role.PREFILL, 3)) == ["p2", "p3", "p4"]
    assert names(revived(FLEET, Role.DECODE, 9)) == ["d1", "p4", "d2"]


def test_a_prefill_that_drains_becomes_a_decode_where_there_is_none() -> None:
    prefills = [each for each in FLEET if each.role is Role.PREFILL]
    assert names(revived(prefills, Role.DECODE, 9)) == ["p4", "p2", "p3"]


def test_who_has_least_to_do_is_stopped_or_mutated() -> None:
    assert names(least_busy(FLEET, Role.PREFILL, 1)) == ["p1"]
    assert names(least_busy(FLEET, Role.DECODE, 2)) == ["d0"]


def test_drained_becomes_null_and_null_is_released_after_its_time() -> None:
    assert names(drained(FLEET)) == ["p3"]
    assert names(released(FLEET, 2.0, null_s=1.0)) == ["d2"]
    assert names(released(FLEET, 2.0, null_s=0.0)) == ["d2", "p4"]


def test_kv_decides_who_is_a_source_and_who_serves_live() -> None:
    assert [role.sends_kv for role in Role] == [True, False, False]
    assert [role.loads_live for role in Role] == [True, False, True]
