"""Loads that miss ServerlessLLM's caches, by what memory a host has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.experiments.points import Point
from plots.blitzscale import scaling
from plots.blitzscale.runs import Latencies, Run
from plots.conf import spec

SIZE = spec("llama3-8b").weight_bytes


@dataclass
class Told(Run):
    told: dict[str, Any]
    sources: tuple[str, ...]

    def config(self) -> dict[str, Any]:
        return self.told

    def loads(self) -> pd.DataFrame:
        return pd.DataFrame({"source": self.sources, "start_s": 1.0})


def run(system: str, ttft_s: float, *sources: str, room: float, least: int = 1) -> Run:
    none = np.array([])
    latencies = Latencies(none, np.array([ttft_s]), none, none, none)
    told = {"hardware": {"host_memory_bytes": int(room * SIZE)}, "system": {"min_prefills": least}}
    point = Point("", {}, 1, Path(), "")
    return Told(point, "burstgpt_models", system, True, 1.0, latencies, told, sources)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    found = [
        run("serverlessllm", 4.0, "ssd-0", "host-1", "ssd-1", "host-0", room=1.5),
        run("serverlessllm", 2.0, "host-0", "host-1", "host-0", "ssd-1", room=9, least=0),
        run("blitzscale", 1.0, "gpu-0", room=9, least=0),
    ]
    monkeypatch.setattr(scaling, "runs", lambda points: found)
    monkeypatch.setattr(Point, "config_hash", lambda self: "0")
    return scaling.memory([])


def test_misses_are_told_by_what_idle_models_do_and_by_room(rows: pd.DataFrame) -> None:
    shares = rows[(rows.quantity == "share of loads that miss") & (rows.system == "serverlessllm")]
    found = {(row.idle, row.fits): row.value for row in shares.itertuples()}
    assert found == {(scaling.KEEP, 1): 0.5, (scaling.GIVE, 8): 0.25}


def test_what_is_saved_is_against_serverlessllm_with_the_same_memory(rows: pd.DataFrame) -> None:
    (saved,) = rows[rows.quantity == "share of mean TTFT saved"].itertuples()
    assert (saved.idle, saved.fits, saved.value) == (scaling.GIVE, 8, 0.5)
