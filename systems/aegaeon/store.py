"""The shared store of §3.3: metadata of requests and instances that outlives a proxy.

There are two kinds, with the same four operations: embedded (a dict, with an append-only file if a
path is given) and Redis. Knows nothing of what the values mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from harness.configuration.checks import at_least, one_of
from harness.errors import UsageError

Value = Mapping[str, str | int | float | None]


@dataclass(kw_only=True, slots=True)
class StoreConfig:
    """`system.store`. Raises ValueError for values that do not fit together."""

    kind: str  # embedded or redis
    path: str | None  # embedded: the file; null: in memory only
    url: str  # redis
    namespace: str  # redis: the hash that holds all entries
    restart_at_s: float | None  # the proxy dies with the first request at or after it; null: never

    def __post_init__(self) -> None:
        one_of(self.kind, ("embedded", "redis"), "store.kind", "choose one of")
        if self.restart_at_s is not None and self.kind == "embedded" and self.path is None:
            raise ValueError(
                f"store.restart_at_s={self.restart_at_s:g} needs store.path=FILE or "
                "store.kind=redis: a store in memory dies with its proxy"
            )
        at_least(self, 0, "store", "restart_at_s")


class Store(Protocol):
    """A map from keys to values."""

    def put(self, key: str, value: Value) -> None: ...

    def delete(self, key: str) -> None: ...

    def items(self) -> dict[str, Value]:
        """All entries; the embedded store gives them in the order of their first `put`."""
        ...

    def close(self) -> None: ...


def open_store(config: StoreConfig) -> Store:
    """Raises UsageError if it cannot be opened."""
    if config.kind == "redis":
        return RedisStore(connected(config.url), config.namespace)
    try:
        return EmbeddedStore(None if config.path is None else Path(config.path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"system.store.path={config.path} cannot be opened as a store: {error}"
        ) from error


def open_empty_store(config: StoreConfig) -> Store:
    """Opens a store. Raises ValueError if an earlier run has left entries in it."""
    store = open_store(config)
    left = len(store.items())
    if not left:
        return store
    store.close()
    if config.kind == "redis":
        raise ValueError(
            f"the hash {config.namespace} at system.store.url={config.url} has {left} entries of "
            f"an earlier run: delete it (DEL {config.namespace}), or choose another "
            "system.store.namespace"
        )
    raise ValueError(
        f"system.store.path={config.path} has {left} entries of an earlier run: delete the file, "
        "or name another"
    )


class EmbeddedStore:
    """A dict, with a file if `path` is given.

    Each change is a line of JSON at the end of the file, written before the call returns. Opening
    the file again replays the lines. Only one process may write at a time.
    """

    def __init__(self, path: Path | None) -> None:
        self._values: dict[str, Value] = {}
        self._file = None
        if path is not None:
            end = self._replay(path) if path.exists() else 0
            self._file = path.open("ab")
            self._file.truncate(end)

    def _replay(self, path: Path) -> int:
        """Applies all whole lines; returns where the last one ends. A writer that died may have
        left half a line."""
        end = 0
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            change = json.loads(line)
            self._apply(change["key"], change["value"])
            end += len(line)
        return end

    def put(self, key: str, value: Value) -> None:
        self._change(key, dict(value))

    def delete(self, key: str) -> None:
        self._change(key, None)

    def items(self) -> dict[str, Value]:
        return dict(self._values)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _change(self, key: str, value: Value | None) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"key": key, "value": value}).encode() + b"\n")
            self._file.flush()
        self._apply(key, value)

    def _apply(self, key: str, value: Value | None) -> None:
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value


def connected(url: str) -> Any:
    """A client of the Redis at `url`. Raises UsageError if it does not answer, or if the Python
    package is missing."""
    try:
        redis: Any = import_module("redis")
    except ImportError as error:
        raise UsageError(
            "system.store.kind=redis needs the Python package redis: install it, or use "
            "system.store.kind=embedded"
        ) from error
    client = redis.Redis.from_url(url, decode_responses=True)
    try:
        client.ping()
    except redis.exceptions.RedisError as error:
        raise UsageError(f"no Redis answers at system.store.url={url}: {error}") from error
    return client


class RedisStore:
    """A Redis hash. Each operation waits for one round trip.

    client: a redis.Redis that decodes responses; only four of its operations are used.
    """

    def __init__(self, client: Any, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    def put(self, key: str, value: Value) -> None:
        self._client.hset(self._namespace, key, json.dumps(dict(value)))

    def delete(self, key: str) -> None:
        self._client.hdel(self._namespace, key)

    def items(self) -> dict[str, Value]:
        return {k: json.loads(v) for k, v in self._client.hgetall(self._namespace).items()}

    def close(self) -> None:
        self._client.close()
