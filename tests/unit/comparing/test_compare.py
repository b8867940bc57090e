"""`python -m harness compare`: who is paired with whom, and when a difference counts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.comparing import noise_floor
from harness.comparing.__main__ import main
from harness.comparing.arms import arms, pairs
from harness.comparing.paired import block_length, resampled
from harness.errors import UsageError
from harness.records.run_folder import FinishedRun
from tests.unit.metrics.service import Service, write_run

REQUESTS = 80


def service(delay_s: float, seed: int = 0, noise_s: float = 0.02) -> Service:
    """Requests of two tokens. The first comes after `delay_s` and some noise, the second 0.05 s
    later."""
    rng = np.random.default_rng(seed)
    made = Service(*((float(i), 2) for i in range(REQUESTS)))
    for i, extra_s in enumerate(rng.uniform(0, noise_s, REQUESTS)):
        first_s = i + delay_s + float(extra_s)
        made.complete(i, first_s, first_s + 0.05)
    return made


def run(
    path: Path,
    delay_s: float,
    *,
    system: str = "a",
    seed: int = 0,
    engine: str = "sim",
    **said: Any,
) -> Path:
    """A run's folder. `said` goes into its manifest."""
    write_run(path, service(delay_s, seed), engine_name=engine)
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest |= {"overrides": [f"+system={system}", f"seed={seed}"], "seeds": {"seed": seed}} | said
    file.write_text(json.dumps(manifest))
    return path


def verdicts(capsys: pytest.CaptureFixture[str], *words: Path | str) -> dict[str, str]:
    """{metric: verdict}, as --out has them."""
    out = Path(str(words[0])).parent / "rows.json"
    assert main([*map(str, words), "--out", str(out)]) == 0, capsys.readouterr().err
    return {row["metric"]: row["verdict"] for row in json.loads(out.read_text())}


def test_a_lower_ttft_is_better_and_a_higher_one_is_worse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, fast = run(tmp_path / "a", 0.5), run(tmp_path / "b", 0.3, system="b")
    assert verdicts(capsys, slow, fast)["TTFT mean"] == "better"
    assert verdicts(capsys, fast, slow)["TTFT mean"] == "worse"
    assert verdicts(capsys, slow, fast)["TPOT mean"] == "cannot tell"
    assert "B against A" in capsys.readouterr().out


def test_more_requests_within_the_slo_are_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late, soon = run(tmp_path / "a", 1.2), run(tmp_path / "b", 0.9, system="b")
    found = verdicts(capsys, late, soon)
    assert found["SLO, requests"] == found["SLO, tokens"] == "better"


def test_too_few_requests_for_a_percentile_give_no_row_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = verdicts(capsys, run(tmp_path / "a", 0.5), run(tmp_path / "b", 0.3, system="b"))
    assert "TTFT P50" in found
    assert "TTFT P99" not in found  # it needs 662


def test_noise_larger_than_the_difference_cannot_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(tmp_path / "a", 0.5, seed=0)
    second = run(tmp_path / "b", 0.5, system="b", seed=0)
    write_run(tmp_path / "c", service(0.5, seed=9))  # other noise, the same mean
    (second / "requests.parquet").write_bytes((tmp_path / "c" / "requests.parquet").read_bytes())
    assert verdicts(capsys, first, second)["TTFT mean"] == "cannot tell"


def test_the_interval_covers_the_true_difference_of_correlated_requests() -> None:
    """Neighbours that wait together are fewer samples than they seem: 95 of 100 intervals hold the
    true mean, where resampling single requests would have about 60."""
    rng = np.random.default_rng(1)
    blocks, single = 0, 0
    for _ in range(60):
        noise = np.repeat(rng.normal(size=60), 10)  # ten requests wait in one queue
        reference = np.zeros(600)
        low, high = resampled([(reference, noise)], np.mean)
        blocks += low <= 0 <= high
        single += abs(noise.mean()) <= 1.96 * noise.std() / len(noise) ** 0.5
    assert block_length(noise) >= 8
    assert blocks >= 52
    assert single <= 40


def test_seeds_that_change_nothing_count_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = run(tmp_path / "a", 0.5), run(tmp_path / "b", 0.3, system="b")
    runs = [FinishedRun.load(path) for path in (first, second)]
    for path in (first, second):
        copy = run(tmp_path / f"{path.name}1", 0.5, system=path.name, seed=1)
        (copy / "requests.parquet").write_bytes((path / "requests.parquet").read_bytes())
        runs.append(FinishedRun.load(copy))
    reference, other = arms(runs)
    assert sorted(reference.by_seed) == [0, 1]
    assert list(pairs(reference, other)) == [0]


def test_runs_are_paired_by_seed_and_a_repeat_is_an_arm_of_its_own(tmp_path: Path) -> None:
    paths = [
        run(tmp_path / "a0", 0.5, seed=0),
        run(tmp_path / "b1", 0.3, system="b", seed=1),
        run(tmp_path / "a1", 0.5, seed=1),
        run(tmp_path / "again", 0.5, seed=0),
    ]
    found = arms([FinishedRun.load(path) for path in paths])
    assert [arm.label for arm in found] == ["system=a", "system=b", "system=a, repeated"]
    assert list(pairs(found[0], found[1])) == [1]
    assert list(pairs(found[0], found[2])) == [0]
    with pytest.raises(UsageError, match=r"seeds 0, system=b has 1.*no seed is in both"):
        pairs(found[2], found[1])


def test_requests_of_two_schedules_are_not_compared(tmp_path: Path) -> None:
    first = run(tmp_path / "a", 0.5)
    second = run(tmp_path / "b", 0.3, system="b", schedule_sha256="1" * 64)
    with pytest.raises(UsageError, match="differ in schedule"):
        pairs(*arms([FinishedRun.load(path) for path in (first, second)]))


def test_unequal_budgets_are_refused_unless_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = run(tmp_path / "a", 0.5), run(tmp_path / "b", 0.3, system="b")
    manifest = json.loads((second / "manifest.json").read_text())
    manifest["hardware"]["num_devices"] = 4
    (second / "manifest.json").write_text(json.dumps(manifest))
    assert main([str(first), str(second)]) == 2
    assert "differ in devices (2 x TEST-1; 4 x TEST-1): --anyway" in capsys.readouterr().err
    assert main([str(first), str(second), "--anyway"]) == 0
    assert "4 x TEST-1" in capsys.readouterr().out


def test_an_invalid_run_is_refused_unless_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = run(tmp_path / "a", 0.5), run(tmp_path / "b", 0.3, system="b")
    summary = json.loads((second / "summary.json").read_text())
    summary["verdict"] |= {"status": "INVALID", "reasons": ["made up"]}
    (second / "summary.json").write_text(json.dumps(summary))
    assert main([str(first), str(second)]) == 2
    assert "b is INVALID" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reach_s", "config_hash", "expected"),
    [
        (None, "", "cannot tell (no floor)"),
        (0.1, "own", "better"),
        (0.3, "own", "cannot tell (floor)"),
        (0.1, "of another run", "cannot tell (no floor)"),
    ],
)
def test_a_live_difference_must_exceed_what_repeats_differ_by(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    reach_s: float | None,
    config_hash: str,
    expected: str,
) -> None:
    first = run(tmp_path / "a", 0.5, engine="torch")
    second = run(tmp_path / "b", 0.3, system="b", engine="torch")
    if reach_s is not None:
        own = json.loads((first / "manifest.json").read_text())["config_hash"]
        of = own if config_hash == "own" else config_hash
        made = {"config_hash": of, "difference": {"TTFT mean": reach_s}}
        (first / noise_floor.FILE).write_text(json.dumps(made))
    assert verdicts(capsys, first, second)["TTFT mean"] == expected


def test_the_floor_is_what_two_of_the_repeats_differ_by_in_95_of_100_cases() -> None:
    rng = np.random.default_rng(0)
    beyond = 0
    for _ in range(400):
        *repeats, first, second = rng.normal(size=7).tolist()
        beyond += abs(second - first) > noise_floor._reach(repeats)
    assert 8 <= beyond <= 36  # 20 expected


def test_what_cannot_be_compared_or_repeated_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated, live = run(tmp_path / "a", 0.5), run(tmp_path / "b", 0.5, engine="torch")
    for words, said in (
        ([simulated], "one run has nothing to compare with"),
        ([simulated, run(tmp_path / "c", 0.5, seed=1)], "all 2 runs are of system=fcfs"),
        (["--floor", "3", simulated], "it repeats exactly"),
        (["--floor", "2", live], "at least 3"),
        (["--floor", "3", simulated, live], "--floor repeats one run"),
        ([tmp_path / "none"], "is not a complete run's folder"),
    ):
        assert main(list(map(str, words))) == 2
        assert said in capsys.readouterr().err
