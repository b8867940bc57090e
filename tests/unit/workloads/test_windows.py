"""Windows by second, and where a schedule's time begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UsageError
from tests.unit.workloads.conftest import Make


def test_a_window_of_seconds_is_half_open_and_keeps_its_offset(
    make_bare: Make, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "arrival_s,model,prompt_tokens,output_tokens\n0,a,1,1\n10,a,2,1\n15,b,3,1\n20,a,4,1\n"
    )
    schedule = make_bare("trace", f"workload.path={path}", "workload.window.seconds=[10,20]")
    assert schedule.prompt_tokens.tolist() == [2, 3]
    assert schedule.arrival_s.tolist() == [0.0, 5.0]
    last = make_bare("trace", f"workload.path={path}", "workload.window.seconds=[12,21]")
    assert last.prompt_tokens.tolist() == [3, 4]
    assert last.arrival_s.tolist() == [3.0, 8.0]
    with pytest.raises(UsageError, match="leaves no request"):
        make_bare("trace", f"workload.path={path}", "workload.window.seconds=[1,9]")


LATE = {
    "canonical": "arrival_s,model,prompt_tokens,output_tokens\n30,a,9,0\n31,a,1,1\n32.5,a,2,1\n",
    "arena": "req_time_s,adapter,prompt_len,output_len\n30,a,9,0\n31,a,1,1\n32.5,a,2,1\n",
    "aegaeon": "Request Time,Model Name,Input Length,Output Length\n"
    "00:00:30.000,a,9,0\n00:00:31.000,a,1,1\n00:00:32.500,a,2,1\n",
}


@pytest.mark.parametrize("name", sorted(LATE))
def test_a_window_of_seconds_counts_from_the_first_row_and_only_a_window_does(
    make_bare: Make, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(LATE[name])  # the first row, at 30 s, has failed
    part = make_bare("trace", f"workload.path={path}", "workload.window.seconds=[1,3]")
    assert part.arrival_s.tolist() == [0.0, 1.5]
    with pytest.raises(UsageError, match=r"last request arrives at 2\.500 s"):
        make_bare("trace", f"workload.path={path}", "workload.window.seconds=[30,33]")
    assert make_bare("trace", f"workload.path={path}").arrival_s.tolist() == [31.0, 32.5]


def test_a_file_that_counts_from_another_time_starts_at_its_first_row(
    make_bare: Make, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    header = "arrival_s,model,prompt_tokens,output_tokens\n"
    path.write_text(f"{header}1700000000,a,1,1\n1700000002.5,a,2,1\n")
    schedule = make_bare("trace", f"workload.path={path}")
    assert schedule.arrival_s.tolist() == [0.0, 2.5]
    shift = "arrivals counted from the first, which the file has at 1700000000.000 s"
    assert schedule.provenance.steps == [shift]
    path.write_text(f"{header}60,a,1,1\n61,a,2,1\n")
    schedule = make_bare("trace", f"workload.path={path}")
    assert schedule.arrival_s.tolist() == [60.0, 61.0]
    assert schedule.provenance.steps == []


def test_a_schedule_of_ours_is_replayed_from_its_own_start(make_bare: Make, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,model,prompt_tokens,output_tokens\n0,a,1,1\n50,a,2,1\n")
    saved = tmp_path / "schedule.parquet"
    late = make_bare("trace", f"workload.path={path}")
    late.arrival_s = late.arrival_s + 100.0
    late.save(saved)
    assert make_bare("trace", f"workload.path={saved}").arrival_s.tolist() == [100.0, 150.0]


@pytest.mark.parametrize("window", ["rows=[0,2]", "seconds=[0,2]"])
def test_a_window_of_failed_rows_alone_says_why_it_is_empty(
    make_bare: Make, tmp_path: Path, window: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,model,prompt_tokens,output_tokens\n0,a,1,0\n1,a,2,0\n5,a,3,1\n")
    with pytest.raises(UsageError, match="2 rows with 0 prompt or output tokens are left out"):
        make_bare("trace", f"workload.path={path}", f"workload.window.{window}")
