"""Finished runs in other tools' formats."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.exporting.__main__ import main
from tests.unit.metrics.service import Service, steady, write_run


def exported(folder: Path, to: str) -> dict:
    assert main([str(folder), "--to", to]) == 0
    found: dict = json.loads((folder / f"{to}.json").read_text())
    return found


def one_failed() -> Service:
    """Two requests that are answered in full, and one that fails after its first token."""
    service = Service((0.0, 3), (1.0, 1), (1.5, 4))
    service.complete(0, 0.5, 0.6, 0.8)
    service.complete(1, 1.25)
    service.send(2)
    service.tokens(2, 2.5)
    service.fail(2, "gone")
    return service


def test_vllms_file_has_vllms_own_numbers(tmp_path: Path) -> None:
    """Computed by vLLM from the requests that the file lists."""
    serve = pytest.importorskip("vllm.benchmarks.serve")
    limits = {"ttft": 150.0, "tpot": 20.0, "e2el": 600.0}
    goodput = " ".join(f"{kind}:{ms:g}" for kind, ms in limits.items())
    found = exported(write_run(tmp_path, steady(70), goodput=goodput), "vllm")
    outputs = [
        serve.RequestFuncOutput(
            success=not error, latency=latency, output_tokens=tokens, ttft=ttft, itl=itl,
            prompt_len=prompt, start_time=start,
        )
        for error, latency, tokens, ttft, itl, prompt, start in zip(
            found["errors"], found["latencies"], found["output_lens"], found["ttfts"],
            found["itls"], found["input_lens"], found["start_times"], strict=True,
        )
    ]  # fmt: skip
    theirs, lengths = serve.calculate_metrics(
        [], outputs, found["duration"], None, [50, 90, 95, 99], limits
    )
    assert 0 < found["request_goodput"] < found["request_throughput"]
    assert lengths == found["output_lens"]
    for name in (
        "completed", "failed", "request_throughput", "output_throughput", "total_token_throughput",
        "request_goodput",
        *(f"{word}_{of}_ms" for word in ("mean", "median", "std")
          for of in ("ttft", "tpot", "itl", "e2el")),
    ):  # fmt: skip
        assert found[name] == pytest.approx(getattr(theirs, name)), name
    for of in ("ttft", "tpot", "itl", "e2el"):
        for share, value in getattr(theirs, f"percentiles_{of}_ms"):
            assert found[f"p{share}_{of}_ms"] == pytest.approx(value)


def test_vllms_file_counts_from_the_sending_and_leaves_out_what_failed(tmp_path: Path) -> None:
    found = exported(write_run(tmp_path, one_failed()), "vllm")
    assert (found["num_prompts"], found["completed"], found["failed"]) == (3, 2, 1)
    assert found["total_output_tokens"] == 4
    np.testing.assert_allclose(found["ttfts"][:2], [0.5, 0.25])
    np.testing.assert_allclose(found["itls"][0], [0.1, 0.2])
    assert found["mean_tpot_ms"] == pytest.approx(150.0)
    assert found["errors"][2] == "gone"


def test_a_request_that_was_never_sent_is_not_in_vllms_file(tmp_path: Path) -> None:
    """As a turn of a session that had ended before. vLLM sends all, so its times begin later."""
    service = Service((5.0, 2), (6.0, 2))
    service.complete(0, 5.5, 5.6)
    service.fail(1, "the turn before failed")
    found = exported(write_run(tmp_path, service), "vllm")
    assert (found["num_prompts"], found["completed"], found["failed"]) == (1, 1, 0)
    assert found["start_times"] == [5.0]
    assert {len(found[name]) for name in ("errors", "itls", "input_lens", "output_lens")} == {1}


def test_a_trace_has_each_requests_two_spans_and_pairs_every_begin_with_an_end(
    tmp_path: Path,
) -> None:
    found = exported(write_run(tmp_path, one_failed()), "perfetto")
    events = found["traceEvents"]
    spans = [e for e in events if e.get("cat") == "request"]
    named = [(e["name"], e["ts"]) for e in spans if e["id"] == 0]
    assert named == [("prefill", 0.0), ("prefill", 5e5), ("decode", 5e5), ("decode", 8e5)]
    assert [e["ph"] for e in spans if e["id"] == 1] == ["b", "e"]
    for phase, other in (("b", "e"), ("e", "b")):
        assert {(e["cat"], e["id"], e["name"]) for e in events if e["ph"] == phase} == {
            (e["cat"], e["id"], e["name"]) for e in events if e["ph"] == other
        }
    counters = [(e["ts"], e["args"]) for e in events if e["ph"] == "C"]
    assert counters[1] == (2e6, {"queued": 1.0, "running": 0.0})


def test_a_trace_parts_the_wait_for_a_token_into_the_clients_and_the_servers(
    tmp_path: Path,
) -> None:
    service = Service((1.0, 1), (2.0, 1))
    service.complete(0, 1.5, lag_s=0.25)
    service.complete(1, 2.5)
    events = exported(write_run(tmp_path, service), "perfetto")["traceEvents"]
    spans = [(e["id"], e["name"], e["ph"], e["ts"]) for e in events if e.get("cat") == "request"]
    assert spans == [
        (0, "client", "b", 1.0e6), (0, "client", "e", 1.25e6),
        (0, "prefill", "b", 1.25e6), (0, "prefill", "e", 1.5e6),
        (1, "prefill", "b", 2.0e6), (1, "prefill", "e", 2.5e6),
    ]  # fmt: skip


def test_a_trace_shows_each_failure_also_of_a_request_without_a_token(tmp_path: Path) -> None:
    service = Service((0.0, 1), (1.0, 5), (2.0, 5))
    service.complete(0, 0.5)
    service.send(1)
    service.tokens(1, 2.5)
    service.fail(1, "gone")
    service.send(2, lag_s=0.25)
    service.fail(2, "HTTP 500")
    events = exported(write_run(tmp_path, service), "perfetto")["traceEvents"]
    failed = [(e["ph"], e["ts"], e["args"]["error"]) for e in events if e["name"] == "failed"]
    assert failed == [("n", 2.5e6, "gone"), ("n", 2.25e6, "HTTP 500")]


@pytest.mark.parametrize("to", ["vllm", "perfetto"])
@pytest.mark.parametrize(("engine", "simulated"), [("sim", True), ("torch", False)])
def test_a_file_says_whether_it_is_simulated(
    tmp_path: Path, to: str, engine: str, simulated: bool
) -> None:
    found = exported(write_run(tmp_path, steady(70), engine_name=engine), to)
    told = found if to == "vllm" else found["otherData"]
    assert told["simulated"] is simulated
    assert told["verdict"] == "VALID"


def test_a_run_without_a_completed_request_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Service((0.0, 3))
    service.send(0)
    service.fail(0)
    assert main([str(write_run(tmp_path, service)), "--to", "vllm"]) == 2
    assert "no request of" in capsys.readouterr().err
    assert not (tmp_path / "vllm.json").exists()


def test_a_run_without_events_has_no_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (write_run(tmp_path, steady(3)) / "events.parquet").unlink()
    assert main([str(tmp_path), "--to", "perfetto"]) == 2
    assert "events.parquet" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--to", "excel"], []])
def test_an_unknown_format_ends_with_exit_status_2(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(write_run(tmp_path, steady(3))), *words])
    assert ended.value.code == 2
    assert "--to" in capsys.readouterr().err


def test_a_folder_without_a_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--to", "vllm"]) == 2
    assert "not a complete run's folder" in capsys.readouterr().err
