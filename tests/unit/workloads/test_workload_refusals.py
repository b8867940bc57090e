"""What a workload cannot be: one sentence that names the key."""

from __future__ import annotations

import pytest

from harness.errors import UsageError
from tests.unit.workloads.conftest import Make
from tests.unit.workloads.test_workload import STAGED


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("azure_code", ["workload.scale.rate=nan"], r"scale\.rate=nan must be a finite number"),
        (
            "azure_code",
            [
                "workload.arrivals={kind: poisson, rate_per_s: 2, "
                "burst: {factor: 4, start_s: 1000000, duration_s: 4}}",
            ],
            r"burst\.start_s=1e\+06 is after the last request",
        ),
        ("azure_code", ["workload.scale.how=fold"], "how=fold is unknown; valid: preserve, str"),
        ("azure_code", ["workload.arrivals.kind=pareto"], "kind=pareto is unknown; valid kinds"),
        (
            "azure_code",
            ["workload.arrivals.kind=gamma"],
            r"kind=gamma needs workload\.arrivals\.cv",
        ),
        ("azure_code", ["workload.arrivals.cv=2"], "cv is for kind=gamma, not trace"),
        ("azure_code", ["workload.arrivals.kind=ramp"], r"needs workload\.arrivals\.ramp"),
        (
            "azure_code",
            ["workload.arrivals.stages=[{seconds: 9, rate: 1}]"],
            "stages is for kind=poisson or gamma, not trace",
        ),
        (
            "sharegpt",
            ["workload.arrivals.stages=[{seconds: 9, rate: 1}]"],
            r"stages and workload\.arrivals\.rate_per_s are two rates",
        ),
        (
            "sharegpt",
            [*STAGED, "workload.arrivals.stages=[{seconds: 0, rate: 1}]"],
            r"stages\[0\]\.seconds=0 must be above 0",
        ),
        (
            "sharegpt",
            [*STAGED, "workload.arrivals.stages=[{seconds: 5, rate: -1}]"],
            r"stages\[0\]\.rate=-1 must be at least 0",
        ),
        ("sharegpt", [*STAGED, "workload.arrivals.stages=[]"], "no stage with a rate above 0"),
        (
            "sharegpt",
            [*STAGED, "workload.num_requests=50"],
            r"arrivals with this seed, more than workload\.num_requests=50",
        ),
        (
            "sharegpt",
            [*STAGED, "workload.scale.to_rate_per_s=1"],
            r"workload\.arrivals\.stages and workload\.scale\.to_rate_per_s=1 are two rates",
        ),
        (
            "azure_code",
            ["workload.arrivals.burst={factor: -1, start_s: 0, duration_s: 1}"],
            r"burst\.factor=-1 must be at least 0",
        ),
        ("azure_code", ["workload.window.rows=[5,5]"], "0 <= start < end"),
        (
            "azure_code",
            ["workload.window.seconds=[0,9]", "workload.window.rows=[0,9]"],
            "rows or seconds, not both",
        ),
        ("aegaeon", ["workload.read_until_s=0"], "no row of aegaeon arrives before"),
        ("azure_code", ["workload.num_requests=0"], "num_requests=0 must be at least 1"),
        ("azure_code", ["workload.models.kind=trace"], "names no models"),
        ("azure_code", ["workload.models.kind=many"], "kind=many is unknown; valid kinds"),
        ("azure_code", ["workload.models.num_models=3"], "takes no workload.models.num_models"),
        ("azure_code", ["workload.models.kind=uniform"], "needs workload.models.num_models"),
        ("azure_code", ["workload.lengths.order=best"], "order=best is unknown"),
        ("azure_code", ["workload.lengths.max_prompt_tokens=0"], "must be at least 1"),
        ("azure_code", ["workload.path=/none/such"], "workload.path=/none/such is not a file"),
        ("burstgpt", ["workload.dataset.file=all"], "file=all is unknown; burstgpt has without_f"),
        (
            "sharegpt",
            ["workload.arrivals.kind=trace", "workload.arrivals.rate_per_s=null"],
            "has no timestamps, only lengths",
        ),
        ("sharegpt", ["workload.window.seconds=[0,9]"], "has no timestamps"),
        ("trace", [], "workload=trace needs workload.path=FILE"),
        ("nothing", [], "no workload is called 'nothing'; there are aegaeon, arxiv"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(
    make_bare: Make, name: str, overrides: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make_bare(name, *overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "workload.arrivals.burst={factor: 4, start_s: 1000000, duration_s: 4}",
            r"burst\.start_s=1e\+06 is after the last request, which arrives at 3435\.948 s",
        ),
        ("workload.window.rows=[0,8820]", "beyond the 8819 rows of azure_code"),
        ("workload.window.seconds=[0,3437]", r"last request arrives at 3435\.948 s"),
        ("workload.lengths.rows=[0,9]", "8819 requests need lengths"),
    ],
)
def test_what_a_whole_file_does_not_have_is_told(make: Make, override: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make("azure_code", override)
