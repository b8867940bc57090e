"""The dashboard: what it tells of the last ten seconds, and where it is not shown."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from harness.errors import UsageError
from harness.records.record import Segment
from harness.running.dashboard import Dashboard, Window
from tests.running import run_here
from tests.unit.metrics.service import Service

SIM = ("+system=vllm", "+workload=burstgpt", "engine=sim", "hardware=a100x1", "model=llama2-7b",
       "workload.num_requests=5", "figure=null")  # fmt: skip


def test_the_window_forgets_what_is_older_than_ten_seconds() -> None:
    service = Service((0.0, 3), (1.0, 2), (30.0, 1))
    window = Window(service.recorder)
    service.complete(0, 0.5, 0.6, 0.8)
    window.look(1.0)
    assert list(window.ttft_s) == [(0.5, 0.5)]
    assert [value for _, value in window.tbt_s] == pytest.approx([0.1, 0.2])
    service.send(1)
    service.tokens(1, 9.0)
    window.look(9.0)
    service.tokens(1, 9.4)
    window.look(11.0)
    assert [value for _, value in window.ttft_s] == [8.0]
    assert [value for _, value in window.tbt_s] == pytest.approx([0.4])
    assert window.rates.per_s() == pytest.approx((0.1, 0.0, 0.2))


def test_a_step_of_many_tokens_counts_its_gaps() -> None:
    service = Service((0.0, 5))
    service.send(0)
    service.recorder.segment([service.requests[0]], Segment(1.0, 5, 0.1, 0.0), "gpu0")
    window = Window(service.recorder)
    window.look(2.0)
    assert [value for _, value in window.ttft_s] == pytest.approx([1.1])
    assert [value for _, value in window.tbt_s] == pytest.approx([0.1] * 4)


def test_every_kind_of_instance_has_a_row() -> None:
    service = Service((0.0, 1))
    service.recorder.event("switch", "p-0", 0.0, 1.0, hidden=False)
    pool = SimpleNamespace(free_blocks=25, num_blocks=100, free_pages=1, num_pages=2)
    spec = SimpleNamespace(name="tiny", num_layers=4)
    elastic = SimpleNamespace(name="e-0", model=spec, kv=pool, lost=None, resident={0, 1})
    cluster: Any = SimpleNamespace(
        instances=[SimpleNamespace(name="i-0", model=spec, kv=pool)],
        pool=[SimpleNamespace(name="p-0", model="m-1", kv=lambda model: pool, prefetching="m-2")],
        endpoints=[SimpleNamespace(name="v-0", models=["m-3"])],
        elastic=SimpleNamespace(instances=[elastic], role=lambda instance: "prefill"),
    )
    shown = Dashboard("a x b", service.recorder, cluster, Console(file=io.StringIO(), height=40))
    shown._window.look(1.0)
    lines = shown.drawn(1.0).plain.splitlines()
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert "75%" in rows["i-0"]
    assert "m-1" in rows["p-0"]
    assert rows["p-0"].endswith("loading m-2")
    assert "%" not in rows["v-0"]
    assert rows["e-0"].endswith("50%  prefill, 2 of 4 layers")
    assert rows["switches"].endswith(" 1")


def test_away_from_a_terminal_there_are_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.running.progress.PLAIN_LINE_S", 0.0)
    run_here(tmp_path / "run", *SIM, progress="live")
    said = capsys.readouterr().err
    assert "progress=live needs a terminal: a line now and then instead" in said
    assert "1/5 done, " in said


def test_on_a_terminal_the_dashboard_is_drawn_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=100, height=30)
    monkeypatch.setattr("harness.running.serve.Console", lambda **options: terminal)
    run_here(tmp_path / "run", *SIM, progress="live")
    assert "VllmSystem x burstgpt" in out.getvalue()
    assert "KV in use" in out.getvalue()


def test_another_word_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="progress=lively is unknown; valid: true, false, live"):
        run_here(tmp_path / "run", *SIM, progress="lively")
