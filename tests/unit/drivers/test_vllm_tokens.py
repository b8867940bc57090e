"""engine=vllm keeps the ids of its answers' tokens where it is asked to: `faults` compares them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from harness.clock import WallLoop
from harness.configuration.config import build
from harness.configuration.options import CONF
from harness.drivers import vllm
from harness.faulting.outcome import harm
from harness.placement import dedicated
from harness.records.record import Recorder
from harness.records.tables import requests_table
from harness.request import Request
from harness.selftest.golden_server import GoldenServer
from harness.selftest.script import Script
from tests.unit.drivers.endpoint import experiment_for, send_all
from tests.unit.drivers.specs import HARDWARE

pytestmark = pytest.mark.live
ASKED = 6
SHORTEST = 5  # prompt, of request 0; each next one has a token more


class Replayed:
    """Three requests to one server, of which the last breaks off after two tokens. `first`: the ids
    with which answers begin."""

    def __init__(
        self, run_dir: Path, monkeypatch: pytest.MonkeyPatch, first: tuple[int, ...], **words: Any
    ) -> None:
        run_dir.mkdir()
        requests = [Request(i, 0.0, "default", SHORTEST + i, ASKED) for i in range(3)]
        scripts = [Script(token_ids=first[i], cut_at=2 if i == 2 else None) for i in range(3)]
        loop, recorder = WallLoop(), Recorder(requests)
        experiment = experiment_for(loop, recorder, requests, run_dir)
        experiment.placements = dedicated(experiment.models, HARDWARE)[:1]
        node = yaml.safe_load((CONF / "engine/vllm.yaml").read_text())
        with GoldenServer(lambda body: scripts[len(body["prompt"]) - SHORTEST]) as golden:
            server = SimpleNamespace(
                name="vllm-0", url=golden.url.removesuffix("/v1"), pids=list,
                watch=lambda told: None, victim=lambda loop, expect: None,
            )  # fmt: skip
            monkeypatch.setattr(vllm, "running", lambda *_: nullcontext([server]))
            monkeypatch.setattr(vllm, "_warm_up", lambda *_: None)
            monkeypatch.setattr(vllm, "_resolved", lambda *_: {})
            with build(node | words, "engine").start(experiment) as cluster:
                send_all(cluster.endpoints[0], loop, recorder, requests)
        self.bodies = [answer.body for answer in golden.answers]
        self.rows = requests_table(recorder).to_pylist()
        self.file = run_dir / "tokens.parquet"

    @property
    def ids(self) -> dict[int, list[int]]:
        table = pq.read_table(self.file).to_pydict()
        return dict(zip(table["request_id"], table["token_ids"], strict=True))


def test_a_wrong_token_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Replayed(tmp_path / "before", monkeypatch, (100, 200, 300), token_ids=True)
    after = Replayed(tmp_path / "after", monkeypatch, (100, 201, 301), token_ids=True)
    assert all(body["return_token_ids"] for body in before.bodies)
    assert before.ids == {0: [*range(100, 106)], 1: [*range(200, 206)], 2: [300, 301]}
    found = harm(after.rows, before.rows, 0.0, after.ids, before.ids, 1.5)
    assert (found.wrong, found.compared) == (1, 2)  # what broke off is not compared


def test_other_runs_ask_for_no_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Replayed(tmp_path / "run", monkeypatch, (100, 200, 300))
    assert [row["status"] for row in found.rows] == ["completed", "completed", "failed"]
    assert all("return_token_ids" not in body for body in found.bodies)
    assert not found.file.exists()
