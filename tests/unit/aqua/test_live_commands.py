"""What the live commands are to show, shown in simulation of the same machine and load."""

from __future__ import annotations

from pathlib import Path

from tests.running import run_here


def test_a_reclaim_moves_tensors_to_dram_and_they_come_back(tmp_path: Path) -> None:
    summary = run_here(
        tmp_path / "run", "+experiment=aqua_live_elastic", "engine=sim", "hardware=local_paced",
        "engine.num_kv_blocks=1024", "figure=null",
    )  # fmt: skip
    assert summary["num_completed"] == 120
    assert summary["lease_seconds"]["leases"] > 1
    assert summary["kv_moves"]["migrate to DRAM"]["bytes"] > 0
    assert summary["kv_moves"]["migrate to lease"]["bytes"] > 0
