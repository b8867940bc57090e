"""The client's certificate: what it covers, when it counts, and what a run beyond it is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.drivers.io_thread import IoThread
from harness.records import certificate
from harness.records.journal import Journal
from harness.records.manifest import machine
from harness.records.sources import content
from harness.records.token_log import TokenLog
from harness.running.client import Client
from harness.running.closed_loop import ClosedLoop
from harness.running.session_loop import SessionLoop
from harness.selftest.certify import CLIENT, LEVELS, SERVER, WITHIN, says, summed_up

COVERS = {
    "measured_utc": "2026-11-27T04:00:00.000+00:00", "limit_ms": 5.0, "max_streams": 2,
    "max_rate_per_s": 3, "max_tokens_per_s": 8, "ttft_error_ms": 2.9, "tbt_error_ms": 0.7,
}  # fmt: skip
HEART = {"kind": "heartbeat", "fields": {}}
CARRIED = {"kind": certificate.EVENT, "fields": COVERS}


def log(*spans: tuple[float, float]) -> TokenLog:
    """A request of two tokens for each (sent, last token)."""
    sent_s = np.array([sent for sent, _ in spans])
    num = np.full(len(spans), 2)
    return TokenLog(
        arrival_s=sent_s, sent_s=sent_s, asked_tokens=num, num_tokens=num,
        start=np.arange(len(spans)) * 2, times_s=np.ravel([(last, last) for _, last in spans]),
        chunk_tokens=np.ones(2 * len(spans), int), status=np.array(["completed"] * len(spans)),
        models=["m"], of_model=np.zeros(len(spans), int),
    )  # fmt: skip


def test_a_run_asks_for_its_most_streams_and_its_busiest_second() -> None:
    of = certificate.demand(log((0.0, 1.0), (0.5, 9.0), (0.9, 2.0), (1.6, 3.0), (5.0, 6.0)))
    assert of == {"streams": 3, "rate_per_s": 3, "tokens_per_s": 2}
    one = certificate.demand(log((0.0, 1.0), (2.0, 3.0)))
    assert one == {"streams": 1, "rate_per_s": 1, "tokens_per_s": 2}
    assert set(certificate.demand(log()).values()) == {0}


def test_a_run_beyond_its_certificate_is_told_so() -> None:
    three = log((0.0, 9.0), (1.0, 9.0), (2.0, 9.0))
    (told,) = certificate.beyond(three, [HEART, CARRIED])
    assert told.startswith("3 streams at once, of which this machine's certificate (2026-11-27)")
    fast = log(*((i * 0.1, i * 0.1 + 0.05) for i in range(4)))
    (told,) = certificate.beyond(fast, [HEART, CARRIED])
    assert "4 requests within a second" in told
    assert "covers 3: the client's own error may be over 5 ms" in told
    bursts = log((0.0, 2.1), (1.0, 2.2), (2.15, 2.3), (2.25, 2.4), (2.35, 2.5))
    (told,) = certificate.beyond(bursts, [HEART, CARRIED])
    assert told.startswith("10 tokens within a second, of which")
    earlier = {key: value for key, value in COVERS.items() if key != "max_tokens_per_s"}
    assert not certificate.beyond(bursts, [HEART, {"kind": certificate.EVENT, "fields": earlier}])


@pytest.mark.parametrize("events", [[CARRIED], []])
def test_nothing_is_said_without_a_socket(events: list[Any]) -> None:
    assert not certificate.beyond(log((0.0, 9.0), (1.0, 9.0), (2.0, 9.0)), events)


def test_a_run_without_a_certificate_is_told_how_to_make_one() -> None:
    (told,) = certificate.beyond(log((0.0, 9.0)), [HEART])
    assert "python -m harness selftest --certificate" in told


def test_a_certificate_counts_on_its_machine_and_for_its_client(tmp_path: Path) -> None:
    assert certificate.of_this_machine(tmp_path) is None
    own = {**COVERS, "machine": machine(), "client": certificate.client_code(), "levels": []}
    path = tmp_path / certificate.FILE
    path.write_text(json.dumps(own))
    assert certificate.of_this_machine(tmp_path) == COVERS
    for changed in ({"machine": machine() | {"cpu": "another"}}, {"client": "0" * 12}):
        path.write_text(json.dumps(own | changed))
        assert certificate.of_this_machine(tmp_path) is None


@pytest.mark.parametrize("sender", [Client, ClosedLoop, SessionLoop, IoThread, Journal])
def test_another_file_that_sends_or_records_is_another_client(
    sender: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, file = certificate.client_code(), f"{sender.__module__.replace('.', '/')}.py"
    edited = "harness.records.certificate.content"
    monkeypatch.setattr(edited, lambda path: "edited" if path == file else content(path))
    assert certificate.client_code() != before


def test_the_client_is_what_an_endpoint_sends_and_reads_with_and_nothing_of_servers() -> None:
    """By what Python loads of the drivers for an endpoint."""
    told = "import sys, harness.drivers.http_endpoint; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", told], text=True).split()
    drivers = {name for name in loaded if name.startswith("harness.drivers.")}
    hashed = {f"harness.{name.replace('/', '.')}" for name in certificate.SENDERS}
    assert len(drivers) > 5
    assert drivers <= hashed
    of_servers = ("server", "supervisor", "fleet", "vllm", "vllm_command", "engine_metrics")
    assert not {f"harness.drivers.{name}" for name in of_servers} & hashed
    assert all(content(f"harness/{name}.py") for name in certificate.SENDERS)


@pytest.mark.parametrize(
    ("off_ms", "server_lag_ms", "expected"),
    [(4.9, 0.5, WITHIN), (-5.1, 0.5, CLIENT), (5.1, 5.1, SERVER), (1.0, 80.0, WITHIN)],
)
def test_a_level_says_who_was_late(off_ms: float, server_lag_ms: float, expected: str) -> None:
    assert says({"ttft_p99_off_ms": off_ms, "tbt_p99_off_ms": 0.1}, server_lag_ms) == expected


def test_a_certificate_covers_what_is_within_up_to_the_first_level_that_is_not() -> None:
    def row(load: str, level: int, said: str) -> dict[str, Any]:
        off = {f"{name}_off_ms": -0.01 * level for name in ("ttft_mean", "ttft_p99", "tbt_mean")}
        asked = {"streams": level + 1, "rate_per_s": level, "tokens_per_s": 10 * level}
        row = {"load": load, "level": level, "tbt_p99_off_ms": 1.5, "says": said}
        return {**row, **off, **asked}

    rows = [
        row("streams", 256, SERVER), row("streams", 64, WITHIN), row("streams", 1024, WITHIN),
        row("streams", 16, WITHIN), row("rate", 20, CLIENT), row("rate", 50, WITHIN),
    ]  # fmt: skip
    assert summed_up(rows) == {
        "max_streams": 65, "max_rate_per_s": 0, "max_tokens_per_s": 640,
        "ttft_error_ms": pytest.approx(0.64), "tbt_error_ms": 1.5,
    }  # fmt: skip
    assert summed_up([])["ttft_error_ms"] is None


def test_the_streams_of_a_level_are_open_at_once() -> None:
    for level in LEVELS:
        rows = level.rows()
        assert rows[0][0] >= 0.0
        if level.load == "streams":
            lasts_s = 0.1 + (rows[0][3] - 1) * level.gap_s
            most = certificate.demand(log(*((at, at + lasts_s) for at, *_ in rows)))["streams"]
            assert 0.95 * level.level <= most <= 1.05 * level.level + 1
