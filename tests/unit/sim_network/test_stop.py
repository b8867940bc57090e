"""A transfer that can be stopped, against the same one sent chunk by chunk."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.clock import Event, VirtualLoop
from harness.device.location import dram, hbm
from harness.sim.network import Network
from tests.unit.sim_network.transfers import Send, cluster

FROM, TO = dram(0), hbm(0, 0)
RIVALS = st.lists(
    st.builds(
        Send,
        st.just(FROM),
        st.sampled_from([hbm(0, 0), hbm(0, 1), hbm(0, 2)]),
        num_bytes=st.integers(1, 800),
        start_s=st.integers(0, 40).map(lambda quarter: quarter / 4),
        priority=st.integers(0, 1),
    ),
    max_size=6,
)


def chunk_times(num_bytes: int, chunk_bytes: int, rivals: list[Send]) -> list[float]:
    """When each chunk arrives if nothing stops them."""
    times: list[float] = []
    _play(None, num_bytes, chunk_bytes, rivals, times)
    return times


def stopped(
    stop_s: float, num_bytes: int, chunk_bytes: int, rivals: list[Send]
) -> tuple[bool, float]:
    """Whether it was complete, and when it was over."""
    times: list[float] = []
    complete = _play(stop_s, num_bytes, chunk_bytes, rivals, times)
    return complete, times[-1]


def _play(
    stop_s: float | None, num_bytes: int, chunk_bytes: int, rivals: list[Send], times: list[float]
) -> bool:
    loop = VirtualLoop()
    network, stop = Network(loop, cluster(pcie_bytes_per_s=100.0)), Event(loop)

    async def rival(send: Send) -> None:
        await loop.sleep_until(send.start_s)
        await network.transfer(
            send.src, send.dst, send.num_bytes, stream="other", priority=send.priority
        )

    async def main() -> bool:
        for i, send in enumerate(rivals):
            loop.spawn(rival(send), name=f"rival {i}")
        if stop_s is None:
            for at in range(0, num_bytes, chunk_bytes):
                size = min(chunk_bytes, num_bytes - at)
                await network.transfer(FROM, TO, size, stream="it")
                times.append(loop.now)
            return True
        loop.spawn(stopper(stop_s), name="stopper")
        complete = await network.transfer_until(
            stop, FROM, TO, num_bytes, stream="it", chunk_bytes=chunk_bytes
        )
        times.append(loop.now)
        return complete

    async def stopper(at_s: float) -> None:
        await loop.sleep_until(at_s)
        stop.set()

    complete: bool = loop.run(main())
    return complete


@given(st.integers(1, 2000), st.integers(50, 700), st.floats(0.0, 60.0), RIVALS)
def test_it_ends_with_the_chunk_that_was_under_way(
    num_bytes: int, chunk_bytes: int, stop_s: float, rivals: list[Send]
) -> None:
    ends = chunk_times(num_bytes, chunk_bytes, rivals)
    assume(all(abs(end - stop_s) > 1e-6 for end in ends))
    complete, end_s = stopped(stop_s, num_bytes, chunk_bytes, rivals)
    still_to_come = [end for end in ends if end > stop_s]
    assert complete == (len(still_to_come) <= 1)
    assert end_s == pytest.approx(still_to_come[0] if still_to_come else ends[-1])


@given(st.integers(1, 2000), RIVALS)
def test_never_stopped_it_is_an_ordinary_transfer(num_bytes: int, rivals: list[Send]) -> None:
    complete, end_s = stopped(inf, num_bytes, 10, rivals)
    assert complete
    assert end_s == pytest.approx(chunk_times(num_bytes, num_bytes, rivals)[-1])


def test_a_stop_before_it_begins_lets_one_chunk_through() -> None:
    complete, end_s = stopped(0.0, 1000, 100, [])
    assert not complete
    assert end_s == pytest.approx(1.0)
