"""What a noise floor is of, and how wide."""

import json
from pathlib import Path

import numpy as np
import pytest

from harness.comparing import noise_floor
from harness.comparing.paired import METRICS
from harness.records.run_folder import NOISE_FLOOR, FinishedRun
from tests.unit.comparing.written import run
from tests.unit.metrics.service import Service, write_run


def test_two_equal_runs_beyond_the_floor_in_any_metric_are_rare() -> None:
    """In 5 of 100 tables by the rule, whose differences are here of independent metrics; of floors
    for one metric at a time in a third of them."""
    rng, beyond = np.random.default_rng(3), 0
    for _ in range(400):
        values = rng.normal(size=(len(METRICS), 8))
        reach = [noise_floor._reach(row[:6].tolist()) for row in values]
        beyond += bool((np.abs(values[:, 6] - values[:, 7]) > reach).any())
    assert 8 <= beyond <= 36  # 20 expected


def test_a_run_of_another_machine_or_an_invalid_one_is_no_repeat_of_its_own(tmp_path: Path) -> None:
    runs = [FinishedRun.load(run(tmp_path / str(i), 0.5, engine="torch")) for i in range(4)]
    of, repeats = runs[0], runs[1:]
    for change, count in (({}, 4), ({"machine": {"cpu": "another"}}, 3)):
        of.manifest.update(change)
        noise_floor._write(of, repeats, {}, print)
        floor = json.loads((of.path / NOISE_FLOOR).read_text())
        assert len(floor["values"]["TTFT mean"]) == count
    of.manifest["machine"] = repeats[0].manifest["machine"]
    of.summary["verdict"] = {"status": "INVALID", "reasons": ["the client was late"]}
    noise_floor._write(of, repeats, {}, print)
    assert len(json.loads((of.path / NOISE_FLOOR).read_text())["values"]["TTFT mean"]) == 3


def test_a_floor_has_no_number_of_what_no_request_has(tmp_path: Path) -> None:
    """Answers of one token have no TPOT."""
    made = Service(*((float(i), 1) for i in range(20)))
    for i in range(20):
        made.complete(i, i + 0.5)
    repeats = [
        FinishedRun.load(write_run(tmp_path / str(i), made, engine_name="torch")) for i in range(3)
    ]
    noise_floor._write(repeats[0], repeats, {}, print)
    floor = json.loads((tmp_path / "0" / NOISE_FLOOR).read_text(), parse_constant=pytest.fail)
    assert floor["difference"]["TTFT mean"] == 0
    for key in ("values", "difference"):
        assert "TPOT mean" not in floor[key]
