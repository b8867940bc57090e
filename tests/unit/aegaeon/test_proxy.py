"""A proxy can die: what it had accepted is in the store, and is served after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.request import Request
from systems.aegaeon.proxy import Proxy
from systems.aegaeon.store import EmbeddedStore, StoreConfig, open_store
from tests.unit.aegaeon.world import World, requests_of


class Instances:
    """Queues that the proxy dispatches to; the proxy dies before its `crash_at`-th dispatch."""

    def __init__(self, crash_at: int | None = None) -> None:
        self.queued: list[int] = []
        self._left = crash_at

    def dispatch(self, request: Request) -> str:
        if self._left == 0:
            raise KeyboardInterrupt
        if self._left is not None:
            self._left -= 1
        self.queued.append(request.request_id)
        return "prefill-0"


def requests(count: int) -> list[Request]:
    return [Request(i, 0.5 * i, "m", 10 + i, 20) for i in range(count)]


def test_a_restarted_proxy_dispatches_what_no_instance_holds_and_nothing_twice(
    tmp_path: Path,
) -> None:
    alive = Instances(crash_at=3)
    proxy = Proxy(EmbeddedStore(tmp_path / "store.jsonl"), alive.dispatch)
    sent = requests(4)
    for request in sent[:3]:
        proxy.submit(request)
    proxy.finished(sent[0])
    with pytest.raises(KeyboardInterrupt):
        proxy.submit(sent[3])  # accepted, and then the proxy dies

    again = Instances()
    restarted = Proxy(EmbeddedStore(tmp_path / "store.jsonl"), again.dispatch)
    recovered = restarted.recover(held={1, 2})
    assert again.queued == [3]
    assert [(r.model, r.prompt_tokens, r.output_tokens, r.arrival_s) for r in recovered] == [
        ("m", 13, 20, 1.5)
    ]
    for request in (sent[1], sent[2], recovered[0]):
        restarted.finished(request)
    assert EmbeddedStore(tmp_path / "store.jsonl").items() == {}


def test_where_the_instances_died_too_every_unfinished_request_is_served_anew(
    tmp_path: Path,
) -> None:
    """The whole system ends in the midst of a run and is started again on the same store."""
    wanted = [(0.01 * i, ("narrow-0", "wide-1", "deep-2")[i % 3], 50, 40) for i in range(30)]
    first = World(f"system.store.path={tmp_path / 'store.jsonl'}")
    first.serve(requests_of(*wanted), until=0.3)
    finished = {i for i, r in first.recorder.records.items() if r.status == "completed"}
    sent = {i for i, r in first.recorder.records.items() if r.status != "scheduled"}
    assert finished
    assert finished < sent

    second = World(f"system.store.path={tmp_path / 'store.jsonl'}")
    recovered = second.recover()
    assert {request.request_id for request in recovered} == sent - finished
    assert second.statuses() == {"completed"}
    left = EmbeddedStore(tmp_path / "store.jsonl").items()
    assert not [key for key in left if key.startswith("request/")]


def test_a_line_that_was_being_written_when_the_proxy_died_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    store = EmbeddedStore(path)
    store.put("request/0", {"model": "a"})
    store.close()
    path.write_bytes(path.read_bytes() + b'{"key": "request/1", "val')
    again = EmbeddedStore(path)
    assert again.items() == {"request/0": {"model": "a"}}
    again.put("request/2", {"model": "b"})
    again.close()
    assert set(EmbeddedStore(path).items()) == {"request/0", "request/2"}


def test_a_redis_that_does_not_answer_is_named() -> None:
    config = StoreConfig(kind="redis", path=None, url="redis://127.0.0.1:1/0", namespace="test")
    with pytest.raises(UsageError, match="redis"):
        open_store(config)
