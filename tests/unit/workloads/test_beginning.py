"""The beginning of a trace in place of the whole, where it is enough."""

from __future__ import annotations

import pytest

from harness.errors import UsageError
from tests.unit.workloads.conftest import AS_IT_IS, Make


def test_the_beginning_of_a_trace_stands_in_where_it_is_enough(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    schedule = make("burstgpt")
    cut = make("burstgpt", "workload.dataset.file=first400")
    assert schedule.sha256() == cut.sha256()
    assert len(schedule) == 80
    assert schedule.rate_per_s == pytest.approx(1.5)
    about = schedule.provenance
    assert not about.synthetic
    assert about.source_sha256.startswith("7865fda5")
    stands_in = "real rows, the beginning of BurstGPT_without_fails_1.csv that can be had"
    assert about.steps[0] == f"BurstGPT_1_first400.csv: {stands_in}"
    assert stands_in in caplog.text
    assert "SYNTHETIC" not in caplog.text


@pytest.mark.parametrize(
    ("overrides", "num_requests"),
    [
        (["workload.num_requests=383"], 383),
        (["workload.window.rows=[0,400]", "workload.num_requests=null"], 383),
        (["workload.window.seconds=[0,3600]", *AS_IT_IS], 37),
        (["workload.num_requests=150", "workload.scale={to_rate_per_s: null, rate: 0.5}"], 150),
        (["workload.num_requests=150", "workload.scale={to_rate_per_s: 1, rate: 0.5}"], 150),
        (["workload.scale={to_rate_per_s: null, rate: 0.5, how: stretch}"], 80),
    ],
)
def test_all_that_lies_within_the_beginning_is_real(
    make: Make, overrides: list[str], num_requests: int
) -> None:
    schedule = make("burstgpt", *overrides)
    assert "real rows" in schedule.provenance.steps[0]
    assert not schedule.provenance.synthetic
    assert len(schedule) == num_requests


@pytest.mark.parametrize(
    "overrides",
    [
        ["workload.num_requests=384"],
        ["workload.num_requests=700", "workload.scale.to_rate_per_s=20"],
        AS_IT_IS,
        ["workload.window.rows=[0,401]"],
        ["workload.window.rows=[0,205]", "workload.num_requests=200"],  # 9 of the rows failed
        ["workload.lengths.rows=[300,520]"],
        ["workload.window.seconds=[0,40000]", *AS_IT_IS],
        ["workload.num_requests=200", "workload.scale={to_rate_per_s: null, rate: 0.5}"],
        ["workload.dataset.file=without_fails_2"],  # the first rows are no beginning of this one
    ],
)
def test_what_the_beginning_does_not_have_is_left_to_the_twin(
    make: Make, overrides: list[str]
) -> None:
    about = make("burstgpt", *overrides).provenance
    assert about.synthetic
    assert about.source == "burstgpt twin"


def test_a_beginning_that_is_no_file_of_the_dataset_is_named(make: Make) -> None:
    with pytest.raises(UsageError, match="file=first is unknown; burstgpt has without_fails_1"):
        make("burstgpt", "workload.dataset.beginnings.without_fails_1=[first]")
