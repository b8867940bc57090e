"""The placer: optimal on small clusters by trying all, within its proven gap on large ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from systems.aqua.placer.assignment import (
    ModelType,
    Servers,
    assign,
    counted,
    objective_bytes,
)
from systems.aqua.placer.matching import Shard, match, preferences, stable_matching
from systems.aqua.placer.mix import Modality, draw
from tests.examples import examples
from tests.unit.aqua.producers import PRODUCERS

GB = 10**9
SERVER = {"gpus_per_server": 8, "gpu_memory_bytes": 80 * GB}
LLMS = (
    ModelType("llama3.1-70b-tp2", -15 * GB, 2), ModelType("yi-34b-200k", -12 * GB, 2),
    ModelType("opt-30b", -11 * GB, 1), ModelType("llama3.1-8b", 25 * GB, 1),
    ModelType("llama3.1-70b-tp4", 15 * GB, 4),
)  # fmt: skip


def all_counts(
    numbers: Sequence[int], types: Sequence[ModelType], servers: Servers
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way to spread each type over the servers that the GPUs allow."""
    spreads = [
        [each for each in product(range(n + 1), repeat=servers.num_servers) if sum(each) == n]
        for n in numbers
    ]
    for chosen in product(*spreads):
        rows = tuple(zip(*chosen, strict=True))
        used = [sum(n * t.shards for n, t in zip(row, types, strict=True)) for row in rows]
        if max(used) <= servers.gpus_per_server:
            yield rows


kinds = st.lists(
    st.builds(ModelType, st.sampled_from("abcd"), st.integers(-40, 40).map(lambda n: n * GB),
              st.integers(1, 2)),
    min_size=1, max_size=3, unique_by=lambda each: each.name,
)  # fmt: skip


@examples(80)
@given(kinds, st.data(), st.integers(1, 3))
def test_the_best_of_all_assignments_on_small_clusters(
    types: list[ModelType], data: st.DataObject, num_servers: int
) -> None:
    numbers = [data.draw(st.integers(0, 3)) for _ in types]
    servers = Servers(num_servers=num_servers, gpus_per_server=4, gpu_memory_bytes=80 * GB)
    every = list(all_counts(numbers, types, servers))
    if not every:
        with pytest.raises(UsageError):
            assign(types, numbers, servers, time_limit_s=60)
        return
    found = assign(types, numbers, servers, time_limit_s=60)
    best = min(objective_bytes(counts, types, servers) for counts in every)
    assert found.counts in every
    assert found.objective_bytes == best
    assert found.bound_bytes <= best + 1
    assert found.gap < 1e-6


@pytest.mark.parametrize("num_gpus", [16, 32, 64, 128])
def test_the_gap_is_proven_on_large_clusters(num_gpus: int) -> None:
    """Every model has a place, and the solver's bound lies below. How large the gap is within a
    time depends on the machine, so that a table of it is a measurement."""
    models = drawn(num_gpus)
    assert sum(each.shards for each in models) == num_gpus
    servers = Servers(num_servers=num_gpus // 8, **SERVER)
    types, numbers = counted(models)
    found = assign(types, numbers, servers, time_limit_s=3)
    assert [sum(column) for column in zip(*found.counts, strict=True)] == numbers
    for row in found.counts:
        assert sum(n * t.shards for n, t in zip(row, types, strict=True)) == 8
    assert found.bound_bytes <= found.objective_bytes * (1 + 1e-6)
    assert 0 <= found.gap < 1


def drawn(num_gpus: int) -> list[ModelType]:
    """Models for a cluster by section 9.3's shares."""
    audio = tuple(
        ModelType(p.name, p.free_bytes_at_peak, 1) for p in PRODUCERS if p.item == "audio"
    )
    vision = tuple(
        ModelType(p.name, p.free_bytes_at_peak, 1) for p in PRODUCERS if p.item == "image"
    )
    shares = [Modality(0.10, audio), Modality(0.15, vision), Modality(0.75, LLMS)]
    return draw(shares, num_gpus, np.random.default_rng(0))


def test_a_search_of_so_many_nodes_does_not_depend_on_the_time() -> None:
    """The gap of a table that is made again on another machine."""
    types, numbers = counted(drawn(64))
    servers = Servers(num_servers=8, **SERVER)
    found = [
        assign(types, numbers, servers, time_limit_s=limit_s, most_nodes=1)
        for limit_s in (300.0, 600.0)
    ]
    assert found[0] == found[1]
    assert 0 < found[0].gap < 1


def test_equal_demand_and_supply_share_a_server() -> None:
    types = [ModelType("lends", 30 * GB, 1), ModelType("needs", -30 * GB, 1)]
    servers = Servers(num_servers=2, gpus_per_server=4, gpu_memory_bytes=80 * GB)
    found = assign(types, [4, 4], servers, time_limit_s=60)
    assert found.counts == ((2, 2), (2, 2))
    assert found.objective_bytes == 0


def test_a_producer_of_nothing_counts_as_one() -> None:
    assert ModelType("m", 0, 1).sign == 1
    assert [ModelType("m", n, 1).sign for n in (5, -5)] == [1, -1]


def test_shards_stay_together() -> None:
    types = [ModelType("wide", -10 * GB, 3)]
    servers = Servers(num_servers=3, gpus_per_server=4, gpu_memory_bytes=80 * GB)
    with pytest.raises(UsageError, match="4 models do not fit on 3 servers of 4 GPUs"):
        assign(types, [4], servers, time_limit_s=60)


@pytest.mark.parametrize(
    ("shards", "number", "reason"),
    [
        (9, 1, "m has 9 shards; valid: 1 to 8, the GPUs of a server"),
        (1, 17, "the models have 17 shards; valid: at most 16"),
        (1, -1, "-1 models of m; valid: at least 0"),
    ],
)
def test_what_cannot_be_placed_is_refused(shards: int, number: int, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        assign(
            [ModelType("m", GB, shards)], [number], Servers(num_servers=2, **SERVER),
            time_limit_s=1,
        )  # fmt: skip


sizes = st.dictionaries(st.integers(0, 50), st.integers(0, 60), max_size=5)


@examples(300)
@given(sizes, sizes)
def test_the_matching_is_stable_and_one_to_one(
    lends: dict[object, int], needs: dict[object, int]
) -> None:
    of_consumers, of_producers = preferences(lends, needs)
    found = stable_matching(of_consumers, of_producers)
    assert len(set(found.values())) == len(found)
    assert len(found) == min(len(of_consumers), len(of_producers))
    assert all(lends[p] > 0 and needs[c] > 0 for c, p in found.items())
    assert is_stable(found, of_consumers, of_producers)


def is_stable(found: dict, of_consumers: dict, of_producers: dict) -> bool:  # type: ignore[type-arg]
    """No consumer and producer would both rather have one another."""
    consumer_of = {p: c for c, p in found.items()}
    for consumer, order in of_consumers.items():
        better = order[: order.index(found[consumer])] if consumer in found else order
        for producer in better:
            rival = consumer_of.get(producer)
            wishes = of_producers[producer]
            if rival is None or wishes.index(consumer) < wishes.index(rival):
                return False
    return True


def test_consumers_get_the_best_of_all_stable_matchings() -> None:
    """Whatever the preferences, here random ones: by trying every matching."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        of_consumers = {f"c{i}": [f"p{j}" for j in rng.permutation(4)] for i in range(4)}
        of_producers = {f"p{i}": [f"c{j}" for j in rng.permutation(4)] for i in range(4)}
        found = stable_matching(of_consumers, of_producers)
        for order in permutations(of_producers):
            other = dict(zip(of_consumers, order, strict=True))
            if is_stable(other, of_consumers, of_producers):
                for consumer, wishes in of_consumers.items():
                    assert wishes.index(found[consumer]) <= wishes.index(other[consumer])


def test_a_need_goes_to_the_producer_that_just_covers_it() -> None:
    found = stable_matching(*preferences({"big": 40, "small": 16, "none": 0}, {"c": 15}))
    assert found == {"c": "small"}
    found = stable_matching(*preferences({"one": 20}, {"a": 5, "b": 18, "idle": 0}))
    assert found == {"b": "one"}


def test_shards_of_a_model_are_matched_one_by_one() -> None:
    """Section 9.3: Llama-3.1-70B on two GPUs with Llama-3.1-8B and AudioGen."""
    server = [
        ModelType("llama3.1-70b-tp2", -15 * GB, 2), ModelType("llama3.1-8b", 25 * GB, 1),
        ModelType("audiogen", 20 * GB, 1), ModelType("idle", 0, 1),
    ]  # fmt: skip
    assert match(server) == {Shard(0, 0): Shard(2, 0), Shard(0, 1): Shard(1, 0)}
    assert match([ModelType("a", -GB, 1), ModelType("b", -GB, 1)]) == {}  # DRAM for both
