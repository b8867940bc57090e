"""Makes the published examples of `python -m harness compare`: results/published/compare/.

    python -m tests.benchmarks.compare_examples [--only NAME …] [--runs DIR]

`aegaeon`: Aegaeon against ServerlessLLM, simulated, five seeds. `band`: two limits of a batch on a
simulated H100, whose differences the simulator's band makes ties. `aa` and `ab`: live runs of our
engine on this machine, the same run twice and one with a smaller limit of a batch, with this
machine's noise floor. Runs that are there are not made again; a noise floor is. Each example is a
JSON file with the rows and what each run was, and a picture; examples.md has the tables of all
that are there. `--runs` also draws the pictures of examples that are not made now, of whose runs
it has the very ones.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any

from harness.comparing.noise_floor import drifting
from harness.files import read_json, write_json, write_text
from harness.records.manifest import PROJECT
from harness.records.run_folder import NOISE_FLOOR, FinishedRun
from harness.records.sources import code_hash

OUT = PROJECT / "results/published/compare"
QUIET = ("tracking=none", "progress=false", "figure=null")
SEEDS = range(5)
TESTBED = (
    "+workload=aegaeon", "workload.dataset.parameters.num_models=48",
    "workload.dataset.parameters.rate_per_s=0.5", "workload.synthetic.num_requests_per_model=30",
    "model_set=aegaeon", "hardware=h800x16", "engine=sim", "slo=aegaeon",
)  # fmt: skip
H100 = (
    "+system=vllm", "+workload=burstgpt", "workload.arrivals.kind=poisson",
    "workload.num_requests=1000", "workload.scale.to_rate_per_s=20", "model=llama3.1-8b",
    "hardware=h100x1", "engine=sim", "engine.profile=vllm_v1",
)  # fmt: skip
LIVE = (
    "+system=vllm", "+workload=azure_conv", "workload.num_requests=700",
    "workload.lengths.scale_prompt=0.25", "workload.lengths.scale_output=0.25",
    "workload.scale.to_rate_per_s=10", "model=tiny-llama", "engine=torch", "engine.num_threads=1",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Example:
    """`runs`: the words of each, by the name of its folder, the reference's first. `repeats`: of
    the first run, for the noise floor; 0: it is simulated."""

    title: str
    runs: dict[str, tuple[str, ...]]
    repeats: int = 0


EXAMPLES = {
    "aegaeon": Example(
        "Aegaeon against ServerlessLLM, simulated, five seeds",
        {
            f"{system}-{seed}": (f"+system={system}", *TESTBED, f"seed={seed}")
            for system in ("serverlessllm", "aegaeon")
            for seed in SEEDS
        },
    ),
    "band": Example(
        "Batches of at most 2,048 tokens against at most 512, simulated, five seeds",
        {
            f"h100-{tokens}-{seed}": (
                *H100,
                f"system.max_num_batched_tokens={tokens}",
                f"seed={seed}",
            )
            for tokens in (2048, 512)
            for seed in SEEDS
        },
    ),
    "aa": Example("A/A: the same live run twice", {"live-a": LIVE, "live-again": LIVE}, 5),
    "ab": Example(
        "A/B: batches of at most 256 requests against at most 4, live",
        {"live-a": LIVE, "live-b": (*LIVE, "system.max_num_seqs=4")},
        5,
    ),
}


def harness(*words: str | Path) -> str:
    """What the command prints. Exits with its error where it fails."""
    command = [sys.executable, "-m", "harness", *map(str, words)]
    print(shlex.join(command[1:]), file=sys.stderr)
    wide = os.environ | {"COLUMNS": "100"}
    done = subprocess.run(command, cwd=PROJECT, env=wide, capture_output=True, text=True,
                          check=False)  # fmt: skip
    if done.returncode:
        sys.exit(f"{shlex.join(command[1:])}\n{done.stderr}")
    return done.stdout


def about(run: FinishedRun) -> dict[str, Any]:
    """What a run was and on what."""
    manifest = run.manifest
    hardware = {key: manifest["hardware"][key] for key in ("name", "device", "num_devices")}
    return {
        "run": run.path.name,
        "command": ["python", "-m", "harness", *manifest["overrides"]],
        **{key: manifest[key] for key in ("config_hash", "schedule_sha256", "seeds", "git")},
        "code": code_hash(manifest["sources"]),
        "engine": manifest["engine_name"],
        "simulated": manifest["simulated"],
        "hardware": hardware,
        "machine": manifest["machine"],
        "ended_utc": manifest["ended_utc"],
        "verdict": run.summary["verdict"]["status"],
    }


def make(example: Example, folder: Path, floors: set[Path]) -> dict[str, Any]:
    """The runs in `folder`, compared. `floors`: the runs whose noise floor was measured now."""
    for name, words in example.runs.items():
        harness(*words, *QUIET, f"hydra.run.dir={folder / name}")
    paths = [folder / name for name in example.runs]
    if example.repeats and paths[0] not in floors:
        harness("compare", "--floor", str(example.repeats), paths[0])
        floors.add(paths[0])
    with TemporaryDirectory() as temporary:
        rows = Path(temporary) / "rows.json"
        table = harness("compare", *paths, "--out", rows)
        judged = json.loads(rows.read_text(encoding="utf-8"))
    floor = paths[0] / NOISE_FLOOR
    return {
        "title": example.title,
        "runs": [about(FinishedRun.load(path)) for path in paths],
        "noise_floor": read_json(floor) if floor.is_file() else None,
        "rows": judged,
        "table": [line.rstrip() for line in table.rstrip().splitlines()],
    }


def are_those(folder: Path, runs: Sequence[dict[str, Any]]) -> bool:
    """Whether `folder` has the very runs that an example is of."""
    manifests = [folder / run["run"] / "manifest.json" for run in runs]
    return all(
        path.is_file() and read_json(path)["ended_utc"] == run["ended_utc"]
        for path, run in zip(manifests, runs, strict=True)
    )


def page(made: Sequence[dict[str, Any]]) -> str:
    lines = ["# Examples of `python -m harness compare`", ""]
    lines += [
        "`make compare-examples` makes them. The JSON files beside this page have every digit, and",
        "the command, configuration, code, seed, hardware and machine of each run.",
        "",
    ]
    for each in made:
        first = each["runs"][0]
        ran = f"{first['hardware']['num_devices']} x {first['hardware']['device']}"
        where = f"SIMULATED, {ran}" if first["simulated"] else f"{first['engine']}, live, {ran}"
        floor = each["noise_floor"]
        repeats = f"; noise floor of the run and {len(floor['repeats'])} repeats" if floor else ""
        revision = (first["git"] or {}).get("revision", "unknown")[:12]
        said = f"{where}; {first['machine']['cpu']}; revision {revision}{repeats}."
        lines += [f"## {each['title']}", "", answer(each["rows"]), "", said, ""]
        if floor and (drift := drifting(floor["values"])):
            lines += [fill(drift, 118), ""]
        if "picture" in each:
            lines += [f"![{each['title']}]({each['picture']})", ""]
        lines += ["```", *each["table"], "```", ""]
    return "\n".join(lines)


def answer(rows: Sequence[dict[str, Any]]) -> str:
    """The metrics by their verdicts."""
    by: dict[str, list[str]] = {}
    for row in rows:
        by.setdefault(row["verdict"], []).append(f"`{row['metric']}`")
    told = "; ".join(f"{word} in {', '.join(names)}" for word, names in by.items())
    return fill(f"B against A: {told}.", 118)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("compare_examples", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=EXAMPLES, default=[*EXAMPLES])
    parser.add_argument("--runs", type=Path, default=Path("results/runs/compare"))
    chosen = parser.parse_args(arguments)
    OUT.mkdir(parents=True, exist_ok=True)
    floors: set[Path] = set()
    for name in chosen.only:
        write_json(OUT / f"{name}.json", make(EXAMPLES[name], chosen.runs, floors))
    files = [file for name in EXAMPLES if (file := OUT / f"{name}.json").is_file()]
    for file in files:
        made = read_json(file)
        if are_those(chosen.runs, made["runs"]):
            paths, picture = [chosen.runs / run["run"] for run in made["runs"]], f"{file.stem}.png"
            harness("plots", "compare", *paths, "--out", OUT / picture)
            write_json(file, made | {"picture": picture})
    write_text(OUT / "examples.md", page([read_json(file) for file in files]))


if __name__ == "__main__":
    main()
