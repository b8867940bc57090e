"""Token parity with `vllm bench serve`: one server, one schedule, the same prompts, two clients.

    python -m tests.benchmarks.bench_parity [--json FILE] [--requests N]

The golden server (harness/selftest) answers two tokens in each event. `vllm bench serve` replays a
trace with its own times (`--dataset-name timed_trace`); then the harness replays the same times
with the prompts that the server got from it, token by token. Both clients' own outputs stand side
by side, with the server's truth of each, and which definitions differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.exporting.conventions import DEFINITIONS, HARNESS, Definition, Seen, percentile
from harness.exporting.explain import reasons
from harness.files import write_text
from harness.records.manifest import git_revision, machine
from harness.records.run_folder import FinishedRun
from harness.request import Prompt
from harness.schedule import Provenance, Schedule
from harness.selftest.golden_server import Answer, GoldenServer
from harness.selftest.script import Script
from tests.running import run_command
from tests.unit.workloads.texts import make_tokenizer

Floats = npt.NDArray[np.float64]
SERVE = """\
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""  # `vllm bench serve`, whose command needs the metadata of a package named vllm
PER_EVENT, RATE_PER_S = 2, 20.0
SCRIPT = Script(ttft_s=0.1, gap_s=0.02, tokens_per_event=PER_EVENT)
QUANTITIES = {"TTFT": "ttft", "TPOT": "tpot", "gaps": "itl", "E2E": "e2el"}  # and vLLM's names


def trace(path: Path, num: int) -> list[dict[str, Any]]:
    """Poisson arrivals (s), prompts of 16 to 199 tokens and answers of 8 to 40."""
    rng = np.random.default_rng(0)
    at_s = np.cumsum(rng.exponential(1 / RATE_PER_S, num))
    prompts, outputs = rng.integers(16, 200, num), rng.integers(8, 41, num)
    rows = [
        {
            "timestamp": round(float(at_s[i] - at_s[0]), 6), "input_length": int(prompts[i]),
            "output_length": int(outputs[i]), "hash_ids": [i * 100 + k for k in range(16)],
        }
        for i in range(num)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def by_vllm(url: str, folder: Path, num: int) -> dict[str, Any]:
    """What `vllm bench serve` writes of the trace in `folder`."""
    tokenizer = make_tokenizer(folder / "tokenizer")
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    write_text(tokenizer / "tokenizer_config.json", json.dumps(config))
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    labels = [(f"--timed-trace-label-{key.replace('_', '-')}", key) for key in keys]
    subprocess.run(
        [
            sys.executable, "-c", SERVE,
            "--backend", "openai", "--base-url", url.removesuffix("/v1"),
            "--endpoint", "/v1/completions", "--model", "m", "--tokenizer", str(tokenizer),
            "--dataset-name", "timed_trace", "--dataset-path", str(folder / "trace.jsonl"),
            *(word for label in labels for word in label),
            "--num-prompts", str(num), "--request-id-prefix", "parity-", "--temperature", "0",
            "--percentile-metrics", "ttft,tpot,itl,e2el", "--ready-check-timeout-sec", "0",
            "--disable-tqdm", "--save-result", "--save-detailed", "--result-dir", str(folder),
            "--result-filename", "vllm.json",
        ],
        check=True, env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
    )  # fmt: skip
    found: dict[str, Any] = json.loads((folder / "vllm.json").read_text())
    return found


def by_harness(url: str, folder: Path, schedule: Schedule) -> FinishedRun:
    schedule.save(folder / "schedule.parquet")
    done = run_command(
        "+system=vllm", "+workload=trace", f"workload.path={folder}/schedule.parquet",
        "engine=openai", f"engine.url={url}", "tracking=none", "figure=null", "progress=false",
        f"hydra.run.dir={folder}/run", timeout=120, env={},  # not forked, as a user's
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the harness ended with {done.returncode}: {done.stderr[-2000:]}")
    return FinishedRun.load(folder / "run")


def schedule_of(rows: Sequence[dict[str, Any]], answers: Sequence[Answer]) -> Schedule:
    """`rows` with the prompts that vLLM's client sent, which it numbers."""
    sent = {int(a.head.split("x-request-id: parity-")[1].split()[0]): a.body for a in answers}
    ids = [sent[i]["prompt"] for i in range(len(rows))]
    return Schedule(
        arrival_s=np.array([row["timestamp"] for row in rows]),
        model=["m"] * len(rows),
        prompt_tokens=np.array([len(each) for each in ids]),
        output_tokens=np.array([row["output_length"] for row in rows]),
        provenance=Provenance("parity", "made here", [], "none", "", []),
        prompts=[Prompt.of("", each, [0] * len(each)) for each in ids],
    )


def truth_s(answers: Sequence[Answer]) -> dict[str, Floats]:
    """The server's samples of each quantity, by vLLM's definitions."""
    tokens = [each.body["max_tokens"] for each in answers]
    first = np.array([each.writes_s[0] - each.received_s for each in answers])
    last = np.array([each.writes_s[-1] - each.received_s for each in answers])
    gaps = np.concatenate([np.diff(each.writes_s) for each in answers])
    return {"TTFT": first, "TPOT": (last - first) / (np.array(tokens) - 1), "gaps": gaps,
            "E2E": last}  # fmt: skip


def compared(
    run: FinishedRun, file: dict[str, Any], truths: Sequence[dict[str, Floats]]
) -> list[dict[str, Any]]:
    """A row for the mean and the P99 of each quantity, in ms. `truths`: of vLLM's client's answers
    and of the harness's."""
    seen, rows = Seen(run), []

    def definition(quantity: str, tool: str) -> Definition:
        return next(d for d in DEFINITIONS if (d.quantity, d.tool) == (quantity, tool))

    for quantity, name in QUANTITIES.items():
        ours, theirs = definition(quantity, HARNESS), definition(quantity, "vllm")
        for word in ("mean", "p99"):
            numbers = [
                samples.mean if word == "mean" else percentile(samples, 99)
                for samples in map(seen.of, (theirs, ours))
            ]
            true = [
                float(t[quantity].mean() if word == "mean" else np.percentile(t[quantity], 99))
                for t in truths
            ]
            rows.append({
                "quantity": quantity, "statistic": word, "vllm": file[f"{word}_{name}_ms"],
                "vllm_server": 1e3 * true[0], "harness_by_vllms": 1e3 * (numbers[0] or np.nan),
                "harness_server": 1e3 * true[1], "harness": 1e3 * (numbers[1] or np.nan),
                "differs": [why for why, _ in reasons(seen, ours, theirs)],
            })  # fmt: skip
    return rows


def measured(folder: Path, num: int) -> dict[str, Any]:
    rows = trace(folder / "trace.jsonl", num)
    with GoldenServer(lambda _: SCRIPT, ["m"]) as server:
        file = by_vllm(server.url, folder, num)
        theirs = server.answers[:]
        run = by_harness(server.url, folder, schedule_of(rows, theirs))
        ours = server.answers[num:]
    prompts = [sorted(json.dumps(a.body["prompt"]) for a in answers) for answers in (theirs, ours)]
    counts = [len(times) for times in run.requests["token_times_s"].to_pylist()]
    triples = zip((row["output_length"] for row in rows), file["output_lens"], counts, strict=True)
    return {
        "git": git_revision(), "machine": machine(),
        "load_average": round(os.getloadavg()[0], 2), "vllm_version": _version(),
        "requests": num, "verdict": run.summary["verdict"],
        "same_prompts": prompts[0] == prompts[1],
        "tokens": [{"asked": a, "vllm": v, "harness": h} for a, v, h in triples],
        "rows": compared(run, file, (truth_s(theirs), truth_s(ours))),
    }  # fmt: skip


def _version() -> str:
    from vllm import __version__

    return str(__version__)


def markdown(found: dict[str, Any]) -> str:
    equal = sum(row["asked"] == row["vllm"] == row["harness"] for row in found["tokens"])
    host = found["machine"]
    lines = [
        "# The harness beside vllm bench serve",
        "",
        f"`vllm bench serve` {found['vllm_version']} and the harness sent the same "
        f"{found['requests']} requests to one golden",
        "server, at the same times. Same prompts at the server, token by token: "
        f"{'yes' if found['same_prompts'] else 'NO'}. Requests with the",
        f"same count of tokens by both, which is the asked one: {equal} of {found['requests']}. "
        "The server sends two tokens an event.",
        "",
        "Milliseconds. The clients ran one after the other, so each has a truth of its own: the",
        "server's times, by vLLM's definition. `same definition` is vLLM's, of the harness's run.",
        f"The harness's run is {found['verdict']['status']}. Clients and server ran on "
        f"{host['cpu']}, {host['num_cores']} cores,",
        f"load average {found['load_average']}. With a load above the cores, times tell of other "
        "work, and only the",
        "counts of tokens hold.",
        "",
        "| | vLLM's client | its server | the harness, same definition | its server | the harness, "
        "own definition | vLLM's definition differs |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        keys = ("vllm", "vllm_server", "harness_by_vllms", "harness_server", "harness")
        cells = [f"{row[key]:.2f}" for key in keys]
        differs = "; ".join(row["differs"]) or "no"
        name = f"{row['quantity']}, {row['statistic']}"
        lines.append(f"| {name} | {' | '.join(cells)} | {differs} |")
    return "\n".join([*lines, "", "`make bench-client` makes this page.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="keep what was found, and a table beside it")
    parser.add_argument("--requests", type=int, default=200)
    chosen = parser.parse_args()
    if find_spec("vllm") is None:
        parser.exit(0, "vLLM is not installed here: no parity with vllm bench serve\n")
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), chosen.requests)
    print(markdown(found))
    if chosen.json:
        write_text(chosen.json, json.dumps(found, indent=1) + "\n")
        write_text(chosen.json.with_suffix(".md"), markdown(found))


if __name__ == "__main__":
    main()
