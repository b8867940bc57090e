"""Kernels are waited for before anybody is told that a batch is over, by the order of calls to a
recorded stand-in for torch.cuda. Reading tokens waits for them; these cases have none to read."""

from __future__ import annotations

import json
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from harness.engine import worker
from harness.engine.block_tables import FIRST_BLOCK
from harness.engine.config import TorchElasticConfig
from harness.engine.in_flight import InFlight
from harness.engine.paced_links import LinkPath
from harness.engine.transport import LENGTHS, Connection
from harness.engine.work import BatchWork, Chunk, Part, StageWork
from tests.unit.engine.serving import SPEC, elastic, loaded, runner_of
from tests.unit.engine.stand_in_cuda import Calls, calls_answer

CHUNK = BatchWork([Chunk(0, 3, False)], [], [1, 2, 3], [[FIRST_BLOCK]])  # of a longer prompt


def test_the_kv_of_a_chunk_that_samples_nothing_is_there(calls: Calls) -> None:
    runner = runner_of(loaded(SPEC), SPEC)
    calls.made.clear()
    assert next(iter(runner.steps(CHUNK, 1))) == []
    assert calls.made[-1] == "wait"


@pytest.mark.parametrize("keeps", [False, True])
def test_so_it_is_on_an_elastic_instance_and_where_activations_are_kept(
    calls: Calls, keeps: bool
) -> None:
    """Another stream passes activations on, and may move the KV."""
    jobs: list[Any] = []
    stream = SimpleNamespace(put=jobs.append)
    loop: Any = SimpleNamespace(
        answer=calls_answer(calls), stream=lambda name: stream,
        begin=lambda seq: threading.Event(),
    )  # fmt: skip
    config = TorchElasticConfig(
        paced=False, layer_s=0.0, token_s=0.0, chunk_bytes=1, host_kv_bytes=1
    )
    nobody: Any = None
    runner = elastic(SPEC, 8, 8).runner
    in_flight = InFlight("own", runner, config, loop, nobody)
    groups = {g: [Part("own", [0], [], [[FIRST_BLOCK + g]])] for g in range(SPEC.num_layers)}
    work = StageWork(
        1, CHUNK, range(SPEC.num_layers), 1, 1, None, groups, previous=None, following=None,
        first="own", following_path=LinkPath({}, None, 0.0), holder_paths={}, keeps=keeps,
    )  # fmt: skip
    calls.made.clear()
    in_flight._begin({"work": work, "seq": 1})
    jobs[0]()
    assert calls.made[calls.made.index("answer") - 1] == "wait"


def test_a_worker_is_ready_once_its_memory_is(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the main thread has written is read in streams of others."""
    harness, own = socket.socketpair()
    monkeypatch.setattr("sys.argv", ["worker", str(own.detach()), json.dumps({"parent": 0})])
    for name in ("_die_with", "keep_freed_memory", "_beat"):
        monkeypatch.setattr(worker, name, lambda *args: None)
    monkeypatch.setattr("os.nice", lambda by: None)
    monkeypatch.setattr("signal.signal", lambda *args: None)
    monkeypatch.setattr(worker, "of_kind", lambda kind, value: SimpleNamespace(device="cpu"))
    empty = SimpleNamespace(ready={}, in_streams={}, at_once={})
    monkeypatch.setattr(worker, "contents", lambda *args: calls.made.append("contents") or empty)
    monkeypatch.setattr(Connection, "send", lambda self, said: calls.made.append(said["op"]))
    setup = json.dumps({"op": "setup", "num_threads": 1, "config": {}, "index": 0}).encode()
    harness.sendall(LENGTHS.pack(len(setup), 0) + setup)
    harness.close()
    worker.main()
    assert calls.made == ["contents", "wait for all", "ready"]
