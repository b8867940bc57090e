"""BlitzScale and ServerlessLLM in two windows of one trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.experiments.points import Point
from plots.blitzscale import settings
from plots.blitzscale.runs import Latencies, Run

SHORT, LONG = settings.WINDOWS


@dataclass
class Told(Run):
    sources: tuple[str, ...]

    def loads(self) -> pd.DataFrame:
        return pd.DataFrame({"source": self.sources, "start_s": 1.0})

    def slots(self) -> pd.DataFrame:
        """A prefill on two GPUs from 10 s before the window, and a decode on one."""
        held: dict[str, Any] = {"start_s": [-10.0, 5.0], "end_s": [20.0, 10.0]}
        return pd.DataFrame(held | {"role": ["prefill", "decode"], "num_devices": [2, 1]})


def run(experiment: str, system: str, ttft_s: float, *sources: str) -> Run:
    none = np.array([])
    latencies = Latencies(none, np.array([ttft_s]), none, np.array([0.5]), none)
    point = Point(experiment, {}, 1, Path(), "")
    return Told(point, "azure_code", system, True, 1.0, latencies, sources)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Over two windows: ServerlessLLM misses in the longer one alone."""
    found = [
        run(experiment, system, ttft_s, *sources)
        for experiment, missed in ((LONG, "ssd-0"), (SHORT, "host-0"))
        for system, ttft_s, sources in (
            ("blitzscale", 1.0, ("gpu-0",)),
            ("serverlessllm", 2.0 if experiment == SHORT else 4.0, ("host-0", missed)),
            ("serverlessllm_30s", 5.0, ("ssd-0", missed)),
        )
    ]
    monkeypatch.setattr(settings, "runs", lambda points, systems: found)
    manifest = {"choices": {"system": "blitzscale"}}
    monkeypatch.setattr(Point, "manifest", lambda self: manifest)
    return settings.by_window([])


def test_loads_latency_and_gpus_are_told_by_window(rows: pd.DataFrame) -> None:
    theirs = rows[rows.system == "serverlessllm"].set_index(["quantity", "window"]).value
    short, long = settings.WINDOWS.values()
    for window, missed, ttft_s in ((short, 0.0, 2.0), (long, 0.5, 4.0)):
        assert theirs["share of loads from SSD", window] == missed
        assert theirs["mean TTFT", window] == ttft_s
        assert theirs["loads", window] == 2
        assert theirs["GPU time", window] == 2 * 20 + 5
        assert theirs["mean GPUs", window] == 45 / 20


def test_what_is_saved_is_of_the_same_window(rows: pd.DataFrame) -> None:
    saved = rows[(rows.quantity == "share of mean TTFT saved") & (rows.against == "serverlessllm")]
    assert dict(zip(saved.window, saved.value, strict=True)) == {
        "300 s, as Fig. 17": 0.5, "900 s": 0.75,
    }  # fmt: skip


def test_the_table_has_a_line_for_each_window_and_system(rows: pd.DataFrame) -> None:
    figure, said = settings.window.plot(rows)
    assert "AzureCode" in said
    assert figure.axes
