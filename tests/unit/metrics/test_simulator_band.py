"""The simulator's band: residuals of parity, and where a real engine may lie."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.records.manifest import PROJECT
from harness.records.run_table import band_line
from harness.records.simulator_band import BELOW, SATURATED, band, bands, coverage, regime
from harness.records.simulator_error import PARITY
from tests.unit.metrics.service import steady

STEADY = {"steady": {"backlog": [3.0, 2.0, 3.0, 2.0, 3.0]}}
OVERLOADED = {"steady": {"backlog": [2.0, 4.0, 6.0, 8.0, 10.0]}}


def manifest(
    device: str = "cpu", hardware: str = "local", source: str = "measured", **engine: Any
) -> dict[str, Any]:
    return {
        "simulated": True,
        "hardware": {"device": device, "name": hardware},
        "engine": {"step_times": {"m": source}, **engine},
    }


def errors(report: str, name: str, *, saturated: bool) -> list[float]:
    rows = json.loads((PARITY / report).read_text())["rows"]
    return sorted(
        row["error"]
        for row in rows
        if f"{row['quantity']}.{row['statistic']}" == name
        and (row["load"] >= 1) == saturated
        and row["error"] is not None
    )


def test_few_points_give_their_range_and_many_leave_out_five_percent_at_each_end() -> None:
    assert band([0.1, -0.2, 0.0, 0.3]) is None
    few = band([0.1, -0.2, 0.0, 0.3, -0.1])
    assert few is not None
    assert (few.low, few.high, few.coverage) == (-0.2, 0.3, pytest.approx(4 / 6))
    many = band([float(i) for i in range(39)])
    assert many is not None
    assert (many.low, many.high, many.coverage) == (1.0, 37.0, pytest.approx(0.9))


def test_a_real_value_is_the_simulated_one_without_its_error() -> None:
    times = band([-0.2, -0.1, 0.0, 0.1, 0.25])
    shares = band([-0.2, -0.1, 0.0, 0.1, 0.3], absolute=True)
    assert times is not None
    assert shares is not None
    assert times.real(10.0) == pytest.approx((8.0, 12.5))
    assert shares.real(0.5) == pytest.approx((0.2, 0.7))
    assert shares.real(0.9) == pytest.approx((0.6, 1.0))


def test_a_run_is_saturated_where_its_backlog_grew_to_the_end() -> None:
    assert regime(STEADY) == BELOW
    assert regime(OVERLOADED) == regime({"steady": {"backlog": []}}) == SATURATED


def test_a_band_spans_the_residuals_of_its_device_engine_and_load() -> None:
    for hardware, report, summary in (
        ("local", "parity.json", STEADY),
        ("local", "parity.json", OVERLOADED),
        ("local_vllm", "vllm/parity.json", STEADY),
    ):
        found = bands(manifest(hardware=hardware), summary)
        for name in ("ttft_s.p50", "tpot_s.p90"):
            own = errors(report, name, saturated=summary is OVERLOADED)
            ends = found[name].low * 100, found[name].high * 100
            assert ends == pytest.approx((own[0], own[-1]))
            assert found[name].num_points == len(own)
    own = errors("parity.json", "slo_attainment.token", saturated=False)
    tokens = bands(manifest(), STEADY)["slo_attainment.token"]
    assert (tokens.low, tokens.high) == (own[0], own[-1])


def test_a_band_of_other_workloads_does_not_cover_what_it_promises() -> None:
    assert coverage(manifest(), STEADY) == (72, 135)
    assert coverage(manifest(hardware="local_vllm"), STEADY) == (74, 116)
    assert coverage(manifest(), OVERLOADED) == (0, 0), "four points are no band"
    assert coverage(manifest(elastic=True), STEADY) == (0, 0)


def test_a_gpu_has_a_band_of_means_under_the_profile_that_was_checked() -> None:
    gpu = manifest("H100-SXM5-80GB", "h100x1", "kernel profiles", profile="vllm_v1")
    own = json.loads((PARITY / "gpu" / "errors.json").read_text())["H100-SXM5-80GB"]["vllm_v1"]
    found = bands(gpu, STEADY)
    assert sorted(found) == ["e2e_s.mean", "tpot_s.mean", "ttft_s.mean"]
    points = own["ttft"]["errors_pct"][BELOW]
    assert found["ttft_s.mean"].num_points == len(points) > 20
    assert found["ttft_s.mean"].high == pytest.approx(max(points) / 100)
    assert found["ttft_s.mean"].high > bands(gpu, OVERLOADED)["ttft_s.mean"].high


@pytest.mark.parametrize(
    "of",
    [
        manifest("H100-SXM5-80GB", "h100x1", profile="eager_2024"),
        manifest("A100-SXM4-80GB", "a100x1", profile="vllm_v1"),  # two points
        manifest(source="device law"),
        manifest(elastic=True),
        manifest() | {"simulated": False},
        manifest(pool={"num_models": 2}),
        manifest() | {"closed_loop": 8},
        manifest() | {"sessions": 3},
    ],
)
def test_without_parity_points_there_is_no_band(of: dict[str, Any]) -> None:
    assert bands(of, STEADY) == {}
    assert "no five parity points" in band_line(of, STEADY)


def test_the_table_says_where_a_real_engine_may_lie() -> None:
    summary = steady(200).summary()
    line = band_line(manifest(), summary)
    found = bands(manifest(), summary)["ttft_s.p50"].real(summary["ttft_s"]["p50"])
    assert f"TTFT P50 {found[0] * 1e3:.0f} ms to {found[1] * 1e3:.0f} ms" in line
    machine = json.loads((PARITY / "parity.json").read_text())["machine"]["cpu"]
    assert f"9 parity points below saturation, which cover 80%, on {machine}: TTFT" in line
    page = (PROJECT / "docs" / "simulator.md").read_text()
    assert machine in page
    assert "this CPU" not in page
