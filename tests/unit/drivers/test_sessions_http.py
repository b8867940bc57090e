"""Sessions over HTTP: a turn's prompt has the real answers before it, as ids or as messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.clock import WallLoop
from harness.drivers.body import Bodies, chat_body, completion_body
from harness.drivers.openai_http import OpenAiEngine
from harness.drivers.stream import StreamError, Tally
from harness.errors import RunError
from harness.records.record import Recorder, TokenRecord
from harness.request import Request
from harness.running.session_loop import SessionLoop
from harness.selftest.golden_server import GoldenServer
from harness.selftest.script import Script
from tests.unit.drivers.endpoint import config, experiment_for
from tests.unit.drivers.specs import TINY
from tests.unit.test_sessions import schedule


def turns() -> list[Request]:
    made = schedule([0, 1, 0, 0], [5, 6, 12, 20], output=4, think_s=0.01)
    made.arrival_s = np.zeros(4)
    requests = made.requests()
    for request in requests:
        request.model = "default"
    return requests


def served(tmp_path: Path, api: str, script: Script) -> tuple[Recorder, list[dict[str, Any]]]:
    requests = turns()
    loop, recorder = WallLoop(), Recorder(requests)
    with GoldenServer(lambda _: script) as server:
        engine = OpenAiEngine(config(server.url, api=api))
        with engine.start(experiment_for(loop, recorder, requests, tmp_path)) as cluster:
            endpoint = cluster.endpoints[0]
            client = SessionLoop(30.0, loop=loop, recorder=recorder, system=endpoint)
            loop.run(client.play(requests))
        return recorder, [answer.body for answer in server.answers]


@pytest.mark.live
def test_prompts_of_ids_have_the_answers_ids(tmp_path: Path) -> None:
    recorder, bodies = served(tmp_path, "completions", Script(token_ids=100))
    assert {record.status for record in recorder.records.values()} == {"completed"}
    prompts = {len(body["prompt"]): body["prompt"] for body in bodies}
    assert sorted(prompts) == [5, 6, 12, 20]
    assert prompts[12][:9] == [*prompts[5], 100, 101, 102, 103]
    assert prompts[20][:16] == [*prompts[12], 100, 101, 102, 103]
    assert all(body["return_token_ids"] for body in bodies)
    sent_s = [recorder.records[i].sent_s or 0.0 for i in (0, 2, 3)]
    assert 0.0 < sent_s[0] < sent_s[1] < sent_s[2]


@pytest.mark.live
def test_a_chat_has_the_messages_before(tmp_path: Path) -> None:
    _, bodies = served(tmp_path, "chat", Script())
    longest = max(bodies, key=lambda body: len(body["messages"]))["messages"]
    roles = [message["role"] for message in longest]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    texts = [message["content"] for message in longest]
    assert texts[1] == texts[3] == " word" * 4
    assert [len(texts[i].split()) for i in (0, 2, 4)] == [5, 3, 4]
    assert all("return_token_ids" not in body for body in bodies)


@pytest.mark.live
def test_a_server_that_tells_no_ids_ends_the_run_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="answered without token ids"):
        served(tmp_path, "completions", Script())


def test_a_request_of_no_session_is_one_message() -> None:
    body = json.loads(chat_body(None, 0, {})(Request(0, 0.0, "m", 7, 3)))
    assert [len(message["content"].split()) for message in body["messages"]] == [7]


def test_ids_that_are_none_are_refused() -> None:
    event = {"choices": [{"text": "a", "token_ids": [1, "2"]}]}
    with pytest.raises(StreamError, match="token_ids are no ids"):
        Tally(4, keep=True).read(json.dumps(event).encode())


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_later_turns_body_is_made_as_the_answer_before_ends(api: str) -> None:
    calls: list[int] = []
    chat = chat_body(None, 0, {"x": [1]})
    make = chat if api == "chat" else completion_body({"default": TINY}, None, 0, {"x": [1]})

    def body(request: Request, before: bytes | None = None) -> bytes:
        calls.append(request.request_id)
        return make(request, before)

    requests = turns()
    bodies = Bodies(body, map(TokenRecord, requests))
    assert calls == [0, 1]
    for request in (requests[0], requests[2]):
        request.answer = " of words] said" if api == "chat" else [11, 12, 13, 14]
        bodies.answered(request)
    assert calls == [0, 1, 2, 3]
    last = bodies.of(requests[3])
    assert calls == [0, 1, 2, 3]
    assert last == make(requests[3])  # from the beginning, without what was made before
    assert json.loads(last)["max_tokens"] == requests[3].output_tokens
