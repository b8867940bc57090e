"""The coordinator in one process: heartbeats, its journal, and its endpoints under fuzzing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from systems.aqua.coordinator.app import app
from systems.aqua.coordinator.coordinator import Coordinator
from systems.aqua.coordinator.journal import Journal
from systems.aqua.coordinator.ledger import Refused
from systems.aqua.coordinator.requests import Allocate, Join, Leave, Offer
from systems.aqua.coordinator.topology import Device, Topology
from tests.examples import num_examples
from tests.unit.aqua.test_ledger import TOPOLOGY

METHODS = ("get", "put", "post", "delete")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def coordinator(clock: Clock, journal: Journal | None = None) -> Coordinator:
    return Coordinator(TOPOLOGY, journal, clock, heartbeat_timeout_s=10)


def test_leases_end_with_their_holders_heartbeat() -> None:
    clock = Clock()
    found = coordinator(clock)
    for change in (Join("p", "gpu0"), Join("c", "gpu1"), Offer("l", "p", 50)):
        found.make(change)
    found.make(Allocate("a", "c", 50))
    clock.now_s = 9
    found.heartbeat("p")
    clock.now_s = 11
    assert set(found.status()["holders"]) == {"p"}
    assert found.lease("l").free_bytes == 50
    clock.now_s = 20
    assert not found.status()["leases"]
    with pytest.raises(Refused, match="holder p has left or fallen silent"):
        found.heartbeat("p")
    with pytest.raises(Refused, match="no holder q"):
        found.heartbeat("q")


def test_a_restart_gives_every_holder_its_time_again(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "state"
    first = Journal(path)
    found = coordinator(clock, first)
    for change in (Join("p", "gpu0"), Offer("l", "p", 50)):
        found.make(change)
    first.close()
    clock.now_s = 100
    again = coordinator(clock, Journal(path))
    assert again.status() == {**found._ledger.status()}
    clock.now_s = 111
    assert not again.status()["holders"]


def test_a_line_that_its_writer_died_within_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "state"
    journal = Journal(path)
    journal.append(Join("p", "gpu0"))
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"change": "Leave", "hol')
    journal = Journal(path)
    assert list(journal.changes()) == [Join("p", "gpu0")]
    journal.append(Leave("p"))
    assert list(journal.changes()) == [Join("p", "gpu0"), Leave("p")]


def test_a_disk_that_is_full_changes_nothing(tmp_path: Path) -> None:
    class Full:
        def __init__(self, file: Any) -> None:
            self._file = file

        def write(self, line: bytes) -> int:
            return int(self._file.write(line[:5]))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    path = tmp_path / "state"
    journal = Journal(path)
    found = coordinator(Clock(), journal)
    found.make(Join("p", "gpu0"))
    before, size = deepcopy(found.status()), path.stat().st_size
    journal._file = Full(journal._file)  # type: ignore[assignment]
    with TestClient(app(found, 1000.0)) as client:
        reply = client.put("/leases/l", json={"holder": "p", "num_bytes": 5})
    assert reply.status_code == 503
    assert "nothing changed" in reply.json()["detail"]
    assert (found.status(), path.stat().st_size) == (before, size)


@pytest.mark.parametrize("line", ["no json\n", "{}\n", '{"change": "Join"}\n', "[]\n"])
def test_a_file_that_is_no_state_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "state"
    path.write_text(line)
    with pytest.raises(UsageError, match="no coordinator wrote line 1"):
        coordinator(Clock(), Journal(path))


def test_the_state_of_other_devices_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    Journal(path).append(Join("p", "gpu0"))
    other = Topology({"gpu7": Device(0, 1)}, {})
    with pytest.raises(UsageError, match="of another topology: no device gpu0"):
        Coordinator(other, Journal(path), Clock(), heartbeat_timeout_s=10)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[TestClient, Coordinator]]:
    found = coordinator(Clock())
    for change in (Join("p", "gpu0"), Join("c", "gpu1"), Offer("l", "p", 50)):
        found.make(change)
    found.make(Allocate("a", "c", 10))
    with TestClient(app(found, 1000.0), raise_server_exceptions=True) as client:
        yield client, found


def schema_values(schema: dict[str, Any], components: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a JSON schema of ours allows."""
    if "$ref" in schema:
        return schema_values(components[schema["$ref"].rpartition("/")[2]], components)
    if schema["type"] == "object":
        fields = schema["properties"]
        return st.fixed_dictionaries({n: schema_values(s, components) for n, s in fields.items()})
    if schema["type"] == "integer":
        return st.integers(schema["minimum"], schema["maximum"]) | st.integers(0, 60)
    known = st.sampled_from(["p", "c", "l", "a", "gpu0", "gpu1"])  # else all is unknown
    if "pattern" in schema:
        return known | st.from_regex(re.compile(schema["pattern"], re.ASCII), fullmatch=True)
    return known | st.text(min_size=schema["minLength"], max_size=schema["maxLength"])


def wrong(right: Any) -> st.SearchStrategy[Any]:
    """Bodies near a right one that may not be: values of other types, keys too few or too many."""
    number = st.floats(allow_nan=False, allow_infinity=False)  # neither is JSON
    junk = st.none() | st.booleans() | number | st.text() | st.integers()
    if not isinstance(right, dict) or not right:
        return junk | st.lists(junk, max_size=2)
    key = st.sampled_from(sorted(right))
    return st.one_of(
        junk,
        key.map(lambda k: {n: v for n, v in right.items() if n != k}),
        st.builds(lambda k, v: {**right, k: v}, key | st.text(), junk),
    )


@settings(
    max_examples=num_examples(120), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_no_request_breaks_it_and_wrong_ones_change_nothing(
    served: tuple[TestClient, Coordinator], data: st.DataObject
) -> None:
    """Fuzzed from its own OpenAPI schema: right requests and wrong ones, on every endpoint."""
    client, found = served
    api = client.get("/openapi.json").json()
    components = api["components"]["schemas"]
    endpoints = [(p, m) for p in sorted(api["paths"]) for m in METHODS if m in api["paths"][p]]
    path, method = data.draw(st.sampled_from(endpoints))
    operation = api["paths"][path][method]
    url, query = path, {}
    for parameter in operation.get("parameters", []):
        value = data.draw(schema_values(parameter["schema"], components) | st.text(min_size=1))
        if parameter["in"] == "path":
            url = url.replace("{%s}" % parameter["name"], quote(value, safe=""))  # noqa: UP031
        else:
            query[parameter["name"]] = value
    content: dict[str, Any] = {}
    if "requestBody" in operation:
        media = operation["requestBody"]["content"]["application/json"]["schema"]
        body = data.draw(schema_values(media, components))
        content = {"json": data.draw(st.just(body) | wrong(body))}
    before = deepcopy(found.status())
    reply = client.request(method.upper(), url, params=query, **content)
    routed = reply.status_code not in (307, 404, 405) or reply.json() != {"detail": "Not Found"}
    if routed and reply.status_code not in (307, 405):
        assert str(reply.status_code) in operation["responses"], reply.text
    assert reply.status_code < 500
    if reply.status_code >= 400:
        assert reply.json()["detail"]
        assert found.status() == before


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        ("/leases/z", "NaN", "body: "),
        ("/leases/z", '{"holder": "p", "num_bytes": NaN}', "body.num_bytes: "),
        ("/leases/z", '{"holder": "p", "num_bytes": 1, "\\ud800": 1}', "body: "),
        ("/holders/q", '{"device": "\\ud800"}', "body.device: "),
    ],
)
def test_what_json_cannot_hold_is_told_and_changes_nothing(
    path: str, content: str, reason: str
) -> None:
    found = coordinator(Clock())
    client = TestClient(app(found, 1.0), raise_server_exceptions=False)
    answer = client.put(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(reason)
    assert not found.status()["holders"]


def test_concurrent_callers_get_what_there_is_once() -> None:
    found = coordinator(Clock())
    for change in (Join("p", "gpu0"), Join("c", "gpu1"), Offer("l", "p", 50)):
        found.make(change)
    with TestClient(app(found, 1000.0)) as client, ThreadPoolExecutor(8) as pool:

        def allocate(i: int) -> str | None:
            body = {"holder": "c", "num_bytes": 5}
            reply = client.put(f"/allocations/{i % 30}", json=body)  # some of them twice
            assert reply.status_code == 200
            lease: str | None = reply.json()["lease"]
            return lease

        leases = list(pool.map(allocate, range(60)))
    status = found.status()
    assert len(status["allocations"]) == 10
    assert status["leases"]["l"]["free_bytes"] == 0
    assert leases.count("l") >= 10


def test_reclaim_over_rest() -> None:
    found = coordinator(Clock())
    with TestClient(app(found, 1000.0)) as client:
        assert client.put("/holders/p", json={"device": "gpu0"}).status_code == 200
        assert client.put("/holders/c", json={"device": "gpu1"}).status_code == 200
        client.put("/leases/l", json={"holder": "p", "num_bytes": 50})
        assert client.put("/allocations/a", json={"holder": "c", "num_bytes": 30}).json() == {
            "lease": "l"
        }
        client.post("/leases/l/reclaim", json={"holder": "p", "keep_bytes": 10})
        expected = {
            "offered_bytes": 50, "capacity_bytes": 10, "allocated_bytes": 30,
            "overdrawn_bytes": 20, "reclaimable_bytes": 20,
        }  # fmt: skip
        assert client.get("/leases/l").json() == expected
        client.delete("/allocations/a", params={"holder": "c"})
        assert client.get("/leases/l").json()["reclaimable_bytes"] == 40
        client.post("/leases/l/reclaim", json={"holder": "p", "keep_bytes": 0})
        assert client.get("/leases/l").status_code == 410
        assert client.post("/holders/c/heartbeat").status_code == 200
        assert client.delete("/holders/c").status_code == 200
        assert client.post("/holders/c/heartbeat").status_code == 410
