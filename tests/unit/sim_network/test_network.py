"""Transfers whose times a hand can work out, on round numbers (see `transfers.NO_LATENCY`)."""

from collections.abc import Sequence

import pytest

from harness import compiled
from harness.clock import VirtualLoop
from harness.device.location import dram, hbm, ssd
from harness.device.topology import Link
from harness.sim import fluid
from harness.sim.fair_share import fair_rates
from harness.sim.network import Network
from tests.unit.sim_network.transfers import Send, cluster, run

A, B, C = hbm(0, 0), hbm(1, 0), hbm(1, 1)


def test_alone_a_transfer_takes_latency_and_bytes_over_bandwidth() -> None:
    topology = cluster(nic_latency_s=0.5)
    assert run(topology, [Send(A, B, 100, start_s=3.0)]) == [3.0 + 0.5 + 100 / 50]


def test_two_share_one_ends_the_other_speeds_up() -> None:
    # Out of A's NIC: 25 B/s each until the first has its 100 bytes at 4 s; then 100 left at 50.
    assert run(cluster(), [Send(A, B, 100), Send(A, C, 200)]) == [4.0, 6.0]


def test_a_late_comer_takes_half_and_gives_it_back() -> None:
    # 100 bytes alone by 2 s; then 25 B/s each; the second's 50 take to 4 s; 50 left: 1 s.
    assert run(cluster(), [Send(A, B, 200), Send(A, C, 50, start_s=2.0)]) == [5.0, 4.0]


@pytest.mark.skipif(compiled.state() == "compiled", reason="counts calls of a compiled function")
def test_rates_of_flows_that_have_met_before_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[object]()

    def counted(flows: Sequence[tuple[int, Sequence[Link]]]) -> list[float]:
        asked.append(flows)
        return fair_rates(flows)

    monkeypatch.setattr(fluid, "fair_rates", counted)
    sends = [Send(A, to, 100, start_s=10.0 * k) for k in range(5) for to in (B, C)]
    assert run(cluster(), sends) == [send.start_s + 4.0 for send in sends]
    assert len(asked) == 3, "each of the two by itself, and both"


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_ends_as_a_flow_begins_or_fails_leaves_the_network_to_the_next(
    fails: bool,
) -> None:
    loop = VirtualLoop()
    network = Network(loop, cluster())

    def over() -> None:
        raise ValueError("at its end")

    async def first() -> None:
        network.send(network.channel(A, C, "kv"), 100, over if fails else lambda: None)
        if fails:
            await loop.sleep(10.0)

    async def second() -> float:
        await network.transfer(A, B, 100, stream="other")
        return loop.now

    if fails:
        with pytest.raises(ValueError, match="at its end") as raised:
            loop.run(first())
        assert any("network" in note for note in raised.value.__notes__)
    else:
        loop.run(first())
    assert loop.run(second()) == (2.0 if fails else 4.0)


def test_gpus_of_a_pcie_switch_share_its_link_to_the_host() -> None:
    host = dram(0)
    alone, other_switch = Send(host, hbm(0, 0), 100), Send(host, hbm(0, 2), 100)
    same_switch = Send(host, hbm(0, 1), 100)
    assert run(cluster(), [alone, other_switch]) == [1.0, 1.0]
    assert run(cluster(), [alone, same_switch]) == [2.0, 2.0]


def test_swapping_in_and_out_at_once_costs_nothing() -> None:
    host, gpu = dram(0), hbm(0, 0)
    assert run(cluster(), [Send(host, gpu, 100), Send(gpu, host, 100)]) == [1.0, 1.0]


def test_leaf_uplinks_are_short_when_all_gpus_leave_the_leaf() -> None:
    # Four NICs of 50 below an uplink of 100: 25 each.
    sends = [Send(hbm(0, d), hbm(1, d), 50) for d in range(4)]
    assert run(cluster(), sends) == [2.0] * 4
    assert run(cluster(leaf_oversubscription=1.0), sends) == [1.0] * 4


def test_loading_a_model_from_ssd_is_bound_by_the_ssd_and_from_dram_by_pcie() -> None:
    assert run(cluster(), [Send(ssd(0), hbm(0, 0), 100)]) == [10.0]
    assert run(cluster(), [Send(dram(0), hbm(0, 0), 100)]) == [1.0]


def test_every_message_of_a_transfer_pays_the_latency() -> None:
    topology = cluster(nvlink_copy_latency_s=0.25)
    src, dst = hbm(0, 0), hbm(0, 1)
    assert run(topology, [Send(src, dst, 1000)]) == [0.25 + 5.0]
    assert run(topology, [Send(src, dst, 1000, chunk_bytes=300)]) == [4 * 0.25 + 5.0]


def test_transfers_between_the_same_places_go_one_after_the_other() -> None:
    topology = cluster(nic_latency_s=1.0)
    sends = [Send(A, B, 100, chunk_bytes=50), Send(A, B, 50, start_s=0.5)]
    assert run(topology, sends) == [4.0, 6.0]


@pytest.mark.parametrize("gpus", [(0, 1), (0, 2), (0, 1, 2, 3)])
def test_a_group_is_served_as_its_gpus_side_by_side(gpus: tuple[int, ...]) -> None:
    """Beside a transfer that shares some of their links, and to the same byte counters."""
    group, others = tuple(hbm(0, gpu) for gpu in gpus), [hbm(0, gpu) for gpu in range(4)]

    def arrivals(striped: bool) -> tuple[float, list[float]]:
        loop, topology = VirtualLoop(), cluster()
        network = Network(loop, topology)

        async def main() -> float:
            beside = [
                loop.spawn(network.transfer(dram(0), gpu, 60, stream="other"), name=str(gpu))
                for gpu in others
            ]
            if striped:
                await network.transfer(dram(0), group, 100)
            else:
                for task in [
                    loop.spawn(network.transfer(dram(0), gpu, 100), name="alone") for gpu in group
                ]:
                    await loop.wait(task.finished)
            ended_s = loop.now
            for task in beside:
                await loop.wait(task.finished)
            return ended_s

        ended_s = loop.run(main())
        links = [link for gpu in others for link in topology.path(dram(0), gpu).links]
        return ended_s, [network.fluid.carried_bytes(link) for link in links]

    together, (ended_s, carried) = arrivals(True), arrivals(False)
    assert together == (pytest.approx(ended_s), pytest.approx(carried))


@pytest.mark.parametrize(("num_bytes", "chunk_bytes"), [(0, None), (-5, None), (10, 0)])
def test_nothing_cannot_be_transferred(num_bytes: int, chunk_bytes: int | None) -> None:
    with pytest.raises(AssertionError):
        run(cluster(), [Send(A, B, num_bytes, chunk_bytes=chunk_bytes)])


def test_the_network_is_quiet_between_transfers_and_works_again() -> None:
    assert run(cluster(), [Send(A, B, 50), Send(A, B, 50, start_s=100.0)]) == [1.0, 101.0]


def test_hundreds_of_transfers_at_once_through_shared_links() -> None:
    # 8 nodes of 8 GPUs, every GPU to its number on the 7 other nodes: each NIC sends 7 x 10 bytes,
    # receives as many, and is never idle.
    topology = cluster(
        num_devices=64, devices_per_node=8, leaf_oversubscription=1.0, devices_per_leaf=8
    )
    rails = [(a, b, d) for a in range(8) for b in range(8) if a != b for d in range(8)]
    arrived = run(topology, [Send(hbm(a, d), hbm(b, d), 10) for a, b, d in rails])
    assert len(arrived) == 448
    assert arrived == pytest.approx([7 * 10 / 50] * 448)
