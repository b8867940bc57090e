"""Errors, targets and the headline of a parity report, on numbers done by hand."""

from __future__ import annotations

from typing import Any

import pytest

from harness.fidelity.parity import LATENCIES, RATES, compare, headline, over_passes, verdicts
from harness.fidelity.report import markdown


def summary(factor: float, **changes: Any) -> dict[str, Any]:
    row = {"p50": 0.1 * factor, "p90": 0.2 * factor, "p99": None}
    made: dict[str, Any] = {name: dict(row) for name in LATENCIES}
    made |= dict.fromkeys(RATES, 10.0 * factor)
    return made | {"slo_attainment": {"token": 0.9}} | changes


def rows(load: float, factor: float) -> list[dict[str, Any]]:
    about = {"workload": "dice", "load": load, "valid": True, "pass": 1, "time_scale": 1.25}
    return [about | row for row in compare(summary(1.0), summary(factor))]


def test_errors_are_signed_and_relative_to_the_real_run() -> None:
    by_key = {(r["quantity"], r["statistic"]): r["error"] for r in rows(0.5, 1.2)}
    assert by_key["ttft_s", "p50"] == pytest.approx(20.0)
    assert by_key["ttft_s", "p99"] is None
    assert by_key["goodput_per_s", ""] == pytest.approx(20.0)
    assert by_key["slo_attainment", "token"] == 0.0
    missed = compare(summary(1.0), summary(1.0, slo_attainment={"token": 0.7}))
    assert missed[-1]["error"] == pytest.approx(-0.2)


def test_targets_are_judged_by_the_worst_point_up_to_nine_tenths_of_the_knee() -> None:
    points = [*rows(0.3, 1.05), *rows(0.9, 0.88), *rows(1.3, 3.0)]
    found = {(r["quantity"], r["statistic"]): r for r in verdicts(points, points)}
    tpot = found["tpot_s", "p50"]
    assert tpot["worst"] == pytest.approx(-12.0)
    assert tpot["median"] == pytest.approx(8.5)
    assert not tpot["met"]
    assert tpot["median_at_their_speed"] == pytest.approx(8.5)
    known = [*rows(0.3, 2), *rows(0.9, 2)]
    beside = {(r["quantity"], r["statistic"]): r for r in verdicts(points, known)}
    assert beside["tpot_s", "p50"]["median_at_their_speed"] == pytest.approx(100.0)
    assert beside["tpot_s", "p50"]["median"] == pytest.approx(8.5)
    fewer = verdicts(points, rows(0.3, 2))  # not of the same points
    assert {row["median_at_their_speed"] for row in fewer} == {None}
    assert found["ttft_s", "p50"]["met"]
    assert tpot["spread"] is None


def test_passes_of_a_point_give_their_median_and_how_far_real_runs_are_apart() -> None:
    about = {"workload": "dice", "load": 0.9, "valid": True}
    passes = [
        about | row
        for real, simulated in ((1.0, 1.05), (1.4, 0.7), (0.9, 0.99))
        for row in compare(summary(real), summary(simulated))
    ]
    points = over_passes(passes)
    assert len(points) == len(passes) / 3
    (ttft,) = (r for r in points if (r["quantity"], r["statistic"]) == ("ttft_s", "p50"))
    assert ttft["real"] == pytest.approx(0.1)
    assert ttft["simulated"] == pytest.approx(0.099)
    assert ttft["error"] == pytest.approx(-1.0)
    assert ttft["spread"] == pytest.approx(50.0)
    (found,) = (
        r for r in verdicts(passes, passes) if (r["quantity"], r["statistic"]) == ("ttft_s", "p50")
    )
    assert found["spread"] == pytest.approx(50.0)
    assert found["met"]
    assert found["worst_pass"] == pytest.approx(-50.0)  # told beside the median that hides it
    (nothing,) = (r for r in points if (r["quantity"], r["statistic"]) == ("ttft_s", "p99"))
    assert nothing["error"] is None


def test_a_target_is_not_met_by_points_that_are_missing() -> None:
    late = [row | {"valid": False} for row in rows(0.6, 1.0)]
    passes = [*rows(0.3, 1.0), *late]
    points = over_passes(passes)
    found = {(r["quantity"], r["statistic"]): r for r in verdicts(passes, passes)}
    assert found["ttft_s", "p50"]["worst"] == pytest.approx(0.0)
    assert not found["ttft_s", "p50"]["met"]
    assert {r["error"] for r in points if r["load"] == 0.6} == {None}
    kept = over_passes([*rows(0.3, 1.0), *late, *rows(0.6, 1.1)])
    (ttft,) = (
        r for r in kept if (r["load"], r["quantity"], r["statistic"]) == (0.6, "ttft_s", "p50")
    )
    assert ttft["error"] == pytest.approx(10.0)


def test_the_headline_says_where_it_holds_and_the_page_shows_every_cell() -> None:
    passes = [*rows(0.3, 1.05), *rows(0.6, 0.7), *rows(1.3, 3.0)]
    everything, targets = over_passes(passes), verdicts(passes, passes)
    line = headline(targets, "torch", "cpu (local)")
    assert "engine=torch on cpu (local)" in line
    assert "TTFT P50 18 % (-30 %)" in line
    assert "SLO token 0.00 (+0.00)" in line
    beyond = verdicts(rows(1.3, 3.0), [])
    assert headline(beyond, "torch", "cpu").endswith("median (worst): not measured")
    page = markdown(
        {
            "engine": "torch",
            "model": "tiny",
            "machine": {"cpu": "C", "num_cores": 2},
            "date_utc": "today",
            "num_requests": 9,
            "setting": {"length_scale": 0.25},
            "num_passes": 1,
            "real_runs_kept": False,
            "synthetic": {"burstgpt": ["arrivals drawn"]},
            "passes": rows(0.3, 1.05),
            "knees_per_s": {"dice": 3.0},
            "targets": targets,
            "invalid": ["dice: late"],
            "rows": everything,
        }
    )
    for cell in ("100 ms → 105 ms (+5.0 %)", "100 ms → 70.0 ms (-30.0 %)"):
        assert cell in page
    assert "- dice: late" in page
    assert "| times | 1.25 |  |  |" in page
    assert "| goodput_per_s | 10 → 10.5 (+5.0 %) | 10 → 7 (-30.0 %) | 10 → 30 (+200.0 %) |" in page
