"""AQUA TENSORS: where they lie, what moves between places, that every byte is somewhere once."""

from __future__ import annotations

from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from harness.request import Request
from systems.aqua.migration import evacuations, returns
from systems.aqua.tensors import Tensor, Tensors
from tests.examples import examples

NOBODY = Request(-1, 0.0, "m", 1, 1)


def tensor(name: Hashable, num_bytes: int, lease: str | None = None) -> Tensor:
    return Tensor(name, num_bytes, NOBODY, lease=lease)


def names(tensors: list[Tensor]) -> list[Hashable]:
    return [each.name for each in tensors]


def test_in_a_lease_or_in_dram() -> None:
    tensors = Tensors(dram_bytes=15)
    assert tensors.add(tensor("a", 10, "l"))
    assert tensors.add(tensor("b", 10))
    assert tensors.add(tensor("c", 90, "l"))  # the coordinator has given that room
    assert (tensors.bytes_in("l"), tensors.bytes_in(None)) == (100, 10)
    assert names(tensors.in_place("l")) == ["a", "c"]
    assert tensors["b"].lease is None
    tensors.free("a")
    assert "a" not in tensors
    assert tensors.bytes_in("l") == 90


def test_no_room_changes_nothing() -> None:
    tensors = Tensors(dram_bytes=15)
    assert tensors.add(tensor("a", 10))
    assert not tensors.add(tensor("b", 10))
    assert "b" not in tensors
    assert tensors.fits(5, None)
    assert not tensors.fits(6, None)
    assert tensors.fits(6, "l")


def test_a_lost_lease_takes_its_tensors_with_it() -> None:
    tensors = Tensors(dram_bytes=100)
    tensors.add(tensor("a", 10, "l"))
    tensors.add(tensor("b", 10))
    assert names(tensors.lose("l")) == ["a"]
    assert names(list(tensors)) == ["b"]
    assert tensors.add(tensor("a", 10, "m"))


def test_what_is_needed_last_leaves_first_and_comes_back_last() -> None:
    tensors = Tensors(dram_bytes=100)
    for name in "abc":
        tensors.add(tensor(name, 10, "l"))
    leaving = evacuations(tensors, {"l": 11}, needed=["b", "a"])
    assert names(leaving) == ["c", "a"]
    for each in leaving:
        tensors.move(each, None)
    assert names(returns(tensors, {"l": 10}, needed=["b", "a"])) == ["a"]


def test_the_artifact_moves_all_or_nothing() -> None:
    tensors = Tensors(dram_bytes=100)
    for name in "abc":
        tensors.add(tensor(name, 10, "l"))
    leaving = evacuations(tensors, {"l": 1}, [], whole_leases=True)
    assert len(leaving) == 3
    tensors.move(leaving[0], None)
    assert not returns(tensors, {"l": 90}, [], all_or_nothing=True)  # it holds something
    for each in leaving:
        tensors.move(each, None)
    assert not returns(tensors, {"l": 29}, [], all_or_nothing=True)
    assert len(returns(tensors, {"l": 30}, [], all_or_nothing=True)) == 3


class Lent:
    """Leases as a coordinator would have them."""

    def __init__(self) -> None:
        self.capacity = {"l0": 40, "l1": 25}

    def free(self, tensors: Tensors) -> dict[str, int]:
        return {k: max(0, size - tensors.bytes_in(k)) for k, size in self.capacity.items()}

    def overdrawn(self, tensors: Tensors) -> dict[str, int]:
        return {k: max(0, tensors.bytes_in(k) - size) for k, size in self.capacity.items()}

    def room(self, tensors: Tensors, num_bytes: int) -> str | None:
        free = self.free(tensors)
        return next((lease for lease, left in free.items() if left >= num_bytes), None)


steps = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 5), st.integers(1, 20)),
    st.tuples(st.just("free"), st.integers(0, 5), st.none()),
    st.tuples(st.just("capacity"), st.sampled_from(["l0", "l1"]), st.integers(0, 50)),
)


@examples(300)
@given(st.lists(steps, max_size=30), st.booleans(), st.permutations(range(6)))
def test_bytes_are_conserved_over_migrations(
    drawn: list[tuple[str, object, object]], artifact: bool, needed: list[int]
) -> None:
    """Bytes are in one place each, leases never above their capacity once the consumer has
    followed, and no move is without need."""
    tensors, lent = Tensors(dram_bytes=10_000), Lent()
    sizes: dict[object, int] = {}
    for what, name, value in drawn:
        if what == "add" and name not in sizes:
            assert isinstance(value, int)
            assert tensors.add(tensor(name, value, lent.room(tensors, value)))
            sizes[name] = value
        elif what == "free" and name in sizes:
            tensors.free(name)
            del sizes[name]
        elif what == "capacity":
            assert isinstance(name, str)
            assert isinstance(value, int)
            lent.capacity[name] = value
        overdrawn = lent.overdrawn(tensors)
        out = evacuations(tensors, overdrawn, needed, whole_leases=artifact)
        for lease, size in overdrawn.items():
            leaving = [each for each in out if each.lease == lease]
            total = sum(each.num_bytes for each in leaving)
            assert total >= size
            if leaving and not artifact:
                assert total - leaving[-1].num_bytes < size
        for each in out:
            assert tensors.fits(each.num_bytes, None)
            tensors.move(each, None)
        for each in returns(tensors, lent.free(tensors), needed, all_or_nothing=artifact):
            assert each.lease is None
            tensors.move(each, lent.room(tensors, each.num_bytes))
            assert each.lease is not None
        assert not any(lent.overdrawn(tensors).values())
        assert sum(map(tensors.bytes_in, (None, "l0", "l1"))) == sum(sizes.values())
        for place in (None, "l0", "l1"):
            there = [each for each in tensors if each.lease == place]
            assert tensors.in_place(place) == there
            assert tensors.bytes_in(place) == sum(each.num_bytes for each in there)
        assert {each.name: each.num_bytes for each in tensors} == sizes
