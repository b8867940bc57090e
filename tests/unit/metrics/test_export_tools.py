"""Files for GuideLLM, inference-perf, llm-d and AIPerf: the keys that their schemas
require, and their own loaders where they are installed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from harness.exporting.__main__ import main
from tests.unit.metrics.service import Service, write_run

SUMMARY = {"mean", "min", "max", "p0.1", "p1", "p5", "p10", "p25", "median", "p75", "p90", "p95",
           "p99", "p99.9"}  # fmt: skip
STATISTICS = {"units", "mean", "stddev", "min", "max", "p0p1", "p1", "p5", "p10", "p25", "p50",
              "p75", "p90", "p95", "p99", "p99p9"}  # fmt: skip
REQUIRED = {
    # guidellm/benchmark/schemas of 0.8.1: the fields without a default
    "guidellm": {
        "": {"config", "metadata", "benchmarks"},
        "benchmarks.0": {"config", "scheduler_state", "scheduler_metrics", "metrics", "requests"},
        "benchmarks.0.config": {"run_id", "run_index", "strategy", "constraints", "profile",
                                "requests", "backend", "environment"},
        "benchmarks.0.metrics": {"request_totals", "requests_per_second", "request_latency",
                                 "time_to_first_token_ms", "inter_token_latency_ms", "text",
                                 "time_per_output_token_ms", "tool_call"},
        "benchmarks.0.metrics.request_latency.successful": {
            "mean", "median", "mode", "variance", "std_dev", "min", "max", "count", "total_sum",
            "percentiles"},
        "benchmarks.0.requests.successful.0": {"request_id", "info", "input_metrics",
                                               "output_metrics"},
    },
    # inference_perf/reportgen/base.py of 0.7: ResponsesSummary
    "inference-perf": {
        "": {"benchmark_time_seconds", "load_summary", "successes", "failures"},
        "load_summary": {"count", "schedule_delay", "send_duration", "requested_rate",
                         "achieved_rate"},
        "successes": {"count", "latency", "throughput", "prompt_tokens", "output_len"},
        "successes.latency.time_to_first_token": SUMMARY,
        "failures": {"count", "request_latency", "by_label"},
    },
    "inference-perf-requests": {
        "0": {"start_time", "end_time", "info", "error"},
        "0.info.response_metrics": {"output_tokens", "output_token_times", "server_usage"},
    },
    # aiperf/common/models/record_models.py of 0.13: MetricRecordInfo
    "aiperf-records": {
        "0": {"metadata", "metrics", "error"},
        "0.metadata": {"session_num", "request_start_ns", "request_end_ns", "worker_id",
                       "record_processor_id", "benchmark_phase"},
        "0.metrics.inter_chunk_latency": {"value", "unit"},
    },
}  # fmt: skip
# llm-d-benchmark's schema_v0_2_1.py refuses every other field.
LLM_D = {
    "": {"version", "run", "results"},
    "run": {"uid", "eid", "description", "time"},
    "run.time": {"start", "end", "duration"},
    "results.request_performance.aggregate": {"requests", "throughput", "latency"},
    "results.request_performance.aggregate.requests": {
        "total", "failures", "input_length", "output_length"},
    "results.request_performance.aggregate.throughput": {
        "input_token_rate", "output_token_rate", "total_token_rate", "request_rate"},
    "results.request_performance.aggregate.latency": {
        "time_to_first_token", "request_latency", "time_per_output_token",
        "normalized_time_per_output_token", "inter_token_latency"},
    "results.request_performance.aggregate.latency.request_latency": STATISTICS,
}  # fmt: skip


def odd() -> Service:
    """Sent late, chunks of two tokens, an answer of one token, a failure after a token, one before
    any, and a request that was never sent."""
    service = Service((0.0, 3), (1.0, 2), (1.5, 4), (1.6, 1), (1.7, 5), (1.8, 5))
    service.complete(0, 0.5, 0.5, 0.9, lag_s=0.25)
    service.send(1)
    service.chunks(1, 2, 1.25)
    service.recorder.completed(service.requests[1])
    service.send(2)
    service.tokens(2, 3.5)
    service.fail(2, "gone")
    service.complete(3, 1.9)
    service.send(4)
    service.fail(4, "HTTP 500")
    return service


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    folder = write_run(tmp_path, odd())
    found = {}
    for to in [*REQUIRED, "llm-d", "aiperf"]:
        assert main([str(folder), "--to", to]) == 0
        lines = folder / f"{to}.jsonl"
        if lines.is_file():
            found[to] = [json.loads(line) for line in lines.read_text().splitlines()]
        else:
            found[to] = json.loads((folder / f"{to}.json").read_text())
    return found


def at(content: Any, path: str) -> Any:
    for key in filter(None, path.split(".")):
        content = content[int(key) if isinstance(content, list) else key]
    return content


def test_each_file_has_what_its_tools_schema_requires(files: dict[str, Any]) -> None:
    for to, places in REQUIRED.items():
        for path, keys in places.items():
            assert keys <= at(files[to], path).keys(), (to, path)
    for path, keys in LLM_D.items():
        assert at(files["llm-d"], path).keys() == keys, path


def test_tools_numbers_by_hand(files: dict[str, Any]) -> None:
    """Three of the five that were sent are answered: with 3, 2 and 1 tokens."""
    perf = files["inference-perf"]
    assert (perf["load_summary"]["count"], perf["failures"]["count"]) == (5, 2)
    latency = perf["successes"]["latency"]
    assert latency["time_to_first_token"]["mean"] == pytest.approx(0.25)  # not of one token
    assert latency["inter_token_latency"]["mean"] == pytest.approx((0 + 0.4 + 0) / 3)
    assert latency["request_latency"]["max"] == pytest.approx(0.65)
    assert perf["successes"]["throughput"]["output_tokens_per_sec"] == pytest.approx(6 / 3.25)
    report = at(files["llm-d"], "results.request_performance.aggregate")
    assert report["latency"]["time_per_output_token"]["mean"] == pytest.approx((0.2 + 0) / 2)
    assert report["throughput"]["request_rate"] == {
        "units": "queries/s", "mean": pytest.approx(3 / 3.25),
    }  # fmt: skip
    guide = at(files["guidellm"], "benchmarks.0")
    assert guide["metrics"]["request_totals"] == {
        "successful": 3, "errored": 2, "incomplete": 1, "total": 6,
    }  # fmt: skip
    itl = guide["metrics"]["inter_token_latency_ms"]["successful"]
    assert (itl["mean"], itl["count"]) == (pytest.approx(400 / 3), 3)
    assert itl["median"] == pytest.approx(200.0)  # the smallest that reaches half of the tokens
    assert len(files["aiperf-records"]) == len(files["inference-perf-requests"]) == 5
    assert files["aiperf-records"][0]["metrics"]["inter_chunk_latency"]["value"] == [0.0, 400.0]


def test_each_file_says_that_it_is_simulated(files: dict[str, Any]) -> None:
    assert files["guidellm"]["simulated"] is files["inference-perf"]["simulated"] is True
    assert files["llm-d"]["run"]["description"].startswith("SIMULATED")
    assert at(files["inference-perf-requests"], "0.info.labels.simulated") == "True"


def test_aiperf_loads_its_files_and_finds_the_same_latencies(files: dict[str, Any]) -> None:
    models = pytest.importorskip("aiperf.common.models", reason="AIPerf not installed")
    found = [models.MetricRecordInfo.model_validate(line) for line in files["aiperf-records"]]
    ttft_ms = [one.metrics["time_to_first_token"].value for one in found if one.error is None]
    whole = models.JsonExportData.model_validate(files["aiperf"])
    assert whole.time_to_first_token.avg == pytest.approx(sum(ttft_ms) / len(ttft_ms))
    assert (len(ttft_ms), whole.request_count.avg, whole.error_request_count.avg) == (3, 3, 2)


def test_guidellm_loads_its_file_and_finds_the_same_latencies(files: dict[str, Any]) -> None:
    schemas = pytest.importorskip("guidellm.benchmark.schemas", reason="GuideLLM not installed")
    (found,) = schemas.GenerativeBenchmarksReport.model_validate(files["guidellm"]).benchmarks
    mean = found.metrics.time_to_first_token_ms.successful.mean
    theirs = [one.time_to_first_token_ms for one in found.requests.successful]
    assert mean == pytest.approx(sum(theirs) / len(theirs))


def test_inference_perf_validates_its_files_and_llm_ds(files: dict[str, Any]) -> None:
    checks = pytest.importorskip(
        "inference_perf.reportgen.validation", reason="inference-perf not installed"
    )
    schema = importlib.import_module("inference_perf.reportgen.br.v0_2.schema")
    report = importlib.import_module("inference_perf.utils").ReportFile
    schema.BenchmarkReportV021.model_validate(files["llm-d"])
    reports = [
        report(name="summary_lifecycle_metrics", contents=files["inference-perf"]),
        report(name="per_request_lifecycle_metrics", contents=files["inference-perf-requests"]),
    ]
    found = checks.run_validators(checks.default_validators(), reports)
    assert found.all_errors() == []
