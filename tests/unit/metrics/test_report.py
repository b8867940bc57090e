from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from harness.records.end_table import end_table, within_error
from harness.records.metrics import over_time
from harness.records.numbers import number, seconds
from harness.records.run_folder import FinishedRun
from harness.records.run_table import captions, origin, simulator, sweep_table
from harness.records.simulator_error import PARITY, not_measured_elastic, simulator_error
from harness.running.progress import ProgressBar, counts
from tests.running import run_here
from tests.unit.metrics.service import Service, steady, write_run


def printed(renderable: object, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_end_table_says_where_its_numbers_come_from(tmp_path: Path) -> None:
    run = FinishedRun.load(write_run(tmp_path, steady(70)))
    text = printed(end_table(run.summary, run.manifest))
    for words in ("SIMULATED", "bench: 2 x TEST-1", "seed 7", "ARRIVALS DRAWN", "VALID"):
        assert words in text
    low, high = map(number, run.summary["intervals_95"]["goodput_per_s"])
    assert f"requests/s (95 %: {low} to {high}) within SLO" in " ".join(text.split())
    assert text.count("n<662") == 3  # P99 of 70 requests; the pooled gaps are 1,330


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ({"synthetic": []}, ""),
        ({"synthetic": ["models drawn"]}, " · MODELS DRAWN"),
        ({"synthetic": ["arrivals drawn", "lengths drawn"]}, " · ARRIVALS DRAWN, LENGTHS DRAWN"),
    ],
)
def test_a_run_says_in_which_ways_its_workload_is_no_recording(
    tmp_path: Path, dataset: dict[str, object], said: str
) -> None:
    manifest = FinishedRun.load(write_run(tmp_path, steady(70))).manifest
    manifest["dataset"] = dataset
    assert origin(manifest).endswith(f"seed 7{said}")


def test_the_end_table_says_which_file_was_read(tmp_path: Path) -> None:
    run = FinishedRun.load(write_run(tmp_path, steady(70)))
    run.manifest["dataset"] |= {"source": "burstgpt", "file": "bundled slice"}
    assert "burstgpt (bundled slice)" in printed(end_table(run.summary, run.manifest))


def test_end_table_shows_why_a_run_is_invalid_and_what_failed(tmp_path: Path) -> None:
    service = Service((0.0, 1), (0.0, 1))
    service.complete(0, 1.0, lag_s=0.5)
    service.send(1)
    service.fail(1, "out of memory [oom]")
    run = FinishedRun.load(write_run(tmp_path, service, engine_name="torch"))
    text = printed(end_table(run.summary, run.manifest))
    assert "INVALID: the client was late" in text
    assert "1 x out of memory [oom]" in text
    assert "engine torch" in text
    assert "SIMULATED" not in text


def test_numbers_within_the_clients_certified_error_are_grey_and_named(tmp_path: Path) -> None:
    run = FinishedRun.load(write_run(tmp_path, steady(70), engine_name="openai"))
    ttft_ms, tbt_ms = (1e3 * run.number(f"{name}.p50") for name in ("ttft_s", "tbt_s"))
    errors = {"ttft_error_ms": 1.01 * ttft_ms, "tbt_error_ms": 0.9 * tbt_ms}
    told = "as large as these (grey): TTFT P50"
    assert told not in printed(end_table(run.summary, run.manifest | {"certificate": errors}))
    run.summary["receive_lag_s"] = {"p99": 0.0}
    for certificate, names in ((errors, True), (None, False), (dict.fromkeys(errors), False)):
        manifest = run.manifest | {"certificate": certificate}
        assert (told in printed(end_table(run.summary, manifest))) is names
    assert within_error(run.summary, run.manifest | {"certificate": errors}) == {"ttft_s": ["p50"]}


def test_the_table_of_models_cuts_neither_names_nor_numbers_in_a_narrow_terminal(
    tmp_path: Path,
) -> None:
    service = steady(40)
    for i, request in enumerate(service.requests):
        request.model = f"model-of-a-long-name-{i % 2}"
    run = FinishedRun.load(write_run(tmp_path, service))
    for row in run.summary["models"].values():  # each as wide as it can be
        row |= {"num_requests": 123_456, "goodput_per_s": 0.0123}
        row["ttft_s"]["mean"] = row["e2e_s"]["mean"] = 0.01234
        row["slo_attainment"] = dict.fromkeys(row["slo_attainment"], 1.0)
    text = printed(end_table(run.summary, run.manifest), width=80)
    table = text.partition("by model:")[2].partition("\nrequests")[0]
    assert "…" not in table
    names = "".join(line[1:11].strip() for line in table.splitlines())
    for name in run.summary["models"]:
        assert name in names
    for words in ("123,456", "12.3 ms", "100.0%", "0.0123"):
        assert table.count(words) >= 2


def test_end_table_shows_models_and_switches_where_instances_are_shared(tmp_path: Path) -> None:
    service = steady(40)
    for i, request in enumerate(service.requests):
        request.model = f"model-{i % 8}"
    for i in range(20):
        service.recorder.event(
            "switch", "gpu0", i, i + 0.5, model="m", before="n", hidden=i % 4 > 0
        )
    service.recorder.event("host_full", "node-1", 0.0, 7.5, host_kv_bytes=9)
    run = FinishedRun.load(write_run(tmp_path, service))
    text = printed(end_table(run.summary, run.manifest))
    assert "host KV cache full for 7.5 s on node-1" in text
    assert text.count("model-") == 6
    own = run.summary["models"]["model-0"]
    (line,) = [line for line in text.splitlines() if "model-0" in line]
    assert seconds(own["ttft_s"]["mean"]) in line
    assert line.split()[-1] == number(own["goodput_per_s"])
    assert "… 2 more" in text
    assert "20; mean 500 ms, P50 500 ms, P90 n<64, P99 n<662, P99.9 n<6636; 75%" in text


def test_sweep_table_has_a_row_for_each_run_within_a_terminal() -> None:
    rows = [(f"workload.rate={rate}", steady(20).summary()) for rate in (1, 2, 4)]
    text = printed(sweep_table(rows, "run", ["SIMULATED"]), width=80)
    assert [line.split()[0] for line in text.splitlines() if "VALID" in line] == [
        "workload.rate=1",
        "workload.rate=2",
        "workload.rate=4",
    ]


def test_a_sweep_says_once_how_wrong_the_simulator_is_now(tmp_path: Path) -> None:
    engines = {"a": "sim", "b": "sim", "c": "torch"}
    manifests = [
        FinishedRun.load(write_run(tmp_path / name, steady(20), engine_name=engine)).manifest
        for name, engine in engines.items()
    ]
    manifests[0]["engine"]["simulator_error"] = "simulator error: what was known when it ran"
    manifests[0]["engine"]["step_times"] = {"b": "device law", "c": "measured"}
    manifests[1]["engine"]["step_times"] = {"a": "measured", "b": "device law"}
    said = captions(manifests)
    device = manifests[0]["hardware"]["device"]
    assert [line.split(" · ")[0] for line in said] == [
        "SIMULATED", "engine torch",
        f"simulator error: not measured for {device} with iteration times by device law and "
        "measurement",
        f"iteration times: {device} measured (a, c); {device} device law (b)",
    ]  # fmt: skip
    assert captions(manifests[2:]) == said[1:2]
    text = printed(sweep_table([("one", steady(20).summary())], "run", said), width=200)
    assert "simulator error" in text


def test_a_device_has_its_own_error_or_none() -> None:
    torch = json.loads((PARITY / "parity.json").read_text())["headline"]
    vllm = json.loads((PARITY / "vllm" / "parity.json").read_text())["headline"]
    assert "on cpu" in torch
    assert simulator_error("cpu", "local", {"measured"}) == torch
    assert simulator_error("cpu", "local_vllm", {"measured"}) == vllm
    assert simulator_error("cpu", "local_x2", {"measured"}) == torch
    for device, source, by in (
        ("cpu", "device law", "device law"), ("RTX-4090", "datasheet", "datasheet"),
        ("A10", "measured", "measurement"),
    ):  # fmt: skip
        said = simulator_error(device, "local", {source})
        assert said == f"simulator error: not measured for {device} with iteration times by {by}"


def test_a_gpu_has_the_error_of_its_engine_profile() -> None:
    own = json.loads((PARITY / "gpu" / "errors.json").read_text())["H100-SXM5-80GB"]["vllm_v1"]
    said = simulator_error("H100-SXM5-80GB", "h100x1", {"measured"}, "vllm_v1")
    assert "engine.profile=vllm_v1" in said
    for metric, name in (("e2e", "E2E"), ("tpot", "TPOT"), ("ttft", "TTFT")):
        assert f"{name} {own[metric]['mean_abs_error_pct']:g} %" in said
    for device, engine in (
        ("H100-SXM5-80GB", "eager_2024"), ("H100-SXM5-80GB", None), ("H200-SXM5-141GB", "vllm_v1"),
    ):  # fmt: skip
        said = simulator_error(device, "x", {"measured"}, engine)
        assert said.startswith(f"simulator error: not measured for {device}")


@pytest.mark.parametrize("engine", ["vllm_v1", "eager_2024"])
def test_a_run_and_its_tables_quote_that_error(tmp_path: Path, engine: str) -> None:
    run_here(
        tmp_path / "run", "+system=vllm", "+workload=azure_code", "engine=sim", "hardware=h100x1",
        "model=llama2-7b", "figure=null", "data.dir=null", "data.download=false",
        "workload.num_requests=5", f"engine.profile={engine}",
    )  # fmt: skip
    run = FinishedRun.load(tmp_path / "run")
    device = run.manifest["hardware"]["device"]
    said = simulator_error(
        device, "h100x1", {run.manifest["engine"]["step_times"]["llama2-7b"]}, engine
    )
    assert run.manifest["engine"]["simulator_error"] == said
    assert said in captions([run.manifest])
    assert ("not measured" in said) == (engine == "eager_2024")


def test_a_simulated_gpu_does_not_carry_the_error_of_a_cpu(tmp_path: Path) -> None:
    run_here(
        tmp_path / "run", "+system=vllm", "+workload=azure_code", "engine=sim", "hardware=h200x8",
        "model=llama2-7b", "figure=null", "data.dir=null", "data.download=false",
        "workload.num_requests=5",
    )  # fmt: skip
    run = FinishedRun.load(tmp_path / "run")
    text = printed(end_table(run.summary, run.manifest), width=200)
    said = "error: not measured for H200-SXM5-141GB with iteration times by datasheet"
    assert said in text
    assert run.manifest["engine"]["simulator_error"] == f"simulator {said}"
    assert "on cpu" not in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 s"), (2.5e-5, "25.0 µs"), (0.0123, "12.3 ms"), (1.0, "1.00 s"), (4321.0, "4,321 s")],
)
def test_seconds_choose_a_readable_unit(value: float, text: str) -> None:
    assert seconds(value) == text


def test_progress_tells_running_from_queued_whatever_failed() -> None:
    service = Service(*((0.0, 2) for _ in range(5)))
    for i in range(5):
        service.send(i)
    service.fail(0)  # without a token
    service.tokens(1, 1.0)
    service.fail(1)  # after its first token
    service.tokens(2, 1.0)
    assert counts(service.recorder) == "1 running, 2 queued, 2 failed"


def test_progress_draws_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.running.progress.REDRAW_S", -1.0)
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    service = Service((0.0, 100), (0.0, 1))
    with ProgressBar(2, console) as bar:
        bar.update(service.recorder, 0.0)
        service.complete(1, 0.5)
        bar.update(service.recorder, 0.5)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "1/2 done" in shown
    assert "2 tokens/s" in shown


def test_series_over_time_account_for_every_request_and_token() -> None:
    service = Service((0.2, 2), (0.4, 1), (1.1, 1))
    service.complete(0, 1.5, 2.5)
    service.complete(1, 0.9)
    service.send(2)
    service.fail(2, "no answer", timeout=True)
    series = {key: column.tolist() for key, column in over_time(service.table(), 1.0).items()}
    assert series["time_s"] == [1.0, 2.0, 3.0]
    assert series["sent_per_s"] == [2.0, 1.0, 0.0]
    assert series["tokens_per_s"] == [1.0, 1.0, 1.0]
    assert series["queued"] == [1.0, 1.0, 1.0]
    assert series["running"] == [0.0, 1.0, 0.0]
    np.testing.assert_allclose(series["mean_ttft_s"], [0.5, 1.3, np.nan])
    half = over_time(service.table(), 0.5)
    assert half["tokens_per_s"].sum() * 0.5 == pytest.approx(3)


@pytest.mark.parametrize(
    ("engine", "where"),
    [
        ({"elastic": True}, "not measured where weights and KV move between instances"),
        ({"pool": {}}, "not measured where models take turns on instances"),
    ],
)
def test_no_error_is_quoted_where_weights_and_kv_move(engine: dict[str, Any], where: str) -> None:
    """Parity was measured on instances that stay as they are."""
    manifest = {
        "simulated": True,
        "hardware": {"device": "cpu", "name": "local"},
        "engine": engine | {"step_times": {"tiny-llama": "measured"}},
    }
    said = simulator([manifest])
    assert where in said[0]
    assert not any("TPOT" in line for line in said)


def test_elastic_runs_quote_the_error_of_single_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "; single operations alone on GPUs, " in not_measured_elastic()
    monkeypatch.setattr("harness.records.simulator_error.PARITY", tmp_path)
    assert not_measured_elastic.__wrapped__().endswith("between instances")
    row = {"operation": "all", "rows": 7, "mean_abs_pct": 12.4, "worst_pct": -30.6}
    (tmp_path / "elastic.json").write_text(json.dumps({"held_out": [row]}))
    said = not_measured_elastic.__wrapped__()
    assert said.endswith("; single operations alone on GPUs, 7 published times: 12 % (worst -31)")
