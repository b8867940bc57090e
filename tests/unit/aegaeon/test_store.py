"""The shared store: what was put is there again after its writer died, in whichever kind."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.errors import UsageError
from systems.aegaeon.store import EmbeddedStore, RedisStore, Store, StoreConfig, open_store


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
