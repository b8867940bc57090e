"""A proxy can die: what it had accepted is in the store, and is served after a restart."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.request import Request
from systems.aegaeon.proxy import INSTANCE, Proxy, key
from systems.aegaeon.store import EmbeddedStore, Store, Value
from tests.unit.aegaeon.test_serving import assert_all_served
from tests.unit.aegaeon.trial import Trial, requests_of


class Death(Exception):
    pass


class Deployment:
    """Two instances that live on, and a proxy that dies at the `dies_at`-th step of its life, once.
    A step is before or after a write to the store."""

    def __init__(self, path: Path, dies_at: int | None = None) -> None:
        self.path, self.steps_left = path, dies_at
        self.queued: dict[str, list[Request]] = {"prefill-0": [], "decode-0": []}
        self.served: list[int] = []
        EmbeddedStore(path).put("instance/prefill-0", {"role": "prefill", "node": 0})
        EmbeddedStore(path).put("instance/decode-0", {"role": "decode", "node": 0})
        self.proxy = Proxy(MortalStore(self), self.dispatch)

    @property
    def died(self) -> bool:
        return self.steps_left is not None and self.steps_left < 0

    def step(self) -> None:
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left == -1:
                raise Death

    def dispatch(self, request: Request) -> str:
        self.queued["prefill-0"].append(request)
        return "prefill-0"

    def has(self, request_id: int) -> str | None:
        found = [n for n, q in self.queued.items() if request_id in [r.request_id for r in q]]
        return found[0] if found else None

    def restart(self) -> None:
        self.proxy = Proxy(MortalStore(self), self.dispatch)
        self.proxy.recover(self.has)

    def submit(self, request: Request) -> None:
        """Once more, as a client does, where it was not accepted."""
        try:
            self.proxy.submit(request)
        except Death:
            self.restart()
            if key(request) not in EmbeddedStore(self.path).items():
                self.proxy.submit(request)

    def prefill(self) -> None:
        request = self.queued["prefill-0"].pop(0)
        self.queued["decode-0"].append(request)
        try:
            self.proxy.moved(request, "decode-0")
        except Death:
            self.restart()

    def decode(self) -> None:
        request = self.queued["decode-0"].pop(0)
        self.served.append(request.request_id)
        try:
            self.proxy.finished(request)
        except Death:
            self.restart()


class MortalStore(EmbeddedStore):
    def __init__(self, deployment: Deployment) -> None:
        super().__init__(deployment.path)
        self._step = deployment.step

    def put(self, key: str, value: Value) -> None:
        self._step()
        super().put(key, value)
        self._step()

    def delete(self, key: str) -> None:
        self._step()
        super().delete(key)
        self._step()


def requests(count: int) -> list[Request]:
    return [Request(i, 0.5 * i, "m", 10 + i, 20) for i in range(count)]


@pytest.mark.parametrize("dies_at", range(2 * 4 * 3))  # accepted, queued, moved, finished: 3 times
def test_wherever_a_proxy_dies_each_request_is_served_once(dies_at: int, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "store.jsonl", dies_at)
    for request in requests(3):
        deployment.submit(request)
        if request.request_id > 0:  # the first is decoding as the last arrives
            deployment.prefill()
    while deployment.queued["prefill-0"]:
        deployment.prefill()
    while deployment.queued["decode-0"]:
        deployment.decode()
    assert deployment.died
    assert sorted(deployment.served) == [0, 1, 2]
    left = [name for name in EmbeddedStore(deployment.path).items() if name.startswith("request/")]
    assert len(left) <= 1  # a finish that was not written down


def test_requests_at_instances_that_are_gone_are_submitted_in_order_of_arrival(
    tmp_path: Path,
) -> None:
    deployment = Deployment(tmp_path / "store.jsonl")
    for request in reversed(requests(4)):
        deployment.submit(request)
    deployment.prefill()  # request 3: its instance lives on
    deployment.queued["prefill-0"].clear()
    EmbeddedStore(deployment.path).delete("instance/prefill-0")
    deployment.restart()
    again = deployment.queued["prefill-0"]
    assert [(r.request_id, r.arrival_s, r.model, r.prompt_tokens, r.output_tokens) for r in again] \
        == [(i, 0.5 * i, "m", 10 + i, 20) for i in range(3)]  # fmt: skip
    assert [request.request_id for request in deployment.queued["decode-0"]] == [3]


def test_only_requests_without_a_registered_instance_are_asked_for(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "store.jsonl")
    for request in (sent := requests(3)):
        deployment.submit(request)
    deployment.proxy.accept(sent[1])  # as before it was dispatched
    asked: list[int] = []
    store = EmbeddedStore(deployment.path)

    def ask(request_id: int) -> str:
        asked.append(request_id)
        return "prefill-0"

    Proxy(store, deployment.dispatch).recover(ask)
    assert asked == [1]
    assert store.items()[key(sent[1])]["instance"] == "prefill-0"


@pytest.mark.parametrize(
    ("variant", "schedule"), [("paper", "disaggregated"), ("artifact", "prefill_first")]
)
def test_a_run_whose_proxy_dies_serves_every_request_once(
    variant: str, schedule: str, tmp_path: Path
) -> None:
    """At any time: in prefills, between phases, in decodes and switches. No instance ever heard of
    the request that it died with: the store alone has it."""
    wanted = [(0.01 * i, ("narrow-0", "wide-1", "deep-2")[i % 3], 200, 40) for i in range(30)]
    first: list[Store] = []
    for number, restart_at_s in enumerate((0.0, 0.005, 0.051, 0.1, 0.2, 0.29)):
        path = tmp_path / f"store-{number}.jsonl"
        trial = Trial(
            f"system.variant={variant}", f"system.schedule={schedule}",
            f"system.store.path={path}", f"system.store.restart_at_s={restart_at_s}",
            watch=lambda system: first.append(system._proxy.store),
        )  # fmt: skip
        requests = requests_of(*wanted)
        trial.serve(requests)
        assert trial.system._proxy.store is not first[number]
        assert_all_served(trial, requests)
        assert len(trial.recorder.records) == len(requests)
        assert EmbeddedStore(path).items() == {}  # the run has ended, and nobody was forgotten


@pytest.mark.parametrize("schedule", ["disaggregated", "prefill_first"])
@pytest.mark.parametrize(("note", "registered"), [(0, False), (20, True)])
def test_a_request_that_was_queued_but_not_written_down_is_not_served_twice(
    schedule: str, note: int, registered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy dies before it writes down where a request went, for the `note`-th time.
    Where the store has lost the instances too, they are asked for whatever they have."""
    path = tmp_path / "store.jsonl"
    trial = Trial(
        f"system.schedule={schedule}", f"system.store.path={path}",
        "system.store.restart_at_s=1e9",  # here it dies by `die`, not by the clock
    )  # fmt: skip
    moved, numbers, written = Proxy.moved, count(), []

    def die(self: Proxy, request: Request, instance: str) -> None:
        if next(numbers) == note:
            store = trial.system._proxy.store
            for name in [n for n in store.items() if n.startswith(INSTANCE) and not registered]:
                store.delete(name)
            trial.system._proxy.restart()
            written.append(trial.system._proxy.store.items()[key(request)]["instance"])
        else:
            moved(self, request, instance)

    monkeypatch.setattr(Proxy, "moved", die)
    sent = requests_of(*[(0.01 * i, ("narrow-0", "wide-1")[i % 2], 200, 40)
                         for i in range(24)])  # fmt: skip
    trial.serve(sent)
    assert len(written) == 1
    assert None not in written
    assert_all_served(trial, sent)
    assert EmbeddedStore(path).items() == {}


def test_what_an_earlier_run_left_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    first = Trial(f"system.store.path={path}")
    first.serve(requests_of((0.0, "narrow-0", 50, 8_000)), until=0.3)
    with pytest.raises(ValueError, match=rf"{path} has 1 entries .* delete the file"):
        Trial(f"system.store.path={path}").serve([])


def test_a_restart_on_a_store_in_memory_is_refused() -> None:
    with pytest.raises(UsageError, match=r"restart_at_s=1 needs store\.path=FILE"):
        Trial("system.store.restart_at_s=1")
