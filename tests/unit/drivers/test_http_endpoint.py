"""A golden server's answers, faults included, as they arrive in the token log."""

from __future__ import annotations

import time
from base64 import b64encode
from pathlib import Path

import pytest

from harness.clock import WallLoop
from harness.drivers.body import Bodies
from harness.drivers.http_endpoint import HttpEndpoint, Target
from harness.drivers.io_thread import IoThread
from harness.drivers.openai_http import OpenAiEngine
from harness.errors import UsageError
from harness.records.record import Recorder
from harness.request import Request
from harness.selftest.golden_server import GoldenServer
from harness.selftest.script import Script
from tests.unit.drivers.endpoint import ASKED, config, experiment_for, replay, run, send_all
from tests.unit.drivers.specs import TINY

pytestmark = [pytest.mark.live, pytest.mark.alone]


def test_tokens_are_stamped_between_their_write_and_the_end(tmp_path: Path) -> None:
    script = Script(ttft_s=0.05, gap_s=0.02)
    (record,), server, _ = replay(script, tmp_path)
    assert (record.status, record.error) == ("completed", "")
    assert [each.num_tokens for each in record.segments] == [1] * ASKED
    assert record.request.generated_tokens == ASKED
    times = record.token_times_s()
    first_write, *_, last_write = server.answers[0].writes_s[:ASKED]
    assert times[0] >= 0.05
    assert times[-1] - times[0] == pytest.approx(last_write - first_write, abs=0.5)


def test_a_stall_shows_where_it_was(tmp_path: Path) -> None:
    (record,), _, _ = replay(Script(stall_at=3, stall_s=0.3), tmp_path)
    times = record.token_times_s()
    assert times[3] - times[2] > 0.25
    assert times.tolist() == sorted(times)


def test_tokens_of_one_event_are_one_chunk(tmp_path: Path) -> None:
    (record,), _, _ = replay(Script(tokens_per_event=4), tmp_path)
    assert [each.num_tokens for each in record.segments] == [4, 2]
    assert len(set(record.token_times_s().tolist())) <= 2


def test_events_of_one_write_stay_chunks_of_their_own(tmp_path: Path) -> None:
    (record,), _, _ = replay(Script(events_per_write=3), tmp_path)
    assert [each.num_tokens for each in record.segments] == [1] * ASKED


@pytest.mark.parametrize("write_bytes", [None, 30_000])
def test_events_beyond_any_buffer_arrive_whole(tmp_path: Path, write_bytes: int | None) -> None:
    script = Script(pad_bytes=100_000, write_bytes=write_bytes)
    (record,), _, _ = replay(script, tmp_path)
    assert (record.status, record.request.generated_tokens) == ("completed", ASKED)


def test_events_cut_anywhere_arrive_whole(tmp_path: Path) -> None:
    (record,), _, _ = replay(Script(write_bytes=7), tmp_path, asked=2)
    assert (record.status, record.request.generated_tokens) == ("completed", 2)


def test_a_one_token_answer_completes(tmp_path: Path) -> None:
    (record,), _, _ = replay(Script(), tmp_path, asked=1)
    assert (record.status, [each.num_tokens for each in record.segments]) == ("completed", [1])


FAULTS = {
    "http": (Script(status=500), 0, "HTTP 500: "),
    "reset": (Script(reset_at=3, gap_s=0.01), 3, "connection lost, after 3 of 6 tokens"),
    "with it": (Script(reset_at=3, events_per_write=9), 3, "connection lost, after 3 of 6 tokens"),
    "error": (Script(error_at=2), 2, "error in mid-stream after 2 of 6 tokens: out of cheese"),
    "together": (Script(error_at=2, events_per_write=9), 2, "out of cheese"),
    "garbage": (Script(garbage_at=2), 2, "no JSON object"),
    "early": (Script(stop_at=4), 4, "ended early: 4 of 6 tokens (finish_reason=stop)"),
    "silent": (Script(stop_at=0), 0, "no token at all"),
    "cut": (Script(cut_at=5), 5, "stream ended after 5 of 6 tokens without [DONE]"),
    "more": (Script(extra_tokens=2), 8, "too many tokens: 8 of 6"),
}


def test_each_fault_is_counted_as_what_it_is_and_harms_no_other_request(tmp_path: Path) -> None:
    scripts = {name: script for name, (script, _, _) in FAULTS.items()} | {"good": Script()}
    records, _, _ = replay(scripts, tmp_path)
    by_model = {record.request.model: record for record in records}
    assert (by_model["good"].status, by_model["good"].error) == ("completed", "")
    for name, (_, tokens, says) in FAULTS.items():
        record = by_model[name]
        assert (name, record.status, record.request.failed) == (name, "failed", True)
        assert (name, record.request.generated_tokens) == (name, tokens)
        assert (name, len(record.token_times_s())) == (name, tokens)
        assert says in record.error, name


def test_a_hanging_answer_is_a_timeout_with_the_tokens_it_had(tmp_path: Path) -> None:
    (record,), _, _ = replay(Script(hang_at=2), tmp_path, request_timeout_s=0.5)
    assert record.status == "timeout"
    assert record.request.generated_tokens == 2
    assert "2 of 6 tokens" in record.error


def test_usage_at_the_end_settles_the_number_of_tokens(tmp_path: Path) -> None:
    script = Script(tokens_per_event=3, usage="final")
    (record,), _, engine = replay(script, tmp_path)
    assert (record.status, len(record.token_times_s())) == ("completed", ASKED)
    assert engine.resolved()["num_corrected_answers"] == 1


def test_chat_sends_the_key_and_as_many_words_as_the_prompt_has_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDEN_KEY", "secret")
    (record,), server, _ = replay(
        Script(usage="none"), tmp_path, api="chat", api_key_env="GOLDEN_KEY"
    )
    assert (record.status, record.error) == ("completed", "")
    (message,) = server.answers[0].body["messages"]
    assert len(message["content"].split()) == record.request.prompt_tokens
    assert "authorization: bearer secret" in server.answers[0].head


def test_the_user_in_a_url_is_sent_and_told_nobody(tmp_path: Path) -> None:
    with GoldenServer(lambda body: Script()) as server:
        url = server.url.replace("://", "://ann:p%40ss@")
        engine = OpenAiEngine(config(url))
        (record,) = run(engine, [Request(0, 0.0, "default", 5, ASKED)], tmp_path)
    assert record.status == "completed"
    basic = b64encode(b"ann:p@ss").decode().lower()
    assert f"authorization: basic {basic}" in server.answers[0].head
    assert engine.resolved()["url"] == server.url


@pytest.mark.parametrize("key", ["sec\nret", "sec ret", "", "sécret", "secret\r\nX-A: b"])
def test_a_key_that_no_header_can_hold_is_refused_unseen(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("GOLDEN_KEY", key)
    with pytest.raises(UsageError, match="GOLDEN_KEY holds no API key") as caught:
        OpenAiEngine(config("http://127.0.0.1:1/v1", api_key_env="GOLDEN_KEY"))
    assert "ret" not in str(caught.value)


def test_a_user_and_a_key_are_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOLDEN_KEY", "secret")
    with pytest.raises(UsageError, match="give one of them"):
        OpenAiEngine(config("http://ann:pass@127.0.0.1:1/v1", api_key_env="GOLDEN_KEY"))


def test_the_prompt_is_token_ids_and_the_body_has_the_extra_fields(tmp_path: Path) -> None:
    _, server, _ = replay(Script(), tmp_path, model=None)
    body = server.answers[0].body
    assert len(body["prompt"]) == 5
    assert all(0 <= token < TINY.vocab_size for token in body["prompt"])
    assert (body["max_tokens"], body["stream"], body["temperature"]) == (ASKED, True, 0)


def test_hundreds_of_streams_at_once_lose_nothing(tmp_path: Path) -> None:
    with GoldenServer(lambda body: Script(gap_s=0.01)) as server:
        requests = [Request(i, 0.0, "default", 5, ASKED) for i in range(300)]
        records = run(OpenAiEngine(config(server.url)), requests, tmp_path)
    assert {(record.status, record.error) for record in records} == {("completed", "")}
    assert sum(len(record.token_times_s()) for record in records) == 300 * ASKED


def test_what_a_body_takes_is_the_clients_lag_and_not_the_servers_latency(tmp_path: Path) -> None:
    def body(_: Request) -> bytes:
        time.sleep(0.05)
        return b'{"model": "default", "max_tokens": 2}'

    request = Request(0, 0.0, "default", 5, 2)
    loop, recorder = WallLoop(), Recorder([request])
    with GoldenServer(lambda _: Script()) as server, IoThread(loop) as io:
        bodies = Bodies(body, [])
        target = Target(server.url, f"{server.url}/completions", {}, bodies, 20.0, False)
        endpoint = HttpEndpoint("one", ["default"], target, [io], loop, recorder)
        send_all(endpoint, loop, recorder, [request])
    record = recorder.records[0]
    assert (record.status, recorder.num_sent) == ("completed", 1)
    assert record.sent_s is not None
    assert 0.05 <= record.sent_s <= record.token_times_s()[0]


def test_bodies_are_built_before_the_run(tmp_path: Path) -> None:
    requests = [Request(i, 0.0, "default", 5, ASKED) for i in range(3)]
    loop, recorder = WallLoop(), Recorder(requests)
    experiment = experiment_for(loop, recorder, requests, tmp_path)
    models = dict(experiment.models)
    experiment.models = models
    with GoldenServer(lambda _: Script()) as server:
        with OpenAiEngine(config(server.url)).start(experiment) as cluster:
            models.clear()  # a body cannot be built from here on
            send_all(cluster.endpoints[0], loop, recorder, requests)
        assert len({tuple(answer.body["prompt"]) for answer in server.answers}) == 3
    assert {record.status for record in recorder.records.values()} == {"completed"}
