"""The command line as a user meets it: what exists, what is wrong, what a sweep leaves."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.fuzz.test_overrides import answer
from tests.running import ROOT, run_command

SIM = ("+system=vllm", "+workload=azure_code", "engine=sim", "hardware=a100x1", "model=llama2-7b",
       "tracking=none", "workload.num_requests=50", "figure=null")  # fmt: skip
NULL = ("+system=null", "+workload=azure_code", "engine=none", "tracking=none", "figure=null",
        "workload.num_requests=20", "workload.arrivals.kind=poisson",
        "workload.arrivals.rate_per_s=50")  # fmt: skip
DRAWN = (*SIM[:-1], "figure=plots.report.draw")


def test_no_system_and_no_workload_lists_what_can_be_chosen() -> None:
    done = run_command()
    assert done.returncode == 2
    assert "no system and no workload given" in done.stderr
    for name in ("vllm", "null", "azure_code", "burstgpt", "aegaeon"):
        assert name in done.stderr


def test_help_lists_every_group_and_its_options() -> None:
    done = run_command("--help")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) <= 48, "two screens of 24 lines"
    words = done.stdout.replace(",", " ").replace("=", " ").split()
    for group in ("system", "workload", "model", "hardware", "engine", "slo", "tracking"):
        for path in (ROOT / "conf" / group).glob("*.yaml"):
            assert path.stem in words


def test_help_on_keys_tells_values_and_meanings() -> None:
    done = run_command("--help", "keys", "engine.pool.mem")
    assert done.stdout.startswith("engine.pool.memory_share = 0.9  [sim, torch]\n    share of")
    wrong = run_command("--help", "keys", "slo.x")
    assert wrong.returncode == 2
    assert wrong.stderr == (
        "error: no key begins with slo.x; valid: slo.name, slo.ttft_s, slo.tbt_s, slo.factor, "
        "slo.statistic, slo.baseline\n"
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["+workload=azure"], "workload=azure does not exist; choose one of: aegaeon, "),
        (["engine=tpu"], "engine=tpu does not exist; choose one of: none, openai, sim, torch"),
        (["sed=1"], "unknown key sed; valid keys there: "),
        (["system.max_seqs=8"], "unknown key system.max_seqs; valid keys there: _target_, max_num"),
        (["+system.max_seqs=8"], "system: unknown key 'max_seqs'; valid keys: max_num_seqs, "),
        (["system.max_num_seqs=many"], "system: max_num_seqs: Value 'many' of type 'str'"),
        (["seed=-1"], "seed=-1 must be at least 0"),
        (["seed=one"], "config: seed: Value 'one' of type 'str' could not be converted to Integer"),
        (["workload.scale.rate=-1"], "workload.scale.rate=-1"),
        (["fit_context=squeeze"], "fit_context=squeeze"),
        (["engine.num_kv_blocks=4"], "the longest request needs KV for"),
        (["model=llama2-7b", "hardware.memory_bytes=1000"], "leaves no memory for KV"),
        (["engine.block_tokens=0"], "engine.block_tokens=0 must be at least 1"),
        (["model=llama2-7b", "model.tp=0"], "model: tp=0 must be at least 1"),
        (["model=llama2-7b", "model.dtype=int3"], "dtype=int3 is unknown; valid: float32, float16"),
        (["model=llama2-7b", "model.max_position=1"], "max_position=1 has no room"),
        (["model=llama2-7b", "model.num_kv_heads=3"], "no multiple of num_kv_heads=3"),
        (["hardware.num_devices=0"], "hardware: num_devices=0 must be a finite number above 0"),
        (["client.drain_s=-5"], "client: drain_s=-5"),
        (["repeat=1"], "repeat=1 must be a whole number of at least 2"),
        (["+repeat=1"], "engine=sim repeats exactly, so repeat=N would tell nothing"),
        (["engine=none"], "system vllm finds no instance for model 'default'"),
        (["+system=null"], "system=null uses no device: run it with engine=none"),
        (["+system=null", "engine=vllm", "model=tiny-llama", "hardware=local"], "uses no device"),
        (["engine=vllm"], "hardware=a100x1 is A100-SXM4-80GB, but engine=vllm runs on this"),
        (["+hydra.foo=1"], "unknown key hydra.foo; valid keys: defaults, mode, searchpath, run, "),
        (["hardware.device=tpu"], "hardware.device=tpu is unknown; valid: cpu, A10, A100-PCIE"),
        (["model_set.cycle=[]"], "model_set.cycle=[] names no model; valid: "),
        (["model_set.specs=null"], "model_set: specs is null: give it a value"),
        (["model=llama2-7b", "model.rope_theta=nan"], "rope_theta=nan must be above 0 and finite"),
        (["model=llama2-7b", "model.rms_norm_eps=-1"], "rms_norm_eps=-1 must be above 0"),
        (
            ["workload.scale.rate=1e-9", "workload.window.seconds=[0,600]"],
            "no request left of azure_code: thinned to x1e-09",
        ),
        (["figure=foo.bar"], "figure=foo.bar names no function of plots/; e.g. plots.report.draw"),
        (["figure=plots.run.drw"], "figure=plots.run.drw names no function: "),
        (["figure=plots.run.save"], "names no function that is defined in plots.run"),
        (["model=llama2-7b", "model.name=../../x"], "model: name=../../x must not leave"),
        (
            ["engine=torch", "hardware=a100x1"],
            "hardware=a100x1 is A100-SXM4-80GB, but engine=torch",
        ),
        (["-m", "hydra.run.dir=elsewhere"], "with -m each run has its own folder"),
        (["hydra/launcher=no"], "hydra/launcher=no does not exist; choose one of: basic"),
        (["slo.ttft_s=0"], "slo.ttft_s=0 must be above 0 and finite"),
        (["slo=kunserve"], "slo.baseline=PATH"),
        (["slo.goodput=ttft:200 tbt:100"], "slo.goodput has 'tbt:100': give each limit once, as"),
        (["engine=torch", "engine.cluster=slurm"], "engine.cluster=slurm is unknown; valid: local"),
        (
            ["engine=torch", "engine.transport=tcp"],
            "engine.transport=tcp is unknown; valid: sockets",
        ),
        (["hardware.nodes=[a,b]"], "nodes names 2 nodes; valid: 1"),
        (["slo.goodput=gpt/ttft:200"], "slo.goodput: model=gpt is unknown; valid: default"),
        (["engine=openai"], "engine.url has no default: give engine.url=..."),
    ],
)
def test_a_wrong_command_is_told_in_one_sentence(
    tmp_path: Path, wrong: list[str], says: str
) -> None:
    """In this process, for speed; the next test gives the command."""
    code, said = answer(words_with(wrong, tmp_path))
    assert code == 2, said
    assert_one_sentence(said, says, tmp_path)


@pytest.mark.parametrize(
    ("wrong", "says"),  # one for each stage that notices
    [
        (["--bogus"], "unrecognized arguments: --bogus; --help lists what can be given"),
        (["+system=vlm"], "system=vlm does not exist; choose one of: "),
        (["+extra=1"], "unknown key extra; valid keys: system, workload, "),
        (["fit_context=refuse"], "more than the 4096 positions of model llama2-7b"),
        (["hydra.run.dir=/proc/nothing/run"], "/proc/nothing"),
    ],
)
def test_the_command_tells_it_and_exits_with_two(
    tmp_path: Path, wrong: list[str], says: str
) -> None:
    done = run_command(*words_with(wrong, tmp_path))
    assert done.returncode == 2, done.stderr
    assert_one_sentence(done.stderr, says, tmp_path)


def words_with(wrong: list[str], folder: Path) -> list[str]:
    groups = {argument.split("=")[0].lstrip("+") for argument in wrong}
    right = [a for a in SIM if a.split("=")[0].lstrip("+") not in groups]
    where = [] if "hydra.run.dir" in groups else [f"hydra.run.dir={folder / 'new' / 'run'}"]
    return [*right, *wrong, *where]


def assert_one_sentence(said: str, says: str, folder: Path) -> None:
    assert said.startswith("error: ")
    assert says in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1
    assert not (folder / "new").exists()


def test_a_system_that_needs_two_instances_says_so(tmp_path: Path) -> None:
    done = run_command(
        *SIM[2:], "+system=vllm", "+workload=lmsys_arena", f"hydra.run.dir={tmp_path / 'run'}"
    )
    assert done.returncode == 2
    assert "models need at least" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_terminal_that_lacks_letters_gets_the_table_and_the_files_are_whole(
    tmp_path: Path,
) -> None:
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run_command(*SIM, f"hydra.run.dir={tmp_path / 'run'}", env=ascii_alone)
    assert done.returncode == 0, done.stderr
    assert "SIMULATED ? a100x1" in done.stdout
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["status"] == "complete"


def test_a_sweep_leaves_a_folder_a_point_and_a_table(tmp_path: Path) -> None:
    sweep = (*SIM, "-m", "workload.scale.rate=0.5,2", f"hydra.sweep.dir={tmp_path}")
    done = run_command(*sweep)
    assert done.returncode == 0, done.stderr
    runs = sorted(path.parent for path in tmp_path.glob("*/manifest.json"))
    assert len(runs) == 2
    (rows_of_all,) = tmp_path.glob("sweep-*.csv")
    assert str(rows_of_all) in done.stdout
    with rows_of_all.open() as file:
        found = list(csv.DictReader(file))
    assert {row["run"] for row in found} == set(map(str, runs))
    assert [row["workload.scale.rate"] for row in found] == ["0.5", "2"]
    assert all(run.name.startswith("vllm-azure_code-sim-") for run in runs)
    marks = [json.loads((run / "sweep.json").read_text()) for run in runs]
    assert len({mark["sweep_id"] for mark in marks}) == 1
    table = done.stdout[done.stdout.index("sweep of 2 runs") :]
    rows = [line.split()[0] for line in table.splitlines() if line.strip()]
    assert [word for word in rows if word in ("0.5", "2")] == ["0.5", "2"]
    again = run_command(*sweep)
    assert again.stderr.count("already run") == 2
    assert "sweep of 2 runs" in again.stdout


def test_a_sweep_over_slos_serves_one_run_and_has_a_row_for_each(tmp_path: Path) -> None:
    done = run_command(*SIM, "-m", "slo.ttft_s=1e-6,60", f"hydra.sweep.dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("scored for another SLO, and not served again") == 1
    manifests = [json.loads(path.read_text()) for path in tmp_path.glob("*/manifest.json")]
    assert len({manifest["served_hash"] for manifest in manifests}) == 1
    assert len({manifest["config_hash"] for manifest in manifests}) == 2
    (rows_of_all,) = tmp_path.glob("sweep-*.csv")
    with rows_of_all.open() as file:
        goodput = [float(row["goodput_per_s"]) for row in csv.DictReader(file)]
    assert goodput[0] == 0 < goodput[1]


def test_a_sweep_over_slos_that_serves_again_has_a_row_for_each(tmp_path: Path) -> None:
    words = ("-m", "slo.ttft_s=1e-6,60", "again=true", f"hydra.sweep.dir={tmp_path}")
    done = run_command(*SIM, *words)
    assert done.returncode == 0, done.stderr
    (rows_of_all,) = tmp_path.glob("sweep-*.csv")
    with rows_of_all.open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["slo.ttft_s"]) for row in rows] == [1e-6, 60]
    goodput = [float(row["goodput_per_s"]) for row in rows]
    assert goodput[0] == 0 < goodput[1]


def test_repeats_are_runs_of_one_schedule_in_folders_of_their_own(tmp_path: Path) -> None:
    done = run_command(*NULL, "repeat=3", f"hydra.sweep.dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    paths = sorted(tmp_path.glob("*/manifest.json"))
    manifests = [json.loads(path.read_text()) for path in paths]
    assert len({manifest["config_hash"] for manifest in manifests}) == 3
    assert len({manifest["schedule_sha256"] for manifest in manifests}) == 1
    assert "sweep of 3 runs" in done.stdout
    wrong = run_command(*NULL, "seed=-1", "repeat=2", f"hydra.sweep.dir={tmp_path / 'wrong'}")
    assert wrong.returncode == 2
    assert not (tmp_path / "wrong").exists()


def test_strict_ends_with_status_3_where_a_run_is_invalid(tmp_path: Path) -> None:
    command = (*SIM, "strict=true", f"hydra.run.dir={tmp_path / 'run'}")
    assert run_command(*command).returncode == 0
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    summary["verdict"] = {"status": "INVALID", "reasons": ["made up"]}
    (tmp_path / "run/summary.json").write_text(json.dumps(summary))
    done = run_command(*command)
    assert done.returncode == 3
    assert done.stderr.endswith(f"{tmp_path / 'run'} is INVALID: made up\n")
    assert run_command(*command, "strict=false").returncode == 0


def test_a_sweep_goes_on_after_a_bad_point_and_names_the_others_by_what_was_swept(
    tmp_path: Path,
) -> None:
    where = f"hydra.sweep.dir={tmp_path}"
    done = run_command("-m", *SIM, "workload.scale.rate=-2,1", where)
    assert done.returncode == 2
    assert "workload.scale.rate=-2" in done.stderr
    assert len(list(tmp_path.glob("vllm-*"))) == 1
    table = done.stdout[done.stdout.index("sweep of 1 run") :].splitlines()
    assert any(line.strip().startswith("workload.scale.ra") for line in table)  # it is folded
    assert any(line.split()[:1] == ["1"] for line in table)


@pytest.mark.parametrize("made", [True, False])
def test_a_sweep_of_bad_points_alone_names_each_and_leaves_nothing(
    tmp_path: Path, made: bool
) -> None:
    sweep_dir = tmp_path / "sweep"
    if made:
        sweep_dir.mkdir()
    done = run_command("-m", *SIM, "system.max_num_seqs=0,-1", f"hydra.sweep.dir={sweep_dir}")
    assert done.returncode == 2
    assert [line.partition(": ")[0] for line in done.stderr.strip().splitlines()] == [
        "error at system.max_num_seqs=0",
        "error at system.max_num_seqs=-1",
    ]
    assert [path.name for path in tmp_path.rglob("*")] == ["sweep"] * made


def test_a_folder_may_have_a_number_for_a_name() -> None:
    done = run_command(*SIM, "runs_dir=5", "engine.num_kv_blocks=0")
    assert done.returncode == 2
    assert "engine.num_kv_blocks=0 must be at least 1" in done.stderr
    assert not (ROOT / "5").exists()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "config.yaml"
    mine.write_text("precious: true\n")
    for again in ("again=false", "again=true"):
        done = run_command(*SIM, again, f"hydra.run.dir={tmp_path}")
        assert done.returncode == 2
        assert "holds files that are not a run's" in done.stderr
    assert mine.read_text() == "precious: true\n"
    assert list(tmp_path.iterdir()) == [mine]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_named_folder_is_used_and_only_the_same_run_replaces_what_is_there(
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "mine"
    where = f"hydra.run.dir={run_dir}"
    done = run_command(*DRAWN, where)
    assert done.returncode == 0, done.stderr
    before = contents(run_dir)
    assert before.keys() == {
        "config.yaml", "manifest.json", "schedule.parquet", "requests.parquet",
        "events.parquet", "summary.json", "run.png", "report.html",
    }  # fmt: skip
    assert str(run_dir) in done.stdout.replace("\n", "")
    for wrong, says in (
        (["seed=1"], "holds another run"),
        (["again=true", "system.max_num_seqs=0"], "max_num_seqs=0 must be"),
        (["again=true", "engine.num_kv_blocks=1"], "needs KV for"),  # told late
    ):
        done = run_command(*DRAWN, *wrong, where)
        assert done.returncode == 2
        assert says in done.stderr
        assert contents(run_dir) == before
    assert run_command(*DRAWN, "again=true", where).returncode == 0
    assert contents(run_dir).keys() == before.keys()


def test_the_null_system_measures_the_harness_alone(tmp_path: Path) -> None:
    done = run_command(
        "+system=null", "+workload=azure_code", "engine=none", "tracking=none",
        "workload.num_requests=100", "workload.arrivals.kind=poisson",
        "workload.arrivals.rate_per_s=100", f"hydra.run.dir={tmp_path / 'run'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["num_completed"] == 100
    assert summary["send_lag_s"]["p50"] <= summary["ttft_s"]["p50"] < 0.1
