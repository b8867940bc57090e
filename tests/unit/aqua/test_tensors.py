"""AQUA TENSORS and cached prefixes: where shards lie, and that every byte is somewhere once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from systems.aqua.migration import evacuations, returns
from systems.aqua.prefix_cache import PrefixCache
from systems.aqua.tensors import DRAM, Place, Shard, Tensors

L = Place("l")


def test_shard_by_shard_into_the_neighbours_lease_or_dram() -> None:
    tensors = Tensors(2, dram_bytes=100)
    assert tensors.allocate("a", [10, 10], [{"l": 10}, {"m": 9}]) == (L, DRAM)
    assert tensors.allocate("b", [10, 10], [{"l": 0, "k": 10}, {}]) == (Place("k"), DRAM)
    assert tensors.in_dram("a")
    assert tensors.resolve("b") == (Place("k"), DRAM)
    assert tensors.bytes_in(DRAM) == 20
    assert tensors.free("a") == (L, DRAM)
    assert tensors.bytes_in(L) == 0


def test_no_room_changes_nothing() -> None:
    tensors = Tensors(2, dram_bytes=15)
    assert tensors.allocate("a", [10, 10], [{"l": 10}, {}]) == (L, DRAM)
    assert tensors.allocate("b", [10, 10], [{"l": 10}, {}]) is None
    assert "b" not in tensors
    assert not tensors.migrate(Shard("a", 0), DRAM)
    assert tensors.resolve("a") == (L, DRAM)


def test_wrong_input_is_told() -> None:
    tensors = Tensors(2, dram_bytes=100)
    tensors.allocate("a", [1, 1], [{}, {}])
    with pytest.raises(ValueError, match="tensor a is allocated already"):
        tensors.allocate("a", [1, 1], [{}, {}])
    for sizes in ([1], [1, 0]):
        with pytest.raises(ValueError, match="valid: 2 of at least 1"):
            tensors.allocate("b", sizes, [{}, {}])
    with pytest.raises(KeyError, match="no tensor b"):
        tensors.resolve("b")
    with pytest.raises(ValueError, match="num_shards=0"):
        Tensors(0, 1)


def test_a_lost_lease_takes_its_tensors_with_it_whole() -> None:
    tensors = Tensors(2, dram_bytes=100)
    tensors.allocate("a", [10, 10], [{"l": 10}, {}])
    tensors.allocate("b", [10, 10], [{}, {}])
    assert tensors.lose("l") == ["a"]
    assert tensors.bytes_in(DRAM) == 20


def test_what_is_needed_last_leaves_first_and_comes_back_last() -> None:
    tensors = Tensors(1, dram_bytes=100)
    for name in "abc":
        tensors.allocate(name, [10], [{"l": 10}])
    moves = evacuations(tensors, {"l": 11}, needed=["b", "a"])
    assert [move.shard.tensor for move in moves] == ["c", "a"]
    for move in moves:
        tensors.migrate(move.shard, move.to)
    back = returns(tensors, [{"l": 10}], needed=["b", "a"])
    assert [move.shard.tensor for move in back] == ["a"]


def test_the_artifact_moves_all_or_nothing() -> None:
    tensors = Tensors(1, dram_bytes=100)
    for name in "abc":
        tensors.allocate(name, [10], [{"l": 10}])
    moves = evacuations(tensors, {"l": 1}, [], whole_leases=True)
    assert len(moves) == 3
    tensors.migrate(moves[0].shard, DRAM)
    assert not returns(tensors, [{"l": 90}], [], all_or_nothing=True)  # it holds something
    for move in moves:
        tensors.migrate(move.shard, DRAM)
    assert not returns(tensors, [{"l": 29}], [], all_or_nothing=True)
    assert len(returns(tensors, [{"l": 30}], [], all_or_nothing=True)) == 3


class Lent:
    """Leases as a coordinator would have them, for two devices."""

    def __init__(self) -> None:
        self.capacity = {"l0": 40, "l1": 25}

    def free(self, tensors: Tensors) -> list[dict[str, int]]:
        return [
            {name: max(0, self.capacity[name] - tensors.bytes_in(Place(name)))}
            for name in ("l0", "l1")
        ]

    def overdrawn(self, tensors: Tensors) -> dict[str, int]:
        return {
            name: max(0, tensors.bytes_in(Place(name)) - size)
            for name, size in self.capacity.items()
        }


steps = st.one_of(
    st.tuples(
        st.just("allocate"), st.integers(0, 5), st.tuples(st.integers(1, 20), st.integers(1, 20))
    ),
    st.tuples(st.just("free"), st.integers(0, 5), st.none()),
    st.tuples(st.just("capacity"), st.sampled_from(["l0", "l1"]), st.integers(0, 50)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=30), st.booleans(), st.permutations(range(6)))
def test_bytes_are_conserved_over_migrations(
    drawn: list[tuple[str, object, object]], artifact: bool, needed: list[int]
) -> None:
    """Allocated bytes are in one place each, leases never above their capacity once the consumer
    has followed, and no move is without need."""
    tensors, lent = Tensors(2, dram_bytes=10_000), Lent()
    sizes: dict[object, tuple[int, int]] = {}
    for what, name, value in drawn:
        if what == "allocate" and name not in sizes:
            assert isinstance(value, tuple)
            assert tensors.allocate(name, value, lent.free(tensors)) is not None
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
            leaving = [
                m for m in out if tensors.resolve(m.shard.tensor)[m.shard.device][0] == lease
            ]
            total = sum(move.num_bytes for move in leaving)
            assert total >= size
            if leaving and not artifact:
                assert total - leaving[-1].num_bytes < size
        for move in out:
            assert tensors.migrate(move.shard, move.to)
        for move in returns(tensors, lent.free(tensors), needed, all_or_nothing=artifact):
            assert tensors.migrate(move.shard, move.to)
        assert not any(lent.overdrawn(tensors).values())
        places = [DRAM, Place("l0"), Place("l1")]
        assert sum(tensors.bytes_in(place) for place in places) == sum(map(sum, sizes.values()))
        for place in places:
            shards = tensors.shards_in(place)
            assert tensors.bytes_in(place) == sum(tensors.size(shard) for shard in shards)
        assert sum(len(tensors.shards_in(place)) for place in places) == 2 * len(sizes)
        assert all(tensors.shard_bytes(name) == size for name, size in sizes.items())


def test_a_cached_prefix_shares_the_swap_space() -> None:
    tensors = Tensors(2, dram_bytes=30)
    prefixes = PrefixCache(tensors)
    assert prefixes.store("doc", 100, [10, 10], [{"l": 10}, {}]) == (L, DRAM)
    assert tensors.bytes_in(DRAM) == 10
    assert prefixes.reusable_tokens("doc", 356) == 100
    assert prefixes.reusable_tokens("doc", 100) == 99  # its last token gives the output
    assert prefixes.reusable_tokens("other", 5) == 0
    assert tensors.resolve(prefixes.tensor("doc")) == (L, DRAM)
    assert prefixes.store("more", 100, [30, 30], [{}, {}]) is None
    assert prefixes.reusable_tokens("more", 200) == 0
    assert prefixes.drop("doc") == (L, DRAM)
    assert prefixes.drop("doc") == ()
    assert prefixes.reusable_tokens("doc", 356) == 0


def test_a_prefix_longer_than_its_prompt_and_one_stored_twice() -> None:
    prefixes = PrefixCache(Tensors(1, dram_bytes=30))
    prefixes.store("doc", 100, [10], [{}])
    with pytest.raises(ValueError, match="prefix doc has 100 tokens and its prompt 99"):
        prefixes.reusable_tokens("doc", 99)
    with pytest.raises(ValueError, match="prefix doc is cached already"):
        prefixes.store("doc", 100, [10], [{}])


def test_a_prefix_lost_with_its_lease_can_be_stored_again() -> None:
    tensors = Tensors(1, dram_bytes=30)
    prefixes = PrefixCache(tensors)
    prefixes.store("doc", 100, [10], [{"l": 10}])
    tensors.lose("l")
    assert prefixes.reusable_tokens("doc", 356) == 0
    assert prefixes.store("doc", 100, [10], [{}]) == (DRAM,)
