"""The parameter pool (§5.3, A.1): its invariant under any sequence of events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from harness.errors import UsageError
from systems.blitzscale.chains import Medium
from systems.blitzscale.pool import GpuCopy, ParameterPool
from tests.examples import num_examples

GB = 10**9
SIZES = {"72b": 145 * GB, "24b": 47 * GB, "8b": 16 * GB, "7b": 14 * GB, "1b": 2 * GB}
NODES = 4
MODELS = st.sampled_from(sorted(SIZES))


def copy(name: str, node: int) -> GpuCopy:
    return GpuCopy(name=name, node=node, devices=(8 * node,))


class Gpus(dict[str, GpuCopy]):
    """The instances of all models, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.models: dict[str, str] = {}

    def deploy(self, model: str, name: str, node: int) -> None:
        self[name], self.models[name] = copy(name, node), model

    def stop(self, name: str, *, stays: bool = False) -> None:
        self[name] = replace(self[name], stays=stays)

    def of(self, model: str) -> list[GpuCopy]:
        return [each for name, each in self.items() if self.models[name] == model]


def pool(gpus: Gpus, host_bytes: int = 10**12) -> ParameterPool:
    return ParameterPool(SIZES, range(NODES), host_bytes, gpus.of)


def media(found: ParameterPool, model: str) -> set[Medium]:
    return {source.medium for source in found.sources(model)}


class Events(RuleBasedStateMachine):
    """Instances come and go, hosts fail. A host copy that is wanted is made at once, or later."""

    def __init__(self) -> None:
        super().__init__()
        self.gpus = Gpus()
        self.pool = pool(self.gpus)
        self.alive = list(range(NODES))
        self.lost: set[str] = set()  # without a copy in memory, since a host failed
        self.count = 0

    @rule(model=MODELS, where=st.integers(0, NODES - 1))
    def deploy(self, model: str, where: int) -> None:
        self.count += 1
        self.gpus.deploy(model, f"i{self.count}", self.alive[where % len(self.alive)])
        self.lost.discard(model)
        self.settle()

    @precondition(lambda self: self.gpus)
    @rule(which=st.integers(0, 99), keep=st.booleans())
    def reclaim(self, which: int, keep: bool) -> None:
        name = sorted(self.gpus)[which % len(self.gpus)]
        self.gpus.stop(name)
        self.settle()
        if not self.pool.may_reclaim(self.gpus.models[name], name):
            if keep:
                self.gpus.stop(name, stays=True)
                self.settle()
                return
            self.complete()
        assert self.pool.may_reclaim(self.gpus.models[name], name)
        del self.gpus[name]
        self.settle()

    @rule()
    def complete(self) -> None:
        for model in list(self.pool.coming):
            self.pool.copied(model)
            self.lost.discard(model)
        self.settle()

    @precondition(lambda self: len(self.alive) > 1)
    @rule(which=st.integers(0, NODES - 1))
    def fail(self, which: int) -> None:
        host = self.alive.pop(which % len(self.alive))
        for name in [name for name, gpu in self.gpus.items() if gpu.node == host]:
            del self.gpus[name]
        self.pool.failed(host)
        self.lost = {model for model in SIZES if media(self.pool, model) == {Medium.SSD}}
        self.settle()

    def settle(self) -> None:
        for model in self.pool.surplus():
            self.pool.dropped(model)
        self.pool.wanted()

    @invariant()
    def a_copy_is_in_memory_or_on_its_way_from_ssd(self) -> None:
        for model in SIZES:
            in_memory = media(self.pool, model) != {Medium.SSD}
            assert in_memory or (model in self.lost and model in self.pool.coming)

    @invariant()
    def what_is_being_made_can_be_read(self) -> None:
        for model, copy in self.pool.coming.items():
            assert copy.node in self.alive
            from_ssd = {source.medium for source in copy.sources} == {Medium.SSD}
            assert from_ssd or bool(self.gpus.of(model))

    @invariant()
    def a_gpu_copy_leaves_no_host_copy(self) -> None:
        staying = {self.gpus.models[name] for name, gpu in self.gpus.items() if gpu.stays}
        assert not staying & (set(self.pool.host_copies) | set(self.pool.coming))

    @invariant()
    def hosts_that_live_hold_the_copies(self) -> None:
        assert set(self.pool.host_copies.values()) <= set(self.alive)


Events.TestCase.settings = settings(max_examples=num_examples(100), stateful_step_count=30)
TestPoolUnderEvents = Events.TestCase


def test_at_first_each_model_has_one_host_copy_and_hosts_are_even() -> None:
    found = ParameterPool(dict.fromkeys("abcdefgh", 10), range(4), 100, Gpus().of)
    assert sorted(found.host_copies.values()) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [pool(Gpus()).used_bytes(host) for host in range(NODES)] == [
        145 * GB,
        47 * GB,
        16 * GB,
        16 * GB,
    ]


def test_the_host_copy_goes_when_a_gpu_has_one_and_comes_before_the_last_gpu_leaves() -> None:
    gpus = Gpus()
    found = pool(gpus)
    gpus.deploy("8b", "i0", 0)
    assert found.surplus() == ["8b"]
    found.dropped("8b")
    assert media(found, "8b") == {Medium.GPU}
    gpus.stop("i0")
    assert not found.may_reclaim("8b", "i0")
    (wanted,) = found.wanted()
    assert (wanted.model, wanted.sources[0].medium) == ("8b", Medium.GPU)
    found.copied("8b")
    assert found.may_reclaim("8b", "i0")
    del gpus["i0"]
    assert media(found, "8b") == {Medium.HOST}


def test_two_instances_that_leave_together_do_not_count_on_each_other() -> None:
    gpus = Gpus()
    found = pool(gpus)
    for name in ("i0", "i1"):
        gpus.deploy("8b", name, 0)
    found.dropped("8b")
    gpus.stop("i0")
    assert found.wanted() == []
    gpus.stop("i1")
    assert [wanted.model for wanted in found.wanted()] == ["8b"]
    assert found.wanted() == []


def test_a_host_copy_that_loses_the_gpu_it_is_made_from_is_begun_anew_from_ssd() -> None:
    gpus = Gpus()
    found = pool(gpus)
    gpus.deploy("72b", "i0", 1)
    found.dropped("72b")  # from host 0, which is empty now
    gpus.stop("i0")
    (first,) = found.wanted()
    assert (first.node, first.sources[0].medium) == (0, Medium.GPU)
    del gpus["i0"]
    found.failed(1)
    (again,) = (each for each in found.wanted() if each.model == "72b")
    assert (again.node, again.sources[0].medium) == (0, Medium.SSD)


def test_an_instance_that_dies_may_have_had_the_last_copy() -> None:
    gpus = Gpus()
    found = pool(gpus)
    gpus.deploy("72b", "i0", 1)
    gpus.deploy("72b", "i1", 2)
    found.dropped("72b")
    del gpus["i0"]
    assert media(found, "72b") == {Medium.GPU}
    assert not found.wanted()
    del gpus["i1"]
    (again,) = found.wanted()
    assert {source.medium for source in again.sources} == {Medium.SSD}


def test_copies_that_fit_in_no_host_are_told() -> None:
    with pytest.raises(UsageError, match=r"72b \(145000000000 bytes\) fits in no host"):
        pool(Gpus(), host_bytes=100 * GB)


def test_the_last_host_is_told() -> None:
    found = ParameterPool({"8b": 1}, [0], 10, Gpus().of)
    with pytest.raises(UsageError, match="host 0 was the last one"):
        found.failed(0)
