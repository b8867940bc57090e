"""Real prompts on their way to an engine: the same text and tokens, whatever replays the file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.errors import UsageError
from harness.request import Prompt
from harness.schedule import Schedule
from harness.selftest.golden_server import GoldenServer
from harness.selftest.script import Script
from tests.running import run_here
from tests.unit.workloads.texts import QUESTIONS, make_tokenizer, pairs, write_json

SYSTEM = "+system=vllm"


@pytest.fixture
def hf(tmp_path: Path) -> tuple[str, ...]:
    """A workload of four real prompts, tokenised by the model's own tokenizer."""
    rows = write_json(tmp_path / "papers.json", pairs())
    return (
        SYSTEM, "+workload=hf", f"workload.text.dataset={rows}", "workload.text.prompt=article",
        "workload.text.output=abstract", "workload.num_requests=4", "workload.scale.rate=50",
        f"workload.text.tokenizer={make_tokenizer(tmp_path / 'checkpoint')}", "data.download=false",
    )  # fmt: skip


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_an_endpoint_gets_the_real_prompts(tmp_path: Path, hf: tuple[str, ...], api: str) -> None:
    with GoldenServer(lambda body: Script()) as server:
        endpoint = "engine=openai", f"engine.url={server.url}", f"engine.api={api}"
        summary = run_here(tmp_path / "run", *hf, *endpoint, "figure=null")
    assert summary["num_completed"] == 4
    schedule = Schedule.load(tmp_path / "run" / "schedule.parquet")
    assert schedule.prompts is not None
    bodies = sorted((answer.body for answer in server.answers), key=json.dumps)
    if api == "chat":
        asked = [{"role": "user", "content": text} for text in sorted(QUESTIONS)]
        assert sorted((body["messages"][0] for body in bodies), key=lambda m: m["content"]) == asked
    else:
        ids = sorted(prompt.ids.tolist() for prompt in schedule.prompts)
        assert sorted(body["prompt"] for body in bodies) == ids
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["dataset"]["synthetic"] == ["arrivals drawn"]
    assert manifest["dataset"]["file"] == "local dataset"
    assert "tokenised by" in manifest["dataset"]["steps"][1]


@pytest.mark.live
def test_the_schedule_of_one_engine_is_replayed_by_another(
    tmp_path: Path, hf: tuple[str, ...]
) -> None:
    run_here(tmp_path / "sim", *hf, "engine=sim", "hardware=a100x1", "model=llama2-7b")
    path = tmp_path / "sim" / "schedule.parquet"
    words = SYSTEM, "+workload=trace", f"workload.path={path}", "figure=null"
    with GoldenServer(lambda body: Script()) as server:
        run_here(tmp_path / "live", *words, "engine=openai", f"engine.url={server.url}")
    prompts = Schedule.load(path).prompts
    assert prompts is not None
    sent = sorted(answer.body["prompt"] for answer in server.answers)
    assert sent == sorted(prompt.ids.tolist() for prompt in prompts)
    summary = run_here(tmp_path / "torch", *words, "engine=torch", "engine.num_threads=1")
    assert summary["num_completed"] == 4


def test_prompts_of_another_models_tokenizer_are_refused_before_anything_starts(
    tmp_path: Path, hf: tuple[str, ...]
) -> None:
    run_here(tmp_path / "sim", *hf, "engine=sim", "hardware=a100x1", "model=llama2-7b")
    schedule = Schedule.load(tmp_path / "sim" / "schedule.parquet")
    assert schedule.prompts is not None
    first = schedule.prompts[0]
    ids = np.where(np.arange(len(first.ids)) == 1, 2048, first.ids)
    schedule.prompts[0] = Prompt(first.text, ids.astype(np.int32), first.ends)
    path = tmp_path / "other.parquet"
    schedule.save(path)
    words = SYSTEM, "+workload=trace", f"workload.path={path}"
    why = (
        "request 0 has token id 2048, but model tiny-llama has 2048 ids: tokenise the prompts with"
    )
    with pytest.raises(UsageError, match=why):
        run_here(tmp_path / "torch", *words, "engine=torch")
    assert not (tmp_path / "torch").exists()
    with GoldenServer(lambda body: Script()) as server:
        live = "engine=openai", f"engine.url={server.url}"
        with pytest.raises(UsageError, match=why):
            run_here(tmp_path / "live", *words, *live)
        assert server.answers == []
    assert not (tmp_path / "live").exists()
    assert run_here(tmp_path / "again", *words, "engine=sim", "hardware=a100x1", "model=llama2-7b")
