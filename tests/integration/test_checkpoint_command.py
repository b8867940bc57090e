"""What a command says of its model and its keys is checked before anything runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import yaml

from harness.configuration.checkpoint import hf_config
from tests.running import model_spec, run_command

SIM = (
    "+system=vllm", "+workload=azure_code", "workload.num_requests=5", "engine=sim",
    "hardware=a100x1", "tracking=none", "figure=null", "progress=false",
)  # fmt: skip


def test_a_path_alone_is_the_model_of_the_run(tmp_path: Path) -> None:
    spec = replace(model_spec("tiny-llama"), num_layers=2, vocab_size=512)
    (tmp_path / "config.json").write_text(json.dumps(hf_config(spec, None, None)))
    run_dir = tmp_path / "run"
    done = run_command(*SIM, f"model.path={tmp_path}", f"hydra.run.dir={run_dir}")
    assert done.returncode == 0, done.stderr
    model = yaml.safe_load((run_dir / "config.yaml").read_text())["model"]
    assert (model["num_layers"], model["vocab_size"]) == (2, 512)
    assert model["name"] == tmp_path.name


def test_a_key_that_nothing_reads_leaves_no_folder(tmp_path: Path) -> None:
    run_dir = tmp_path / "new" / "run"
    done = run_command(
        *SIM[:3], "engine=openai", "engine.url=http://127.0.0.1:9/v1", "system.max_num_seqs=8",
        f"hydra.run.dir={run_dir}",
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: system.max_num_seqs is not read by engine=openai")
    assert not (tmp_path / "new").exists()
