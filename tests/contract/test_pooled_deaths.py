"""Systems whose models take turns on devices, or share them, when one dies: the others' tokens are
those of an undisturbed run, what nobody can serve fails with a reason, and nothing hangs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import InstanceLost, RunError
from harness.pooled.device import KvCopy
from harness.running.faults import Faults, Kill, Stall
from systems.aegaeon.scaling import Optimisations, Scaler
from tests.contract.pool_bench import PoolBench
from tests.contract.test_system import Served, serve
from tests.exactness import answers, plain_tokens

pytestmark = pytest.mark.usefixtures("forked_workers")

TWO = ("hardware.num_devices=2", "hardware.devices_per_node=2")
FOUR = ("hardware.num_devices=4", "hardware.devices_per_node=4")
SLOW = ("hardware.pcie_peak_bytes_per_s=2e7", "hardware.pcie_bytes_per_s=2e7")
UNIFIED = ("aegaeon", "system.schedule=decode_first")
ARTIFACT = (
    "serverlessllm", "system.variant=artifact", "system.artifact.drop_after_s=1e6",
    "system.load_bytes_per_s=1e7",
)  # fmt: skip


def live(victim: int) -> Any:
    """On real workers. `test_systems_on_nodes` has others, each on a node that dies with it."""
    return pytest.param(victim, "torch", marks=pytest.mark.live)


def struck(
    system: str, engine: str, *overrides: str, kill: tuple[int, ...],
    at_s: float | None = None,
) -> Served:  # fmt: skip
    """The instances `kill` die at `at_s`, or once five requests have ended."""
    after = 5 if at_s is None else None
    kills = [Kill(instance=number, at_s=at_s, after_requests=after) for number in kill]
    served = serve(system, engine, *overrides, faults=Faults(kill=kills))
    events = [each["fields"] for each in served.recorder.events if each["kind"] == "fault"]
    assert [event["struck"] for event in events] == [True] * len(kill)
    if set(reasons(served)) == {"completed"}:  # else the run may end before a last copy does
        assert_tidy(served)
    return served


def assert_tidy(served: Served) -> None:
    """No living device and no host holds KV of what has ended."""
    for instance in served.cluster.pool:
        assert not instance.host.move_list
        assert instance.host.slabs.allocated_bytes() == 0
        for model in instance.models:
            assert instance.lost or not instance.kv(model).held


def reasons(served: Served) -> Counter[str]:
    """How many requests ended as what: a failed one as what it was told."""
    return Counter(each.error or each.status for each in served.recorder.records.values())


@pytest.mark.parametrize(("victim", "engine"), [(0, "sim"), (3, "sim"), live(3)])
def test_aegaeon_has_others_serve_what_a_dead_instance_had(victim: int, engine: str) -> None:
    served = struck("aegaeon", engine, *FOUR, kill=(victim,))
    assert_all_served(served, engine)


def test_serverlessllm_has_the_other_device_serve_what_the_dead_one_had() -> None:
    assert_all_served(struck("serverlessllm", "sim", *TWO, kill=(1,)), "sim")


def assert_all_served(served: Served, engine: str) -> None:
    assert set(reasons(served)) == {"completed"}
    if engine == "torch":
        requests = [record.request for record in served.recorder.records.values()]
        assert answers(*requests) == plain_tokens(requests, served.parts.models)


@pytest.mark.parametrize(("victim", "engine"), [(0, "sim"), (1, "sim"), live(1)])
def test_aegaeon_fails_what_needs_a_phase_without_an_instance(victim: int, engine: str) -> None:
    found = reasons(struck("aegaeon", engine, *TWO, kill=(victim,), at_s=0.5))
    found.pop("completed", 0)
    assert found
    phase = ("prefill", "decode")[victim]
    assert {told.rsplit(" ", 1)[0] for told in found} == {f"no instance is left to {phase} for"}


@pytest.mark.parametrize("system", [UNIFIED, ("serverlessllm",), ARTIFACT])
def test_with_every_device_dead_each_request_fails_with_a_reason(system: tuple[str, ...]) -> None:
    found = reasons(struck(system[0], "sim", *system[1:], kill=(0, 1, 2, 3)))
    assert found.pop("completed") >= 5
    assert found
    assert all("is lost" in told or "no instance is left" in told for told in found)


@pytest.mark.parametrize("moment", range(0, 20, 3))
@pytest.mark.parametrize(
    "system",
    [("aegaeon",), ("aegaeon", "system.variant=artifact"), UNIFIED, ("serverlessllm",), ARTIFACT],
)
def test_no_moment_of_death_loses_a_request(system: tuple[str, ...], moment: int) -> None:
    """With KV and weights on their way from, to and on a device that dies, over slow links."""
    at_s = 0.1 + 0.09 * moment
    served = struck(system[0], "sim", *system[1:], *SLOW, kill=(moment % 4,), at_s=at_s)
    assert set(reasons(served)) == {"completed"}


@pytest.mark.parametrize(("victim", "at_s"), [(2, 0.968), (2, 0.51), (0, 0.4)])
def test_a_death_before_the_proxy_is_opened_anew_submits_nothing_twice(
    victim: int, at_s: float, tmp_path: Path
) -> None:
    """The proxy's restart is due between the death and its notice 0.1 s later."""
    store = (f"system.store.restart_at_s={at_s + 0.0999}", f"system.store.path={tmp_path / 's.db'}")
    served = struck("aegaeon", "sim", *SLOW, *FOUR, *store, kill=(victim,), at_s=at_s)
    assert set(reasons(served)) == {"completed"}


@pytest.mark.parametrize(("victim", "at_s"), [(2, 0.5), (0, 0.7), (3, 0.7)])
def test_an_instance_may_die_while_a_batch_waits_for_it_to_be_stalled_no_longer(
    victim: int, at_s: float
) -> None:
    faults = Faults(
        kill=[Kill(instance=victim, at_s=at_s)],
        stall=[Stall(instance=victim, at_s=0.3, for_s=0.5)],
    )
    served = serve("aegaeon", "sim", *FOUR, "workload.scale.to_rate_per_s=20", faults=faults)
    assert set(reasons(served)) == {"completed"}
    assert_tidy(served)


def test_what_a_dead_instance_was_to_save_is_left_to_those_who_have_it() -> None:
    """Its turn ended while the request was on its way to it, from an instance that lives."""
    bench = PoolBench("sim", ("narrow", "same"))
    origin, dies = bench.pool
    told: list[set[int]] = []
    dies.on_lost = told.append
    on = Optimisations(
        component_reuse=True, explicit_memory=True, prefetch=False, fine_grained_sync=True
    )

    async def story() -> None:
        request = bench.request("narrow", prompt=60)
        await bench.prefill(origin, request)
        await dies.load("narrow")
        scaler = Scaler(dies, bench.loop, on, prefetch_once=True)
        assert scaler.switch_to("narrow", keep=[request])
        origin.swap_out(request, lambda: None)
        assert scaler.bring_in([request]) is None
        assert not scaler.switch_to("same", keep=[])
        await bench.loop.sleep(0)
        dies._lose(InstanceLost(dies.name, "killed"))
        while not told:
            await bench.loop.sleep(0)
        scaler.forget(request)
        await bench.loop.sleep(5)
        arrived = origin.swap_in(request, lambda: None)
        assert arrived is not None
        assert await bench.loop.wait(arrived, until=bench.loop.now + 3600)
        assert origin.host.slabs.allocated_bytes() == 0

    bench.loop.run(story())


@pytest.mark.parametrize("dies", [True, False])
def test_kv_that_breaks_off_is_computed_again_only_where_its_node_has_died(
    dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = PoolBench("sim", ("narrow", "same"), devices_per_node=1)
    origin, here = bench.pool
    told: list[object] = []
    origin.on_lost, here.on_kv_lost = told.append, told.append

    def breaks_off(copy: KvCopy, on_end: Callable[[bool], None]) -> None:
        async def ends() -> None:
            on_end(False)

        bench.loop.spawn(ends(), name="breaks off")

    monkeypatch.setattr(here, "_device", SimpleNamespace(copy_in=breaks_off))

    async def story() -> None:
        request = bench.request("narrow", prompt=60)
        await bench.prefill(origin, request)
        await bench.loop.wait(origin.swap_out(request, lambda: None))
        arrived = here.swap_in(request, lambda: None)
        assert arrived is not None
        await bench.loop.sleep(3)
        assert not told, "the connection may have broken alone"
        if dies:
            origin._lose(InstanceLost(origin.name, "killed", with_node=True))
        await bench.loop.wait(arrived)
        assert told == [set(), request]
        here.evict(request)

    if dies:
        bench.run(story)
    else:
        with pytest.raises(RunError, match="from node-0 to sim-1 broke off, and no instance of"):
            bench.loop.run(story())
    assert len(bench.events("kv_lost")) == dies


def test_muxserve_fails_the_requests_of_a_model_whose_instance_died() -> None:
    served = struck("muxserve", "sim", kill=(0,), at_s=0.5)
    assert set(reasons(served)) == {"completed", "instance sim-0 is lost: killed"}
    failed = {r.request.model for r in served.recorder.records.values() if r.status == "failed"}
    specs = {served.parts.models[name] for name in failed}
    assert specs == {served.cluster.instances[0].model}, "of one instance's model alone"
