"""A changed SLO starts no engine, unless the system reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra

from harness.errors import UsageError
from harness.experiments.compose import composed
from harness.records.run_folder import FinishedRun
from harness.records.sources import Identity
from harness.running import run as running
from harness.running import served_before
from harness.running.prepare import prepare
from harness.running.run import Command, obtain

WORDS = (
    "+workload=azure_code", "engine=sim", "workload.num_requests=20", "tracking=none",
    "figure=null",
)  # fmt: skip
OF_VLLM = ("+system=vllm", *WORDS)
OF_AEGAEON = ("+system=aegaeon", *WORDS)


def made(
    folder: Path, *words: str, said: list[str] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The summary and the manifest of the run, as a command makes it in `folder`."""
    found = composed(words)
    parts = prepare(found.configured(()))
    command = Command(folder, named=False, choices=found.choices, overrides=words)
    told = said.append if said is not None else print
    path = obtain(parts, command, wait=False, announce=told).path
    summary, manifest = (path / "summary.json", path / "manifest.json")
    return json.loads(summary.read_text()), json.loads(manifest.read_text())


@pytest.fixture(autouse=True)
def hydra_of_its_own() -> Iterator[None]:
    yield
    GlobalHydra.instance().clear()


def test_a_changed_slo_is_scored_as_if_it_had_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, manifest = made(tmp_path / "a", *OF_VLLM, "slo.ttft_s=60")
    anew, _ = made(tmp_path / "b", *OF_VLLM, "slo.ttft_s=1e-6")
    said: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(running, "serve", None)  # which nothing can call
        scored, its = made(tmp_path / "a", *OF_VLLM, "slo.ttft_s=1e-6", said=said)
    assert scored | {"wall_s": 0} == anew | {"wall_s": 0}
    assert first["slo_attainment"] != scored["slo_attainment"]
    (source,) = (path for path in (tmp_path / "a").glob("vllm*") if its["scored_from"] == path.name)
    assert said == [f"scored for another SLO, and not served again: {source}"]
    assert its["config_hash"] != manifest["config_hash"]
    assert its["served_hash"] == manifest["served_hash"]
    assert "slo.ttft_s=1e-6" in its["overrides"]


def test_what_was_run_again_meanwhile_by_other_sources_is_not_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between being found and being held."""
    made(tmp_path, *OF_VLLM)
    found = served_before.found

    def changing(runs: Path, identity: Identity) -> FinishedRun | None:
        run = found(runs, identity)
        assert run is not None
        edited = run.manifest | {"sources": {"harness/edited.py": "1"}}
        (run.path / "manifest.json").write_text(json.dumps(edited))
        return run

    monkeypatch.setattr(served_before, "found", changing)
    with pytest.raises(UsageError, match="has changed meanwhile: give the command again"):
        made(tmp_path, *OF_VLLM, "slo.ttft_s=60")
    assert len([*tmp_path.glob("vllm*")]) == 1


def test_a_system_that_reads_its_slo_runs_again(tmp_path: Path) -> None:
    made(tmp_path, *OF_AEGAEON)
    _, other_ttft = made(tmp_path, *OF_AEGAEON, "slo.ttft_s=60")
    _, other_tbt = made(tmp_path, *OF_AEGAEON, "slo.tbt_s=60")
    assert "scored_from" in other_ttft
    assert "scored_from" not in other_tbt


@pytest.mark.parametrize("word", ["seed=1", "again=true", "system.max_num_seqs=4"])
def test_what_is_served_otherwise_runs(word: str, tmp_path: Path) -> None:
    made(tmp_path, *OF_VLLM)
    _, manifest = made(tmp_path, *OF_VLLM, "slo.ttft_s=60", word)
    assert "scored_from" not in manifest
