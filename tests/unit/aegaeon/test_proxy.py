"""A proxy can die: what it had accepted is in the store, and is served after a restart."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.errors import UsageError
from harness.request import Request
from systems.aegaeon.proxy import Proxy
from systems.aegaeon.store import EmbeddedStore, RedisStore, Store, StoreConfig, open_store
from tests.unit.aegaeon.test_serving import assert_all_served
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


def test_where_the_instances_died_too_every_unfinished_request_is_dispatched_anew(
    tmp_path: Path,
) -> None:
    proxy = Proxy(EmbeddedStore(tmp_path / "store.jsonl"), Instances().dispatch)
    for request in (sent := requests(4)):
        proxy.submit(request)
    proxy.finished(sent[1])
    again = Instances()
    Proxy(EmbeddedStore(tmp_path / "store.jsonl"), again.dispatch).recover(held=())
    assert again.queued == [0, 2, 3]


@pytest.mark.parametrize("variant", ["paper", "artifact"])
@pytest.mark.parametrize("schedule", ["disaggregated", "prefill_first"])
def test_a_run_whose_proxy_dies_serves_every_request_once(
    variant: str, schedule: str, tmp_path: Path
) -> None:
    """At any time: in prefills, between phases, in decodes and switches. No instance ever heard of
    the request that it died with: the store alone has it."""
    wanted = [(0.01 * i, ("narrow-0", "wide-1", "deep-2")[i % 3], 200, 40) for i in range(30)]
    first: list[Proxy] = []
    for number, restart_at_s in enumerate((0.0, 0.005, 0.051, 0.1, 0.2, 0.29)):
        path = tmp_path / f"store-{number}.jsonl"
        world = World(
            f"system.variant={variant}", f"system.schedule={schedule}",
            f"system.store.path={path}", f"system.store.restart_at_s={restart_at_s}",
            watch=lambda system: first.append(system._proxy),
        )  # fmt: skip
        requests = requests_of(*wanted)
        world.serve(requests)
        assert world.system._proxy is not first[number]
        assert_all_served(world, requests)
        assert len(world.recorder.records) == len(requests)
        assert EmbeddedStore(path).items() == {}  # the run has ended, and nobody was forgotten


def test_what_an_earlier_run_left_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    first = World(f"system.store.path={path}")
    first.serve(requests_of((0.0, "narrow-0", 50, 40_000)), until=0.3)
    with pytest.raises(ValueError, match=rf"{path} has 1 entries .* delete the file"):
        World(f"system.store.path={path}").serve([])


def test_a_restart_on_a_store_in_memory_is_refused() -> None:
    with pytest.raises(UsageError, match=r"restart_at_s=1 needs store\.path=FILE"):
        World("system.store.restart_at_s=1")


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


class Hash:
    """What RedisStore uses of a Redis, in memory."""

    def __init__(self) -> None:
        self._hashes: dict[str, dict[str, str]] = {}
        self.closed = False

    def hset(self, name: str, key: str, value: str) -> None:
        self._hashes.setdefault(name, {})[key] = value

    def hdel(self, name: str, key: str) -> None:
        self._hashes.get(name, {}).pop(key, None)

    def hgetall(self, name: str) -> dict[str, str]:
        return dict(self._hashes.get(name, {}))

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("kind", ["memory", "file", "redis"])
def test_a_store_holds_what_was_put_last_and_not_deleted(kind: str, tmp_path: Path) -> None:
    store: Store = {
        "memory": lambda: EmbeddedStore(None),
        "file": lambda: EmbeddedStore(tmp_path / "store.jsonl"),
        "redis": lambda: RedisStore(Hash(), "test"),
    }[kind]()
    assert store.items() == {}
    store.put("a", {"model": "m", "arrival_s": 0.1, "instance": None})
    store.put("b", {"node": 1})
    store.put("c", {"node": 2})
    store.put("b", {"node": 3})
    store.delete("c")
    store.delete("never")
    assert store.items() == {
        "a": {"model": "m", "arrival_s": 0.1, "instance": None}, "b": {"node": 3}
    }  # fmt: skip
    store.close()


def test_stores_of_two_namespaces_share_a_redis() -> None:
    client = Hash()
    one, other = RedisStore(client, "one"), RedisStore(client, "other")
    one.put("a", {"node": 1})
    assert other.items() == {}
    assert RedisStore(client, "one").items() == {"a": {"node": 1}}
    one.close()
    assert client.closed


class RedisError(Exception):
    pass


def silent_redis(url: str, **options: object) -> SimpleNamespace:
    def ping() -> None:
        raise RedisError(f"connection to {url} refused")

    return SimpleNamespace(ping=ping)


REDIS = StoreConfig(
    kind="redis", path=None, url="redis://127.0.0.1:1/0", namespace="test", restart_at_s=None
)


def test_a_redis_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    package = SimpleNamespace(
        Redis=SimpleNamespace(from_url=silent_redis),
        exceptions=SimpleNamespace(RedisError=RedisError),
    )
    monkeypatch.setitem(sys.modules, "redis", package)
    with pytest.raises(UsageError, match=r"no Redis answers at .*url=redis://127\.0\.0\.1:1/0"):
        open_store(REDIS)


def test_a_missing_redis_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(UsageError, match="needs the Python package redis"):
        open_store(REDIS)
