"""`python -m harness compare`: what may be compared, and the noise floor of live runs."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from scipy import stats

from harness.comparing import noise_floor
from harness.comparing.__main__ import main
from harness.comparing.arms import arms, pairs
from harness.comparing.paired import METRICS
from harness.drivers import vllm
from harness.errors import UsageError
from harness.records.run_folder import NOISE_FLOOR, FinishedRun
from harness.records.run_table import origin
from tests.running import model_spec
from tests.unit.comparing.written import run, verdicts


def test_requests_of_two_schedules_are_not_compared(tmp_path: Path) -> None:
    first = run(tmp_path / "a", 0.5)
    second = run(tmp_path / "b", 0.3, system="b", schedule_sha256="1" * 64)
    with pytest.raises(UsageError, match="differ in schedule"):
        pairs(*arms([FinishedRun.load(path) for path in (first, second)]))


def test_an_open_and_a_closed_loop_of_one_schedule_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(tmp_path / "a", 0.5)
    second = run(tmp_path / "b", 0.3, system="b", closed_loop=8)
    assert main([str(first), str(second), "--anyway"]) == 2
    told = capsys.readouterr()
    assert "differ in open or closed loop: requests are compared one by one" in told.err
    assert not told.out


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


def as_vllm_says(num_servers: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the manifest of a run on so many vLLM servers has as `engine`, each on one of two
    GPUs."""
    config = {
        "scheduler_config": dict.fromkeys(vllm.SCHEDULER_KEYS, 1),
        "cache_config": {"num_gpu_blocks": 64, "block_size": 16, "enable_prefix_caching": False},
        "model_config": {"max_model_len": 1024, "dtype": "torch.bfloat16"},
        "device_config": {"device": "cuda"},
    }
    said = {
        "version": "1", "vllm_config": config,
        "system_env": {"nvidia_gpu_models": "GPU 0: NVIDIA H100\nGPU 1: NVIDIA H100"},
    }  # fmt: skip
    monkeypatch.setattr(vllm, "_ask", lambda server, path: said)
    made: list[Any] = [
        SimpleNamespace(name=f"vllm-{i}", log_path=folder / f"{i}.log", ready_s=1.0)
        for i in range(num_servers)
    ]
    experiment: Any = SimpleNamespace(models={"m": model_spec("tiny-llama")})
    return vllm._resolved(made, experiment, ["m"] * num_servers)


def test_two_and_four_vllm_servers_are_unequal_and_two_are_equal_to_two_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    two, four, workers = (
        run(tmp_path / name, delay_s, system=name, engine=engine, engine_=said)
        for name, delay_s, engine, said in (
            ("a", 0.5, "vllm", as_vllm_says(2, tmp_path, monkeypatch)),
            ("b", 0.3, "vllm", as_vllm_says(4, tmp_path, monkeypatch)),
            ("c", 0.4, "torch", {"devices": ["NVIDIA H100"] * 2}),
        )
    )
    assert main([str(two), str(four)]) == 2
    assert "differ in devices (2 x TEST-1; 4 x TEST-1): --anyway" in capsys.readouterr().err
    assert "2 x NVIDIA H100" in origin(FinishedRun.load(two).manifest)
    assert main([str(two), str(workers)]) == 2
    told = capsys.readouterr().err
    assert "engine (vllm; torch)" in told
    assert "devices" not in told


@pytest.mark.parametrize(
    ("engine", "refused"), [("torch", True), ("sim", False), ("openai", False)]
)
def test_live_runs_of_two_machines_are_refused_and_simulated_or_remote_ones_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str, refused: bool
) -> None:
    machine = {"cpu": "Xeon", "num_cores": 2, "gpus": []}
    other = machine | {"gpus": [{"name": "NVIDIA H100"}]}
    first = run(tmp_path / "a", 0.5, engine=engine, machine=machine)
    second = run(tmp_path / "b", 0.3, system="b", engine=engine, machine=other)
    assert main([str(first), str(second)]) == (2 if refused else 0)
    told = "differ in machine (Xeon, 2 cores; Xeon, 2 cores, NVIDIA H100): --anyway"
    assert (told in capsys.readouterr().err) == refused
    if refused:  # the floor of one machine does not judge the other
        write_floor(first, 0.01)
        found = verdicts(capsys, first, second, "--anyway")
        assert found["TTFT mean"] == "cannot tell (no floor)"


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"cpu": "EPYC", "cores": 4}, "1 x EPYC, 4 cores and 1 x Xeon, 2 cores"),
        (
            {"cpu": "Xeon", "cores": 2, "gpus": [{"name": "NVIDIA H100"}]},
            "1 x Xeon, 2 cores and 1 x Xeon, 2 cores, NVIDIA H100",
        ),
    ],
)
def test_live_runs_on_other_nodes_are_of_two_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: dict[str, Any], named: str
) -> None:
    node: dict[str, Any] = {"cpu": "Xeon", "cores": 2}
    paths = [
        run(tmp_path / name, 0.5, system=name, engine="torch", engine_={"nodes": [node, second]})
        for name, second in (("a", node), ("b", other))
    ]
    assert main([*map(str, paths)]) == 2
    told = f"machine (2 x Xeon, 2 cores; {named})"
    assert told in capsys.readouterr().err


def test_what_one_run_does_not_say_hides_no_difference_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hardware = FinishedRun.load(run(tmp_path / "a", 0.5)).manifest["hardware"]
    paths = [
        run(
            tmp_path / name, 0.5, system=name, engine=engine, hardware=hardware | {"num_devices": n}
        )
        for name, engine, n in (("a", "sim", 2), ("b", "openai", 3), ("c", "sim", 4))
    ]
    assert main([*map(str, paths)]) == 2
    assert "devices (2 x TEST-1; 4 x TEST-1)" in capsys.readouterr().err


def test_kv_memory_is_compared_in_bytes_where_all_engines_say_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many tokens of a wider model take more bytes."""
    tokens = {"num_kv_blocks": {"m": 64}, "block_tokens": 16}
    first, second, third = (
        run(tmp_path / name, 0.5, system=name, engine_=tokens | more)
        for name, more in (
            ("a", {"instances": [{"kv_bytes": 1024}]}),
            ("b", {"instances": [{"kv_bytes": 2048}, {"kv_bytes": 2048}]}),
            ("c", {}),
        )
    )
    assert main([str(first), str(second)]) == 2
    assert "differ in KV memory (1,024 bytes; 2,048 bytes): --anyway" in capsys.readouterr().err
    assert main([str(first), str(third)]) == 0


def test_an_invalid_run_is_refused_unless_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = run(tmp_path / "a", 0.5), run(tmp_path / "b", 0.3, system="b")
    summary = json.loads((second / "summary.json").read_text())
    summary["verdict"] |= {"status": "INVALID", "reasons": ["made up"]}
    (second / "summary.json").write_text(json.dumps(summary))
    assert main([str(first), str(second)]) == 2
    assert "b is INVALID" in capsys.readouterr().err


def write_floor(path: Path, reach_s: float, **other: Any) -> None:
    """As `compare --floor` measures it of the run at `path`. `other`: what it was of instead."""
    manifest = FinishedRun.load(path).manifest
    made = {name: manifest[name] for name in noise_floor.OF} | other
    (path / NOISE_FLOOR).write_text(json.dumps(made | {"difference": {"TTFT mean": reach_s}}))


@pytest.mark.parametrize(
    ("reach_s", "of", "expected"),
    [
        (None, "", "cannot tell (no floor)"),
        (0.1, "own", "better"),
        (0.3, "own", "cannot tell (floor)"),
        (0.1, "of another run", "cannot tell (no floor)"),
        (0.1, "elsewhere", "cannot tell (no floor)"),
        (0.1, "edited", "cannot tell (floor of other code)"),
    ],
)
def test_a_live_difference_must_exceed_what_repeats_differ_by(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    reach_s: float | None,
    of: str,
    expected: str,
) -> None:
    first = run(tmp_path / "a", 0.5, engine="torch")
    second = run(tmp_path / "b", 0.3, system="b", engine="torch")
    if reach_s is not None:
        machine = FinishedRun.load(first).manifest["machine"]
        other: dict[str, dict[str, Any]] = {
            "of another run": {"served_hash": "another"},
            "elsewhere": {"machine": machine | {"cpu": "another"}},
            "edited": {"sources": {"harness/clock.py": "another"}},
        }
        write_floor(first, reach_s, **other.get(of, {}))
    assert verdicts(capsys, first, second)["TTFT mean"] == expected


@pytest.mark.parametrize("floor", [True, False])
def test_the_table_says_that_a_floor_is_for_all_metrics_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], floor: bool
) -> None:
    paths = [run(tmp_path / name, 0.5, system=name, engine="torch") for name in "ab"]
    if floor:
        write_floor(paths[0], 0.1)
    main([str(path) for path in paths])
    said = " ".join(capsys.readouterr().out.split())
    told = "; the floor is for all of them at once" if floor else ""
    assert f"Each metric is judged by itself{told}. " in said


@pytest.mark.parametrize("beside", [True, False])
def test_a_run_scored_anew_keeps_its_floor_but_for_what_the_slo_judges(
    *, beside: bool, tmp_path: Path
) -> None:
    live = run(tmp_path / "a", 0.5, engine="torch")
    manifest = FinishedRun.load(live).manifest
    made = {name: manifest[name] for name in (*noise_floor.OF, "config_hash")}
    judged = {"TTFT mean": 0.1, "SLO, requests": 0.0, "SLO, tokens": 0.0, "goodput/s": 0.0}
    (live / NOISE_FLOOR).write_text(json.dumps(made | {"difference": judged}))
    assert noise_floor.floor([FinishedRun.load(live)]) == judged
    scored = live
    if beside:
        scored = run(tmp_path / "a-slo-b", 0.5, engine="torch", scored_from="a")
    manifest["config_hash"] = "of another SLO"
    manifest |= {"scored_from": "a"} if beside else {}
    (scored / "manifest.json").write_text(json.dumps(manifest))
    assert noise_floor.floor([FinishedRun.load(scored)]) == {"TTFT mean": 0.1}


def folder_of(command: list[str]) -> Path:
    """As Hydra reads the last word."""
    found = OverridesParser.create().parse_override(command[-1])
    assert found.key_or_group == "hydra.run.dir"
    return Path(str(found.value()))


def test_a_floor_is_measured_by_repeating_the_runs_own_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command's own values are kept, what is only shown is not; the floor then counts."""
    overrides = ["+system=a", "seed=0", "data.dir=/data", "figure=null", "hydra.run.dir=x"]
    live = run(tmp_path / "a (b), c", 0.5, engine="torch", overrides=overrides)
    other = run(tmp_path / "b", 0.3, system="b", engine="torch")
    asked: list[list[str]] = []

    def repeat(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command[3:])
        folder = folder_of(command)
        run(folder, 0.5 + 0.01 * len(asked), engine="torch")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", repeat)
    assert main(["--floor", "4", str(live)]) == 0
    drift = "rose or fell one after another in `TTFT mean`"
    assert drift in capsys.readouterr().err
    assert all(words[:3] == ["+system=a", "seed=0", "data.dir=/data"] for words in asked)
    assert [words.count("figure=null") for words in asked] == [1, 1, 1, 1]
    made = json.loads((live / NOISE_FLOOR).read_text())
    of_runs = made["values"]["TTFT mean"]  # the run's own is the first
    assert np.diff(of_runs) == pytest.approx([0.01] * 4)
    reach = stats.t.ppf(1 - 0.05 / len(METRICS) / 2, 4) * np.std(of_runs, ddof=1) * 2**0.5
    assert made["difference"]["TTFT mean"] == pytest.approx(reach)
    assert drift in made["drift"]
    assert "SLO" not in made["drift"], "all repeats have the same"
    manifest = FinishedRun.load(live).manifest
    assert all(made[name] == manifest[name] for name in ("served_hash", "config_hash"))
    assert verdicts(capsys, live, other)["TTFT mean"] == "better"


@pytest.mark.parametrize(
    ("times", "invalid", "status", "tries", "said"),
    [
        (3, {(2, 1), (2, 2)}, 0, 5, "repeat 2 of 3, try 3 of 3"),
        (4, {(2, 1), (2, 2), (2, 3)}, 3, 6, "the floor is of 3 others"),
        (3, {(2, 1), (2, 2), (2, 3)}, 3, 4, "too few for a floor, and kept: 1 others"),
    ],
)
def test_an_invalid_repeat_is_run_again_and_left_out_if_it_stays_so(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    times: int,
    invalid: set[tuple[int, int]],
    status: int,
    tries: int,
    said: str,
) -> None:
    live = run(tmp_path / "a", 0.5, engine="torch", overrides=["+system=a", "strict=true"])
    asked: list[int] = []

    def repeat(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert "strict=true" not in command
        folder = folder_of(command)
        asked.append(int(folder.name))
        run(folder, 0.5, engine="torch")
        if (int(folder.name), asked.count(int(folder.name))) in invalid:
            summary = json.loads((folder / "summary.json").read_text())
            summary["verdict"] = {"status": "INVALID", "reasons": ["the client was late"]}
            (folder / "summary.json").write_text(json.dumps(summary))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", repeat)
    assert main(["--floor", str(times), str(live)]) == status
    err = capsys.readouterr().err
    assert said in err
    assert len(asked) == tries
    folders = [live.with_name("a-repeats") / str(number) for number in sorted({*asked})]
    stayed = folders[1] if status else None
    assert (f"error: {stayed} is INVALID: the client was late" in err) == (status == 3)
    assert all(FinishedRun.load(path) for path in folders), "what was measured is kept"
    if tries == 4:
        assert not (live / NOISE_FLOOR).exists()
        return
    floor = json.loads((live / NOISE_FLOOR).read_text())
    assert floor["repeats"] == [str(path) for path in folders if path != stayed]
    reasons = ["the client was late"] * len(invalid)
    assert floor["invalid"] == {str(folders[1]): reasons}


def test_a_repeat_that_fails_or_is_another_run_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    live = run(tmp_path / "a", 0.5, engine="torch")

    def broken(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "noise\nerror: the engine died\n")

    monkeypatch.setattr(subprocess, "run", broken)
    assert main(["--floor", "3", str(live)]) == 1
    assert "a repeat failed: error: the engine died" in capsys.readouterr().err

    made: dict[str, Any] = {}

    def another(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        folder = folder_of(command)
        run(folder, 0.5, engine="torch", **made)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", another)
    for name, value, said in (
        ("config_hash", "another", "its command gives another run now"),
        (
            "sources",
            {"harness/clock.py": "1"},
            "run it again first: changed since: gone.py; new since: harness/clock.py",
        ),
    ):
        made = {name: value}
        run(live, 0.5, engine="torch", sources={"gone.py": "0"})
        assert main(["--floor", "3", str(live)]) == 2
        assert said in capsys.readouterr().err
    assert not (live / NOISE_FLOOR).exists()


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
