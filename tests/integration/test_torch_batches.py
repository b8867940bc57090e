"""engine=torch: tokens and stops. Any chunking on instances gives the tokens of a
plain run: tests/unit/engine/test_tokens.py and tests/contract/test_system.py have that.
`test_torch_engine.py` has how workers start and fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.clock import Event
from tests.integration.test_torch_engine import request, started

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]


def test_a_request_preempted_on_one_instance_goes_on_at_another(tmp_path: Path) -> None:
    alone, moved = request(0, 30, 16), request(0, 30, 16)
    with started(tmp_path / "alone", [alone]) as bench:
        bench.loop.run(bench.serve(alone))
        expected = alone.answer
    with started(tmp_path / "moved", [moved], num_instances=2) as bench:

        async def story() -> None:
            await bench.prefill(moved)
            await bench.decode(moved, until=0.0)
            bench.instances[0].evict(moved)
            await bench.serve(moved, instance=1)

        bench.loop.run(story())
        assert moved.answer == expected


@pytest.mark.parametrize("tp", [1, 2])
def test_a_stop_event_serves_many_executes(tmp_path: Path, tp: int) -> None:
    long = request(0, 20, 900)
    with started(tmp_path, [long], tp=tp) as bench:
        stop = Event(bench.loop)

        async def set_later() -> None:
            await bench.loop.sleep(0.02)
            stop.set()

        async def story() -> list[int]:
            await bench.prefill(long)
            steps = []
            for _ in range(3):
                bench.loop.spawn(set_later(), name="stopper")
                steps.append(await bench.decode(long, stop=stop))
                assert stop.is_set
                stop.clear()
            return steps

        steps = bench.loop.run(story())
    assert all(steps)
    assert long.generated_tokens == 1 + sum(steps) < 900
