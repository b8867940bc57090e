"""The client's benchmark: its golden server keeps the times that it was asked for, and its verdicts
on rows are those of the goal."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmarks.bench_client import (
    GAP_S,
    POINTS,
    SLOW_GAP_S,
    SLOW_TOKENS,
    SOURCE,
    STORM_S,
    TTFT_S,
    Point,
    judged,
    measured,
)

pytestmark = [pytest.mark.live, pytest.mark.alone]


@pytest.mark.parametrize("point", [Point("spread", 16), Point("storm", 16)])
def test_a_point_has_the_servers_truth_beside_the_clients_report(
    tmp_path: Path, point: Point
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the golden server in C cannot be built")
    binary = tmp_path / "golden_server"
    subprocess.run([compiler, "-O2", "-Wall", "-o", str(binary), str(SOURCE)], check=True)
    row = measured(point, binary, tmp_path)
    assert row["num_completed"] == row["num_requests"] == len(point.arrivals_s())
    assert row["true_ttft_p99_ms"] >= TTFT_S * 1e3
    assert row["true_tbt_p99_ms"] >= GAP_S * 1e3
    # A busy machine makes both late; the client never reports a token before it was written.
    assert row["ttft_p99_ms"] >= row["true_ttft_p99_ms"]
    assert row["verdict"] == ("INVALID" if row["reasons"] else "VALID")
    assert {"p99", "tokens_p99", "with_send_p99"} <= row["receive_lag"].keys()


def row(load: str, level: int, off_ms: float, verdict: str = "VALID") -> dict[str, Any]:
    return {
        "load": load, "level": level, "off_ms": off_ms, "verdict": verdict, "true_tbt_p99_ms": 20.4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (row("spread", 256, 1.9), "within goal"),
        (row("spread", 256, 2.1), "beyond goal"),
        (row("rate", 200, 2.1), "beyond goal"),
        (row("step", 512, 9.0, "INVALID"), "within goal"),
        (row("step", 512, 5.1), "FALSELY VALID"),
        (row("rate", 400, 11.0, "INVALID"), "beyond goal"),
        (row("storm", 1024, 90.0, "INVALID"), "within goal"),
        (row("storm", 1024, 5.1), "FALSELY VALID"),
    ],
)
def test_a_row_is_held_to_the_goal_of_its_load(case: dict[str, Any], says: str) -> None:
    assert judged(case) == says


def test_a_point_whose_server_was_late_measures_nothing() -> None:
    late = row("spread", 16, 0.1) | {"true_tbt_p99_ms": 26.0}
    assert judged(late) == "no measurement: server late"


def test_every_load_is_a_schedule_in_order_that_ends_in_time() -> None:
    for point in POINTS:
        arrivals_s = point.arrivals_s()
        assert arrivals_s[0] == 0.0
        assert (np.diff(arrivals_s) >= 0).all()
        assert arrivals_s[-1] < (SLOW_TOKENS * SLOW_GAP_S if point.load == "slow" else STORM_S + 1)
