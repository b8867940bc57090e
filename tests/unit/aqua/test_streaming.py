"""FlexGen's way of serving, simulated: what streaming takes, by place and with or without overlap;
and a lender of another model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.aqua import Asked, lent_stores, serve, system
from tests.elastic import hardware, private
from tests.running import run_here
from tests.unit.aqua.test_system import BURST, assert_all_done, bed

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


def last_iteration(bytes_per_s: float, *, overlap: bool) -> tuple[float, float, float]:
    """How long one takes, and the bytes that come and go for it by their rate."""
    on = hardware(2, pcie_latency_s=0, pcie_bytes_per_s=bytes_per_s)
    with private("sim", 2, on=on) as made:
        aqua = system(made, "flexgen", f"system.consumer.overlap={str(overlap).lower()}")
        serve(made, aqua, [Asked(0.0, 320, 4, "consumer")])
        layers = made.model.num_layers
        transfers = [e for e in made.recorder.events if e["kind"] == "transfer"]
        into, out = (
            sorted((e["start_s"], e["fields"]["bytes"]) for e in transfers if way in str(e))
            for way in ("stream in", "stream out")
        )
    took_s = into[-layers][0] - into[-2 * layers][0]
    come, gone = (sum(size for _, size in each[-layers:]) for each in (into, out))
    return took_s, come / bytes_per_s, gone / bytes_per_s


@pytest.mark.parametrize("bytes_per_s", [1e7, 1e11])  # far slower or faster than computing
def test_an_iteration_takes_what_the_closed_form_says(bytes_per_s: float) -> None:
    """With overlap max(load + compute / n, load / n + compute), without load + compute; then the
    last layer's part goes out, or every layer's."""
    layers = 4
    compute_s, _, _ = last_iteration(1e18, overlap=True)
    hidden_s, load_s, out_s = last_iteration(bytes_per_s, overlap=True)
    closed_s = max(load_s + compute_s / layers, load_s / layers + compute_s)
    assert hidden_s == pytest.approx(closed_s + out_s / layers, rel=0.05)
    open_s, load_s, out_s = last_iteration(bytes_per_s, overlap=False)
    assert open_s == pytest.approx(load_s + compute_s + out_s, rel=1e-3)


def test_a_layers_kv_comes_while_the_one_before_is_computed() -> None:
    """Where both take about as long, at least one layer's load is hidden."""
    layers = 4
    compute_s, _, _ = last_iteration(1e18, overlap=True)
    hidden_s, load_s, _ = last_iteration(1e9, overlap=True)
    assert 0.5 < load_s / compute_s < 2
    assert hidden_s < compute_s + load_s - 0.9 * load_s / layers


def test_a_context_that_streams_leaves_a_lease_that_is_asked_back_and_returns() -> None:
    """The lender's burst comes while one long prompt is being decoded out of the lease."""
    with bed() as made:
        aqua = system(made, "flexgen", "system.swap_space=neighbour", "system.max_num_seqs=16")
        whole = made.instances[1].kv.num_pages
        serve(made, aqua, [Asked(0.05, 100, 500, "consumer"), *BURST])
        assert_all_done(made)
        events = made.recorder.events
        (away,), (back,) = (
            [e for e in events if e["fields"].get("purpose") == f"migrate, {place}"]
            for place in ("DRAM", "lease")
        )
        lease = next(e for e in events if e["kind"] == "lease")
        assert 0.4 < away["start_s"] < away["end_s"] <= lease["end_s"] < back["start_s"]
        assert (
            made.instances[1].kv.num_pages + sum(store.kv.num_pages for store in lent_stores(aqua))
            == whole
        )
