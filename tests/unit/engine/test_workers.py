"""How many workers a run has, and what outlives the restart of one. Without workers."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.clock import WallLoop
from harness.engine import workers as live
from harness.engine.clock_offset import ClockOffset
from harness.engine.engine import about
from harness.engine.workers import Workers, num_workers
from harness.placement import Placement
from tests.unit.engine.serving import SPEC

ONE, TWO = replace(SPEC, name="one"), replace(SPEC, name="two", tp=2)


def asked(run_dir: Path, *placements: Placement) -> Any:
    """An experiment of which only this is looked at."""
    return SimpleNamespace(
        models={"one": ONE, "two": TWO}, placements=placements, run_dir=run_dir, seed=0,
        hardware=SimpleNamespace(devices_per_node=4), loop=WallLoop(),
    )  # fmt: skip


def test_devices_that_a_model_leaves_idle_have_no_worker(tmp_path: Path) -> None:
    """All instances have room for the model with the most ranks."""
    of = [Placement(devices=range(2), model="one"), Placement(devices=range(2, 4), model="two")]
    assert num_workers(asked(tmp_path, *of)) == 3
    assert num_workers(asked(tmp_path, Placement(devices=range(1), model=None))) == 1


def test_the_worst_clock_error_outlives_a_restart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Silent:
        def __init__(self, *given: object, stamps: bool) -> None:
            self.clock = ClockOffset()

        def send(self, header: object) -> None:
            pass

    monkeypatch.setattr(live, "WorkerProcess", Silent)
    launcher: Any = SimpleNamespace(start=lambda launch, node: (None, None), one_host=True)
    config: Any = SimpleNamespace(num_threads=1, hang_timeout_s=1.0, step_timeout_s=1.0)
    with ExitStack() as stack:
        placed = asked(tmp_path, Placement(devices=range(1), model="one"))
        workers = Workers(stack, launcher, config, placed)
        workers.start(0, {}).clock.add(0.0, 100.5, 1.0)
        again = workers.start(0, {})
        assert workers.clocks() == [{"offset_s": 0.0, "error_s": 0.5}]
        again.clock.add(0.0, 100.05, 0.1)
        assert workers.clocks()[0]["error_s"] == 0.5


def test_an_instance_has_the_kv_that_all_its_ranks_have_room_for() -> None:
    rank = {"device": "cpu", "num_threads": 1, "weights_bytes": 1, "kv_bytes": 60}
    found = about(TWO, 10, rank | {"num_kv_blocks": 12})
    assert (found["num_kv_blocks"], found["kv_bytes"]) == (10, 50)


@pytest.mark.parametrize(
    ("one_host", "told"),
    [(True, [(0, 4), (1, 4), (2, 4)]), (False, [(0, 3), (2, 3), (4, 1)])],
)
def test_workers_share_the_gpus_of_their_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one_host: bool, told: list[tuple[int, int]]
) -> None:
    """A node's are seen by its own workers alone, which take them by their place there."""
    sent: list[tuple[int, int]] = []

    class Silent:
        def __init__(self, *given: object, stamps: bool) -> None:
            self.clock = ClockOffset()

        def send(self, header: dict[str, Any]) -> None:
            sent.append((header["index"], header["num_workers"]))

    monkeypatch.setattr(live, "WorkerProcess", Silent)
    launcher: Any = SimpleNamespace(start=lambda launch, node: (None, None), one_host=one_host)
    config: Any = SimpleNamespace(num_threads=1, hang_timeout_s=1.0, step_timeout_s=1.0)
    places = {range(2): "two", range(2, 3): "one", range(4, 5): "one"}  # nodes of four devices
    placements = [Placement(devices=devices, model=model) for devices, model in places.items()]
    with ExitStack() as stack:
        workers = Workers(stack, launcher, config, asked(tmp_path, *placements))
        for index in range(3):
            workers.start(index, {})
    assert sent == told
