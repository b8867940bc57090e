"""Every number of summary.json against a case small enough to compute by hand."""

from __future__ import annotations

import json

import pytest

from tests.unit.metrics.service import Service, steady


def test_latencies_of_one_request_are_those_of_its_token_times() -> None:
    service = Service((10.0, 4))
    service.complete(0, 10.5, 10.6, 10.8, 11.1, lag_s=0.2)
    summary = service.summary()
    means = {
        key: row["mean"]
        for key, row in summary.items()
        if "num_samples" in (row if isinstance(row, dict) else ())
    }
    assert means == pytest.approx(
        {
            "ttft_s": 0.5,
            "tpot_s": 0.2,
            "tbt_s": 0.2,
            "e2e_s": 1.1,
            "tpot_incl_first_s": 1.1 / 4,
            "itl_chunk_s": 0.2,
            "ttft_sent_anchored_s": 0.3,
            "e2e_sent_anchored_s": 0.9,
            "send_lag_s": 0.2,
        }
    )
    assert summary["duration_s"] == pytest.approx(1.1)
    assert summary["request_throughput_per_s"] == pytest.approx(1 / 1.1)
    assert summary["output_throughput_tokens_per_s"] == pytest.approx(4 / 1.1)
    assert summary["gpu_seconds"] == pytest.approx(2.2)
    assert service.summary(num_devices=None)["gpu_seconds"] is None, "an endpoint's are unknown"


def test_tokens_of_a_chunk_share_their_time() -> None:
    service = Service((0.0, 12))
    service.send(0)
    service.chunks(0, 4, 1.0, 1.4, 1.8)
    service.recorder.completed(service.requests[0])
    summary = service.summary()
    assert summary["tbt_s"]["num_samples"] == 11
    assert summary["tbt_s"]["mean"] == pytest.approx(0.8 / 11)
    assert summary["itl_chunk_s"]["num_samples"] == 2
    assert summary["itl_chunk_s"]["mean"] == pytest.approx(0.4)
    assert summary["tpot_s"]["mean"] == pytest.approx(0.8 / 11)


def test_gaps_do_not_reach_from_one_request_to_the_next() -> None:
    service = Service((0.0, 2), (0.0, 1), (100.0, 2))
    service.complete(0, 1.0, 1.5)
    service.complete(1, 50.0)
    service.complete(2, 101.0, 101.5)
    assert service.summary()["tbt_s"] | {"p50": 0} == pytest.approx(
        {
            "num_samples": 2,
            "mean": 0.5,
            "p50": 0,
            "p90": None,
            "p95": None,
            "p99": None,
            "p99.9": None,
        }
    )


def test_one_token_output_has_no_tpot() -> None:
    service = Service((0.0, 1))
    service.complete(0, 0.5)
    summary = service.summary()
    assert summary["tpot_s"]["mean"] is None
    assert summary["tpot_s"]["num_samples"] == 0
    assert summary["slo_attainment"] == {"token": 1.0, "time": 1.0, "request": 1.0}


def test_failures_and_timeouts_are_in_every_denominator() -> None:
    service = Service((0.0, 2), (0.0, 2), (0.0, 2), (0.0, 2))
    service.complete(0, 0.5, 0.6)
    for i in (1, 2, 3):
        service.send(i)
    service.tokens(2, 0.5)
    service.fail(1)
    service.fail(2, "the connection broke")
    service.fail(3, "no answer for 600 s", timeout=True)
    summary = service.summary()
    assert summary["num_completed"] == 1
    assert summary["num_failed"] == 3
    assert summary["num_timeouts"] == 1
    # The token that came before the connection broke was in time, and is one of eight.
    assert summary["slo_attainment"] == {"token": 3 / 8, "time": 1 / 4, "request": 1 / 4}
    assert summary["goodput_per_s"] == pytest.approx(1 / 0.6)
    assert summary["ttft_s"]["num_samples"] == 2
    assert summary["e2e_s"]["num_samples"] == 1
    assert summary["errors"]["the connection broke"] == 1
    assert summary["verdict"]["status"] == "VALID"
    assert summary["verdict"]["notes"] == [
        "75% of the requests failed: latencies are of the others"
    ]


def test_nothing_served_has_no_latencies_and_attains_nothing() -> None:
    service = Service((0.0, 5))
    service.send(0)
    service.fail(0)
    summary = service.summary()
    assert summary["duration_s"] == 0
    assert summary["request_throughput_per_s"] is None
    assert summary["goodput_per_s"] is None
    assert summary["ttft_s"]["mean"] is None
    assert summary["slo_attainment"] == {"token": 0.0, "time": 0.0, "request": 0.0}


def test_goodput_counts_requests_within_both_limits() -> None:
    service = Service((0.0, 3), (0.0, 3), (0.0, 3))
    service.complete(0, 1.0, 1.1, 1.2)  # on both limits exactly
    service.complete(1, 1.1, 1.15, 1.2)  # first token late
    service.complete(2, 0.5, 0.6, 2.0)  # mean TBT 0.75 s
    summary = service.summary(ttft_s=1.0, tbt_s=0.1)
    assert summary["slo_attainment"]["request"] == pytest.approx(1 / 3)
    assert summary["goodput_per_s"] == pytest.approx(1 / 2.0)
    assert summary["goodput_per_s"] <= summary["request_throughput_per_s"]


def test_rates_are_asked_from_arrivals_and_achieved_from_sends() -> None:
    service = Service((0.0, 1), (1.0, 1), (2.0, 1))
    for i, lag_s in enumerate((0.0, 0.5, 2.0)):
        service.complete(i, 9.0, lag_s=lag_s)
    summary = service.summary()
    assert summary["asked_rate_per_s"] == pytest.approx(1.0)
    assert summary["achieved_rate_per_s"] == pytest.approx(0.5)


def test_a_small_sample_has_a_mean_and_no_percentile() -> None:
    row = steady(10).summary()["ttft_s"]
    assert row["mean"] > 0
    assert [row[p] for p in ("p50", "p90", "p95", "p99", "p99.9")] == [None] * 5


def test_summary_is_json_without_nan() -> None:
    assert json.loads(json.dumps(steady(12).summary(), allow_nan=False))["num_requests"] == 12


def test_each_model_has_its_own_numbers_the_most_requested_first() -> None:
    service = Service((0.0, 2), (0.0, 3), (0.0, 2))
    service.requests[0].model = "rare"
    service.complete(0, 0.5, 0.55)
    service.complete(1, 0.5, 0.6, 5.0)
    service.send(2)
    service.fail(2)
    models = service.summary(goodput="ttft:900 rare/tbt_max:90")["models"]
    assert list(models) == ["m", "rare"]
    rare, m = models["rare"], models["m"]
    assert rare["slo_attainment"] == {"token": 1.0, "time": 1.0, "request": 1.0}
    assert (m["num_requests"], rare["num_requests"]) == (2, 1)
    assert m["slo_attainment"]["token"] == 2 / 5
    assert m["slo_attainment"]["request"] == 1 / 2
    assert (m["slo"], rare["slo"]) == ({"ttft_s": 0.9}, {"ttft_s": 0.9, "tbt_max_s": 0.09})
    means = {key: (m[key]["mean"], rare[key]["mean"]) for key in ("ttft_s", "tbt_s", "e2e_s")}
    assert means["ttft_s"] == (0.5, 0.5)
    assert means["tbt_s"] == pytest.approx((4.5 / 2, 0.05))
    assert means["e2e_s"] == (5.0, 0.55)
    assert m["goodput_per_s"] == rare["goodput_per_s"] == 1 / 5


def test_one_model_has_no_numbers_of_its_own() -> None:
    assert steady(4).summary()["models"]["m"].keys() == {"num_requests", "slo_attainment"}


def test_the_numbers_of_all_are_those_of_the_models_together() -> None:
    service = steady(40)
    for i, request in enumerate(service.requests):
        request.model = f"m{i % 3}"
    summary = service.summary(ttft_s=0.2, tbt_s=0.02)
    models = summary["models"].values()
    for kind in ("token", "time", "request"):  # all requests ask for as many tokens
        weighted = sum(row["num_requests"] * row["slo_attainment"][kind] for row in models)
        assert weighted / 40 == pytest.approx(summary["slo_attainment"][kind])
    assert sum(row["goodput_per_s"] for row in models) == pytest.approx(summary["goodput_per_s"])
    for name in ("ttft_s", "tpot_s", "tbt_s", "e2e_s"):
        sums = [row[name]["num_samples"] * row[name]["mean"] for row in models]
        assert sum(sums) / summary[name]["num_samples"] == pytest.approx(summary[name]["mean"])


def test_switches_and_busy_shares_come_from_device_events() -> None:
    service = Service((0.0, 1))
    service.complete(0, 10.0)
    event = service.recorder.event
    event("load", "gpu0", 0.0, 1.0, model="a")
    event("switch", "gpu0", 0.0, 1.5, model="a", before=None, hidden=False)
    event("run", "gpu0", 1.5, 3.5, model="a")
    event("adopt", "gpu0", 3.5, 3.6, model="b")
    event("switch", "gpu0", 3.5, 4.0, model="b", before="a", hidden=True)
    event("run", "gpu1", 0.0, 5.0, model="c")
    summary = service.summary()
    assert summary["switches"]["count"] == 2
    assert summary["switches"]["latency_s"]["mean"] == pytest.approx(1.0)
    assert summary["switches"]["hidden_share"] == 0.5
    assert summary["busy_share"] == {
        "mean": pytest.approx(0.35),
        "instances": pytest.approx({"gpu0": 0.2, "gpu1": 0.5}),
    }


def test_waits_for_room_in_a_host_are_counted_and_noted_and_the_run_is_valid() -> None:
    service = steady(12)
    for node, start_s, end_s in ((0, 1.0, 3.0), (0, 2.0, 2.5), (0, 2.5, 4.0), (0, 8.0, 9.0),
                                 (1, 0.5, 0.75)):  # fmt: skip
        service.recorder.event("host_full", f"node-{node}", start_s, end_s, host_kv_bytes=64)
    summary = service.summary()
    assert summary["host_full"] == {
        "node-0": {"num_waits": 4, "seconds": pytest.approx(4.0), "host_kv_bytes": 64},
        "node-1": {"num_waits": 1, "seconds": 0.25, "host_kv_bytes": 64},
    }
    assert summary["verdict"]["status"] == "VALID"
    first, second = summary["verdict"]["notes"]
    assert first.startswith("host KV cache full for 4 s on node-0 (4 waits")
    assert "full for 0.25 s on node-1" in second
    assert "engine.pool.host_kv_bytes=64" in second


@pytest.mark.parametrize(("behind_s", "noted"), [(0.05, False), (0.6, True)])
def test_a_run_that_could_not_hold_its_pace_says_so(behind_s: float, noted: bool) -> None:
    service = steady(12)
    for part in (0.0, behind_s):
        service.recorder.event("pace", "torch-0", 1.0, 2.0, paced_s=0.5, behind_s=part)
    summary = service.summary()
    assert summary["pace"] == {"behind_s": behind_s, "paced_s": 1.0}
    assert summary["verdict"]["status"] == "VALID"
    notes = summary["verdict"].get("notes", [])
    assert [note.startswith("iterations took 60% longer than their pace") for note in notes] == (
        [True] if noted else []
    )


def test_a_run_without_device_events_says_nothing_of_switches() -> None:
    summary = steady(12).summary()
    assert "host_full" not in summary
    assert "switches" not in summary
    assert "busy_share" not in summary
