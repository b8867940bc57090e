"""How a run scaled, of events whose answers are known by hand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from harness.records.run_folder import FinishedRun
from harness.records.scaling import Scaling, merged, scaling_of
from plots import report
from plots import scaling as scaling_picture
from plots.scaling import draw, episode_rows, said, scaling, tables
from plots.style import figure
from tests.running import run_here
from tests.unit.metrics.service import Service, write_run


def found(service: Service, num_devices: float = 2.0, ttft_s: float = 1.0) -> Scaling:
    made = scaling_of(
        service.table(), service.recorder.events, ttft_s=ttft_s, num_devices=num_devices
    )
    assert made is not None
    return made


def growing() -> Service:
    """One instance serves; a second of two devices is taken at 2 s, has its weights from 2.5 s to
    3.5 s and serves from 4 s to 10 s."""
    service = Service((0.0, 2), (1.5, 2), (3.0, 2), (5.0, 2), (8.5, 2))
    event = service.recorder.event
    event("slot", "a", 0.0, 10.0, role="serving", num_devices=1, occupied_s=4.0)
    event("slot", "b", 2.0, 4.0, role="loading", num_devices=2, occupied_s=0.0)
    event("load", "b", 2.5, 3.5, layers=[0], source="a")
    event("transfer", "b", 2.5, 3.5, source="a", purpose="weights", bytes=1, complete=True)
    event("transfer", "b", 3.25, 3.75, source="a", purpose="kv", bytes=1, complete=True)
    event("load", "a", 0.0, 3.0, layers=[0], source="dram")
    event("slot", "b", 4.0, 10.0, role="serving", num_devices=2, occupied_s=1.5)
    service.complete(0, 0.5, 0.6)
    service.complete(1, 2.0, 2.1)  # within the SLO
    service.complete(2, 4.5, 4.6)  # late, and waited for the start
    service.complete(3, 7.0, 7.1)  # late, but nothing scaled meanwhile
    service.complete(4, 9.0, 9.1)
    return service


def test_gpu_seconds_are_those_of_held_slots_by_role() -> None:
    made = found(growing())
    assert made.held_gpu_s == {"serving": 10.0 + 2 * 6.0, "loading": 2 * 2.0}
    assert made.used_gpu_s == 4.0 + 2 * 1.5
    assert made.roles["serving"] == [(0.0, 10.0, 1), (4.0, 10.0, 2)]


def test_a_start_up_splits_into_parts_that_add_up() -> None:
    (start,) = found(growing()).episodes
    assert (start.kind, start.start_s, start.end_s) == ("start", 2.0, 4.0)
    # KV counts where no weights came; the load of another instance counts nowhere.
    assert start.parts == pytest.approx(
        {"allocate": 0.5, "engine": 0.0, "weights": 1.0, "KV": 0.25, "rest": 0.25}
    )
    assert start.first_batch_s is None  # tokens came from gpu0 alone


def test_only_late_requests_that_waited_meanwhile_are_hurt() -> None:
    made = found(growing())
    assert made.late.tolist() == [False, False, True, True, False]
    assert made.hurt.tolist() == [False, False, True, False, False]
    # It began at 2.0; the last who waited meanwhile, request 2, had its token at 4.5.
    assert made.stable_s == [pytest.approx(2.5)]


def test_who_never_had_a_token_keeps_a_scaling_from_being_stable() -> None:
    service = growing()
    late = Service((3.0, 2))
    late.send(0)
    late.fail(0)
    late.recorder.events = service.recorder.events
    made = found(late)
    assert made.stable_s == [float("inf")]
    assert made.hurt.tolist() == [True]


def switching() -> Service:
    service = Service((0.0, 2), (0.0, 2))
    event = service.recorder.event
    event("run", "a", 0.0, 1.0, model="m", phase="prefill", requests=[0])
    event("switch", "a", 1.0, 3.0, model="other", before="m", hidden=False)
    event("collect", "a", 1.0, 1.5)
    event("prefetch", "a", 0.5, 2.0, model="other", complete=True)
    event("prefetch", "a", 2.0, 3.0, model="m", complete=True)  # for the switch after this one
    event("swap_in", "a", 2.0, 2.75, model="other", request_id=1)
    event("run", "a", 3.0, 3.5, model="other", phase="decode", requests=[1])
    event("run", "b", 0.0, 1.0, model="m", phase="decode", requests=[0])
    service.complete(0, 3.2, 4.0)
    service.complete(1, 0.5, 4.0)
    return service


def test_a_switch_splits_by_what_its_model_waited_for() -> None:
    made = found(switching())
    (switch,) = made.episodes
    assert switch.parts == pytest.approx(
        {"allocate": 0.0, "engine": 0.5, "weights": 0.5, "KV": 0.75, "rest": 0.25}
    )
    assert switch.first_batch_s == pytest.approx(0.5)
    assert [*episode_rows(made)] == [
        ["switch", "1", "2,000", "2,000", "0", "500", "500", "750", "250", "500"]
    ]
    assert made.used_gpu_s == pytest.approx(2.5)
    assert made.held_gpu_s == {"decode and prefill": 4.0, "decode": 4.0}
    assert not made.hurt.any()  # the late one is of model m


def test_leases_are_told_and_hold_no_gpu() -> None:
    service = Service((0.0, 2))
    service.complete(0, 0.5, 2.0)
    service.recorder.event("slot", "a", 0.0, 2.0, role="lender", num_devices=1)
    service.recorder.event("lease", "a", 0.5, 1.5, bytes=8)
    made = found(service)
    assert made.held_gpu_s == {"lender": 2.0}
    assert made.episodes == []
    told = said(made, service.summary())
    assert told["leases"] == "1, 0.5 at a time"
    assert told["GPU seconds used"] == "not known: not recorded"  # as in an earlier version's run


def test_a_run_without_slots_or_batches_did_not_scale() -> None:
    service = Service((0.0, 1))
    service.complete(0, 0.5)
    assert scaling_of(service.table(), [], ttft_s=1.0, num_devices=1.0) is None


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=8))
def test_merged_spans_cover_the_same_and_lie_apart(spans: list[tuple[int, int]]) -> None:
    given_s = [(float(start), float(start + length)) for start, length in spans]
    union = merged(given_s)
    assert all(end < start for (_, end), (start, _) in pairwise(union))
    for at in range(51):
        covered = [any(start <= at / 2 <= end for start, end in each) for each in (given_s, union)]
        assert covered[0] == covered[1]


@pytest.mark.parametrize("engine", ["sim", "torch"])
def test_table_report_and_picture_tell_of_a_finished_run(tmp_path: Path, engine: str) -> None:
    run = write_run(tmp_path / "run", growing(), engine_name=engine)
    loaded = FinishedRun.load(run)
    made = scaling(loaded)
    assert made is not None
    (row,) = episode_rows(made)
    assert row == ["start", "1", "2,000", "2,000", "500", "0", "1,000", "250", "250", "none"]
    told = said(made, loaded.summary)
    assert told["GPU seconds held"] == "loading 4.00, serving 22.0"
    assert told["GPU seconds used"] == "7.00"
    assert told["late while scaling"] == "1 of 2 late, of 5 requests"
    report.draw(run)
    page = (run / "report.html").read_text()
    assert "<td>start</td>" in page
    assert "1 of 2 late, of 5 requests" in page
    assert 'alt="scaling.png"' in page
    (table, whole) = tables([run])
    assert [*table.columns[2].cells] == ["1"]
    assert "1 of 2 late, of 5 requests" in [*whole.columns[2].cells]


@pytest.mark.parametrize(
    ("system", "roles", "kinds"),
    [
        ("aegaeon", {"decode", "prefill"}, ["switch"]),
        ("serverlessllm", {"decode and prefill"}, ["switch"]),
        ("blitzscale", {"decode", "prefill"}, []),
        ("distserve", {"decode", "prefill"}, []),
        ("llumnix", {"serving"}, []),
        ("kunserve", {"serving"}, []),
        ("aqua", {"consumer", "lender"}, []),
    ],
)
def test_each_elastic_system_tells_of_its_instances(
    tmp_path: Path, system: str, roles: set[str], kinds: list[str]
) -> None:
    """Simulated, of a few requests: BlitzScale need not grow for them."""
    few = ("+workload=burstgpt", "workload.num_requests=16", "engine=sim")
    more = ("model_set=tiny",) if kinds else ()
    run_here(tmp_path / "run", f"+system={system}", *few, *more)
    run = FinishedRun.load(tmp_path / "run")
    made = scaling(run)
    assert made is not None
    assert made.held_gpu_s.keys() >= roles
    assert all(made.held_gpu_s[role] > 0 for role in roles)
    assert [row[0] for row in episode_rows(made)] == kinds or not kinds
    assert said(made, run.summary)["GPU seconds used"] != "0"


def test_roles_and_leases_are_drawn_where_nothing_scaled(tmp_path: Path) -> None:
    service = Service((0.0, 2))
    service.complete(0, 0.5, 2.0)
    assert draw(write_run(tmp_path / "plain", service)) is None
    service.recorder.event("slot", "a", 0.0, 2.0, role="lender", num_devices=1)
    service.recorder.event("slot", "b", 0.0, 2.0, role="consumer", num_devices=1)
    service.recorder.event("lease", "a", 0.5, 1.5, bytes=8)
    made = scaling(FinishedRun.load(path := write_run(tmp_path / "run", service)))
    assert made is not None
    _, (axes,) = figure(1, 1, width=3, height=2)
    scaling_picture._roles(axes, made)
    assert axes.get_legend_handles_labels()[1] == ["consumer", "lender", "leases of lent memory"]
    (leases,) = axes.lines
    assert leases.get_xydata().tolist() == [[0, 0], [0.5, 1], [1.5, 0], [2, 0]]
    assert draw(path) == path / "scaling.png"
    with_episodes = draw(write_run(tmp_path / "grown", growing()))
    assert with_episodes is not None
    low, high = (imread(each).shape[0] for each in (path / "scaling.png", with_episodes))
    assert high > 1.5 * low  # a second panel
