"""Answers that are not what was asked for: counted, bounded, named, and harmless to the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.clock import WallLoop
from harness.drivers.openai_http import OpenAiEngine
from harness.errors import UsageError
from harness.records.metrics import summarise
from harness.records.record import Recorder
from harness.records.tables import requests_table
from harness.request import Prompt, Request
from harness.selftest.golden_server import GoldenServer
from harness.selftest.script import Script
from tests.unit.drivers.test_http_endpoint import config, experiment_for, replay, send_all
from tests.unit.metrics.service import absolute

PROMPT, ASKED = 5, 6  # tokens of each request that `replay` sends


def served(
    script: Script, tmp_path: Path, num_requests: int = 20, metrics: tuple[str, str] = ("", ""),
    **changes: Any,
) -> dict[str, Any]:  # fmt: skip
    """The summary of a whole run against a golden server; `metrics`: its page before and after."""
    requests = [Request(i, 0.0, "default", PROMPT, ASKED) for i in range(num_requests)]
    loop, recorder = WallLoop(), Recorder(requests)
    with GoldenServer(lambda _: script) as server:
        server.metrics = metrics[0]
        engine = OpenAiEngine(config(server.url, **changes))
        with engine.start(experiment_for(loop, recorder, requests, tmp_path)) as cluster:
            send_all(cluster.endpoints[0], loop, recorder, requests)
            server.metrics = metrics[1]
    return summarise(
        requests_table(recorder), absolute(1.0, 1.0), events=recorder.events, num_devices=None,
        wall_s=1.0, simulated=False, stall_s=1.0,
    )  # fmt: skip


def reasons(summary: dict[str, Any]) -> str:
    """Of the verdict, but for what a busy machine does to the client."""
    return "; ".join(r for r in summary["verdict"]["reasons"] if "the client" not in r)


def notes(summary: dict[str, Any]) -> str:
    return "; ".join(summary["verdict"].get("notes", []))


def counters(queries: int, hits: int) -> str:
    return (
        f'vllm:prefix_cache_queries_total{{engine="0"}} {queries}.0\n'
        f'vllm:prefix_cache_hits_total{{engine="0"}} {hits}.0\n'
    )


def test_prompts_from_a_prefix_cache_make_a_run_invalid_unless_they_are_meant(
    tmp_path: Path,
) -> None:
    script = Script(prompt_tokens=PROMPT, cached_tokens=PROMPT)
    said = reasons(served(script, tmp_path))
    assert "100.0% of the prompts' tokens came from a prefix cache, by the answers' usage" in said
    assert "engine.cold=true" in said
    summary = served(script, tmp_path, allow_cached=True)
    assert reasons(summary) == ""
    assert summary["answers"]["cached_tokens"] == 20 * PROMPT


def test_the_servers_own_counters_are_read_around_the_run(tmp_path: Path) -> None:
    warm = served(Script(), tmp_path, metrics=(counters(900, 800), counters(1000, 802)))
    assert "2.0% of the prompts' tokens" in reasons(warm)
    assert "by openai-0's counters" in reasons(warm)
    cold = served(Script(), tmp_path, metrics=(counters(900, 800), counters(1000, 801)))
    assert reasons(cold) == ""
    assert cold["answers"]["prefix_cache"]["openai-0"] == {"queried_tokens": 100, "hit_tokens": 1}


@pytest.mark.parametrize(("cold", "differ"), [(True, True), (False, False)])
def test_cold_prompts_are_new_in_every_run(tmp_path: Path, cold: bool, differ: bool) -> None:
    prompts, seeds = [], []
    for _ in range(2):
        _, server, engine = replay(Script(), tmp_path, cold=cold)
        prompts.append(server.answers[0].body["prompt"])
        seeds.append(engine.resolved()["prompt_seed"])
    assert (prompts[0] != prompts[1]) is differ
    assert (seeds[0] != seeds[1]) is differ


def test_real_prompts_cannot_be_made_new(tmp_path: Path) -> None:
    request = Request(0, 0.0, "default", 1, 1, prompt=Prompt.of("a", [11], [1]))
    experiment = experiment_for(WallLoop(), Recorder([request]), [request], tmp_path)
    with pytest.raises(UsageError, match=r"engine\.cold=true .* this workload's prompts are real"):
        OpenAiEngine(config("http://127.0.0.1:1/v1", cold=True)).start(experiment).__enter__()


@pytest.mark.parametrize(
    ("counted", "reason"), [(PROMPT, False), (PROMPT + 1, True), (PROMPT - 1, True)]
)
def test_a_prompt_of_another_length_is_told(tmp_path: Path, counted: int, reason: bool) -> None:
    summary = served(Script(prompt_tokens=counted), tmp_path)
    assert ("prompts were not what was asked" in reasons(summary)) is reason
    assert summary["answers"]["counted_prompt_tokens"] == 20 * counted
    assert summary["answers"]["asked_prompt_tokens"] == 20 * PROMPT


def test_tokens_that_only_the_last_usage_tells_of_have_no_times(tmp_path: Path) -> None:
    summary = served(Script(tokens_per_event=2, usage="final"), tmp_path)
    assert summary["tbt_s"]["mean"] is None
    assert summary["itl_chunk_s"]["mean"] is None
    assert summary["slo_attainment"]["token"] is None
    assert summary["intervals_95"]["slo_attainment"]["token"] is None
    assert summary["slo_attainment"]["request"] == 1.0
    assert summary["ttft_s"]["mean"] > 0
    assert "20 of 20 answers had tokens that only the usage at their end told of" in notes(summary)
    known = served(Script(usage="final"), tmp_path)
    assert known["tbt_s"]["mean"] is not None


@pytest.mark.parametrize("usage", ["continuous", "final"])
def test_an_answer_in_one_event_is_named_buffered(tmp_path: Path, usage: str) -> None:
    summary = served(Script(tokens_per_event=ASKED, usage=usage), tmp_path)
    assert "20 of 20 answers were buffered" in notes(summary)
    assert summary["answers"]["num_buffered"] == 20
    assert "buffered" not in notes(served(Script(tokens_per_event=2, usage=usage), tmp_path))


@pytest.mark.parametrize("allowed", [True, False])
def test_an_early_end_that_is_allowed_is_noted(tmp_path: Path, allowed: bool) -> None:
    summary = served(Script(stop_at=ASKED - 2), tmp_path, allow_early_end=allowed)
    if allowed:
        assert not reasons(summary)
        assert "20 of 20 answers ended before all tokens asked for had come" in notes(summary)
    else:
        assert summary["num_failed"] == 20


def test_pieces_of_a_tool_call_are_tokens(tmp_path: Path) -> None:
    (record,), _, _ = replay(Script(tool_calls=True, usage="none"), tmp_path, api="chat")
    assert (record.status, len(record.token_times_s())) == ("completed", ASKED)


def test_a_stream_far_beyond_what_was_asked_is_cut_and_counted(tmp_path: Path) -> None:
    (record,), server, engine = replay(Script(extra_tokens=100_000, gap_s=1e-4), tmp_path)
    assert record.status == "failed"
    assert record.error == "cut: at least 23 tokens for 6 asked"
    assert len(record.token_times_s()) == 22
    assert engine.resolved()["num_cut_answers"] == 1
    assert len(server.answers[0].writes_s) < 50_000


def test_a_usage_of_billions_costs_no_run(tmp_path: Path) -> None:
    (record,), _, _ = replay(Script(usage="final", usage_tokens=3_000_000_000), tmp_path)
    assert record.error == "cut: at least 3000000000 tokens for 6 asked"
    seen = requests_table(_recorder_of(record))["token_times_s"][0].as_py()
    assert len(seen) == 6  # what a usage claims beyond any answer is counted as no tokens


def _recorder_of(record: Any) -> Recorder:
    recorder = Recorder([record.request])
    recorder.records[record.request.request_id] = record
    return recorder


def test_the_body_of_an_error_is_read_no_further_than_needed(tmp_path: Path) -> None:
    (record,), _, _ = replay(Script(status=500, error_bytes=50_000_000), tmp_path)
    assert record.error.startswith('HTTP 500: {"error": {"message": "as scripted"}}xxx')
    assert len(record.error) < 300


def test_a_stream_that_stays_open_after_done_has_its_tokens(tmp_path: Path) -> None:
    (record,), _, _ = replay(Script(endless=True), tmp_path, request_timeout_s=20.0)
    assert (record.status, record.error, len(record.token_times_s())) == ("completed", "", ASKED)


@pytest.mark.parametrize("message", ["\ud800 half a character", "x" * 1_000_000])
def test_an_error_of_any_text_can_be_written(tmp_path: Path, message: str) -> None:
    (record,), _, _ = replay(Script(error_at=2, message=message), tmp_path)
    assert len(record.error) < 300
    assert requests_table(_recorder_of(record))["error"][0].as_py() == record.error


def test_text_that_is_no_utf8_is_made_so_whoever_gives_it() -> None:
    request = Request(0, 0.0, "m", 1, 1)
    recorder = Recorder([request])
    recorder.failed(request, "\udcff")
    assert requests_table(recorder)["error"][0].as_py() == "?"


def test_a_server_that_stands_still_is_named(tmp_path: Path) -> None:
    summary = served(Script(hang_at=1), tmp_path, request_timeout_s=0.4)
    assert "openai-0 stood still: nobody got a token for " in reasons(summary)
    assert "100% of the requests failed" in notes(summary)
    assert any("openai-0 gave nobody a token" in error for error in summary["errors"])


def test_a_request_beyond_what_the_server_takes_is_refused_at_once(tmp_path: Path) -> None:
    request = Request(0, 0.0, "default", 90, 11)
    experiment = experiment_for(WallLoop(), Recorder([request]), [request], tmp_path)
    with GoldenServer(lambda _: Script()) as server:
        server.max_model_len = 100
        engine = OpenAiEngine(config(server.url))
        with pytest.raises(UsageError, match=r"101 tokens, and default at .* takes 100"):
            engine.start(experiment).__enter__()


def test_the_only_model_of_a_server_is_asked_for_and_said(tmp_path: Path) -> None:
    request, said = Request(0, 0.0, "another", 5, 2), list[str]()
    loop, recorder = WallLoop(), Recorder([request])
    with GoldenServer(lambda _: Script()) as server:
        engine = OpenAiEngine(config(server.url))
        with engine.start(experiment_for(loop, recorder, [request], tmp_path, said)) as cluster:
            send_all(cluster.endpoints[0], loop, recorder, [request])
    assert server.answers[0].body["model"] == "default"
    assert engine.resolved()["model"] == "default"
    (line,) = [line for line in said if line.startswith("sending to ")]
    assert "asking for default; prompts are made for model=tiny-llama (2,048 token ids" in line


def test_the_heartbeat_of_the_io_thread_is_among_the_events(tmp_path: Path) -> None:
    summary = served(Script(gap_s=0.01), tmp_path)
    lag_s = dict(summary["receive_lag_s"])
    assert lag_s.pop("stamped_by") in ("kernel", "client")
    assert set(lag_s) == {"p99", "max", "tokens_p99", "tokens_max", "with_send_p99", "cpu_wait"}
    assert np.isfinite(list(lag_s.values())).all()
