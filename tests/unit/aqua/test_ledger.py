"""The coordinator's ledger: rules as examples; no byte lost or doubled, whatever is asked."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from systems.aqua.coordinator.ledger import Ledger, Refused
from systems.aqua.coordinator.requests import (
    Allocate,
    Change,
    Free,
    Join,
    Leave,
    Offer,
    Reclaim,
    from_json,
    to_json,
)
from systems.aqua.coordinator.topology import Device, Topology
from tests.examples import examples

TOPOLOGY = Topology({name: Device(0, 100) for name in ("gpu0", "gpu1", "gpu2")}, {"gpu1": "gpu0"})


def apply(found: Ledger, change: Change) -> None:
    change.check(found)
    change.make(found)


def ledger(*changes: Change) -> Ledger:
    found = Ledger(TOPOLOGY)
    for change in (Join("p", "gpu0"), Join("c", "gpu1"), *changes):
        apply(found, change)
    return found


def refused(found: Ledger, change: Change, status: int, reason: str) -> None:
    before = deepcopy(found)
    with pytest.raises(Refused, match=reason) as error:
        apply(found, change)
    assert error.value.status == status
    assert found == before


def test_a_consumer_allocates_in_its_producers_lease() -> None:
    found = ledger(Offer("l", "p", 50), Allocate("a", "c", 30))
    assert found.allocations["a"].lease == "l"
    assert found.leases["l"].free_bytes == 20
    apply(found, Allocate("b", "c", 21))  # no split
    assert "b" not in found.allocations
    apply(found, Free("a", "c"))
    assert found.leases["l"].free_bytes == 50


def test_another_producers_lease_is_not_for_it() -> None:
    """One producer to one consumer (§5), though the other has room."""
    found = ledger(Join("x", "gpu2"), Offer("m", "x", 50), Offer("l", "p", 20))
    apply(found, Allocate("a", "c", 30))
    assert not found.allocations
    assert list(found.leases_for("c")) == ["l"]


def test_a_device_without_a_producer_gets_nothing() -> None:
    found = ledger(Offer("l", "p", 50), Join("x", "gpu2"), Allocate("a", "x", 1))
    assert not found.allocations


def test_requests_sent_again_change_nothing() -> None:
    changes = (
        Offer("l", "p", 50), Allocate("a", "c", 30), Reclaim("l", "p", 10), Free("a", "c"),
        Allocate("b", "c", 10), Free("b", "c"), Reclaim("l", "p", 0), Leave("c"),
    )  # fmt: skip
    found = ledger()
    for change in changes:
        apply(found, change)
        before = deepcopy(found)
        apply(found, change)
        assert found == before


def test_late_copies_of_old_requests_change_nothing() -> None:
    found = ledger(Offer("l", "p", 50), Allocate("a", "c", 30), Free("a", "c"))
    refused(found, Allocate("a", "c", 30), 410, "allocation a has ended")
    apply(found, Reclaim("l", "p", 20))
    refused(found, Reclaim("l", "p", 30), 409, "keep_bytes=30 .* at most 20")
    apply(found, Reclaim("l", "p", 0))
    refused(found, Offer("l", "p", 50), 410, "lease l has ended")


def test_a_reclaimed_lease_takes_nothing_more_and_says_what_is_to_go() -> None:
    found = ledger(Offer("l", "p", 50), Allocate("a", "c", 30), Allocate("b", "c", 20))
    apply(found, Reclaim("l", "p", 10))
    lease = found.leases["l"]
    assert (lease.overdrawn_bytes, lease.held_bytes, lease.free_bytes) == (40, 50, 0)
    apply(found, Free("a", "c"))
    assert (lease.overdrawn_bytes, lease.held_bytes) == (10, 20)
    assert found.lent_bytes("gpu0") == 20
    apply(found, Free("b", "c"))
    assert (lease.overdrawn_bytes, lease.free_bytes) == (0, 10)


def test_a_lease_within_memory() -> None:
    found = ledger(Offer("l", "p", 60))
    refused(found, Offer("m", "p", 41), 409, "num_bytes=41 is beyond the memory of gpu0; .* 40")
    apply(found, Offer("m", "p", 40))


def test_wrong_input() -> None:
    found = ledger(Offer("l", "p", 50), Allocate("a", "c", 30))
    refused(found, Offer("m", "nobody", 1), 404, "no holder nobody")
    refused(found, Offer("l", "p", 51), 409, "lease l is one of 50 bytes")
    refused(found, Reclaim("l", "c", 1), 409, "lease l is p's")
    refused(found, Reclaim("m", "p", 1), 404, "no lease m")
    refused(found, Allocate("a", "c", 31), 409, "allocation a is one of 30")
    refused(found, Free("b", "c"), 404, "no allocation b")
    refused(found, Free("a", "p"), 409, "allocation a is c's")
    refused(found, Join("c", "gpu0"), 409, "holder c is on gpu1")
    refused(found, Join("d", "gpu0"), 409, "device gpu0 is held by p")
    refused(found, Join("d", "gpu9"), 404, "no device gpu9; devices: gpu0, gpu1, gpu2")
    refused(found, Leave("nobody"), 404, "no holder nobody")


def test_a_consumers_allocations_end_with_it() -> None:
    found = ledger(Offer("l", "p", 50), Allocate("a", "c", 30), Leave("c"))
    assert found.leases["l"].free_bytes == 50
    refused(found, Allocate("b", "c", 1), 410, "holder c has left")
    apply(found, Join("c2", "gpu1"))
    apply(found, Allocate("a", "c2", 50))


def test_a_producers_leases_end_with_it_and_what_lay_in_them_is_gone() -> None:
    found = ledger(Offer("l", "p", 50), Allocate("a", "c", 30), Leave("p"))
    assert not found.leases
    assert not found.allocations
    assert found.lent_bytes("gpu0") == 0
    apply(found, Free("a", "c"))  # the consumer did not know yet
    refused(found, Allocate("a", "c", 30), 410, "allocation a has ended")


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ({"gpu0": "gpu9"}, "place 'gpu9' of a pair is unknown; devices: gpu0, gpu1, gpu2, other"),
        ({"gpu0": "gpu1", "gpu2": "gpu1"}, "device gpu1 is in two pairs"),
        ({"gpu0": "gpu0"}, "device gpu0 is in two pairs"),
        ({"gpu0": "other"}, "consumer gpu0 is on node 0 and its producer other on node 1"),
    ],
)
def test_pairs_that_cannot_be(pairs: dict[str, str], reason: str) -> None:
    devices = dict.fromkeys(("gpu0", "gpu1", "gpu2"), Device(0, 1)) | {"other": Device(1, 1)}
    with pytest.raises(UsageError, match=reason):
        Topology(devices, pairs)


holders = st.sampled_from(["p", "c", "x", "y"])
names = st.sampled_from(["1", "2", "3", "4"])
sizes = st.integers(1, 120)
changes = st.one_of(
    st.builds(Join, holders, st.sampled_from(["gpu0", "gpu1", "gpu2", "gpu3"])),
    st.builds(Leave, holders),
    st.builds(Offer, names, holders, sizes),
    st.builds(Reclaim, names, holders, st.integers(0, 120)),
    st.builds(Allocate, names, holders, sizes),
    st.builds(Free, names, holders),
)


def check(found: Ledger) -> None:
    """Every byte is in one place."""
    for name, lease in found.leases.items():
        within = [each.num_bytes for each in found.allocations.values() if each.lease == name]
        assert lease.allocated_bytes == sum(within)
        assert 0 <= lease.capacity_bytes <= lease.offered_bytes
        assert lease.free_bytes + lease.allocated_bytes == lease.held_bytes
        assert lease.holder in found.devices
    for name, device in TOPOLOGY.devices.items():
        assert 0 <= found.lent_bytes(name) <= device.memory_bytes
    for allocation in found.allocations.values():
        assert allocation.lease in found.leases
        assert allocation.holder in found.devices
    assert len(set(found.devices.values())) == len(found.devices)


@examples(400)
@given(st.lists(changes, max_size=40))
def test_no_byte_is_lost_or_doubled(asked: list[Change]) -> None:
    """A refused change changes nothing, a repeated one nothing more, and a journal of those that
    were made restores the ledger."""
    found, made = ledger(), []
    for change in asked:
        before = deepcopy(found)
        try:
            apply(found, change)
        except Refused:
            assert found == before
            continue
        check(found)
        made.append(to_json(change))
        after = deepcopy(found)
        apply(found, change)
        if not isinstance(change, Allocate) or change.allocation in after.allocations:
            assert found == after
    again = ledger()
    for each in made:
        apply(again, from_json(each))
    assert again.status() == found.status()
