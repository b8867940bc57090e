"""FlexGen's way of serving, simulated: what streaming takes, by place and with or without overlap;
and a lender of another model."""

from __future__ import annotations

from pathlib import Path

import pytest

from systems.aqua import system
from systems.aqua.layered_streaming import LayeredStreamer
from tests.running import run_here

WORDS = (
    "+workload=burstgpt", "engine=sim", "hardware=h100x8", "model=llama2-7b", "figure=null",
    "workload.num_requests=6", "workload.lengths.max_output_tokens=40", "tracking=none",
    "+model@system.lender.model=llama3.2-1b", "system.lender.every=null",
)  # fmt: skip


def tpot_s(folder: Path, *words: str) -> tuple[float, dict[str, int]]:
    summary = run_here(folder, *WORDS, *words)
    assert summary["num_completed"] == 6
    return summary["tpot_s"]["mean"], summary["moved_bytes"]


@pytest.mark.parametrize("place", ["dram", "neighbour"])
def test_overlap_hides_copies_behind_computing(tmp_path: Path, place: str) -> None:
    words = ("+system=flexgen", f"system.swap_space={place}")
    hidden, moved = tpot_s(tmp_path / "on", *words)
    open_, same = tpot_s(tmp_path / "off", *words, "system.consumer.overlap=false")
    assert hidden < open_
    where = "DRAM" if place == "dram" else "lease"
    assert moved[f"stream in, {where}"] == pytest.approx(same[f"stream in, {where}"], rel=1e-3)
    assert moved[f"stream in, {where}"] > moved[f"stream out, {where}"] > 0


def test_a_neighbour_is_faster_than_dram(tmp_path: Path) -> None:
    dram, _ = tpot_s(tmp_path / "dram", "+system=flexgen")
    near, _ = tpot_s(tmp_path / "near", "+system=flexgen", "system.swap_space=neighbour")
    assert near < dram


@pytest.mark.parametrize("overlap", [True, False])
def test_the_closed_form_is_the_loop_over_layers(
    tmp_path: Path, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for latency, which the loop pays for each layer and the closed form once."""
    words = (
        "+system=flexgen", f"system.consumer.overlap={overlap}", "hardware.pcie_latency_s=0",
    )  # fmt: skip
    closed, moved = tpot_s(tmp_path / "closed", *words)
    monkeypatch.setattr(system, "Streamer", LayeredStreamer)
    loop, same = tpot_s(tmp_path / "loop", *words)
    assert loop == pytest.approx(closed, rel=0.05)
    # whole blocks go out where the closed form counts tokens
    assert same["stream in, DRAM"] == pytest.approx(moved["stream in, DRAM"], rel=0.05)
