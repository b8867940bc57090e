"""report.html: a finished run on one page that needs no network, beside its run.png.

The table, the verdict rule by rule, a timeline of instances that can be zoomed, the picture, the
command that repeats the run and where its numbers came from. The page is plots/page/report.html
with its style and script in it.
"""

from __future__ import annotations

import json
import shlex
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.errors import RunError
from harness.files import write_text
from harness.records import run_table
from harness.records.answers import EARLY_ENDS
from harness.records.numbers import number, seconds
from harness.records.run_folder import FinishedRun
from harness.records.run_table import COLUMNS, LATENCIES, absent, origin, title
from harness.records.sources import code_hash
from harness.records.verdict import Evidence, Rule, rules
from plots import run as picture
from plots.timeline import timeline

PAGE = Path(__file__).resolve().parent / "page"
MAX_MODELS = 12  # by name
# Kinds of events that the verdict looks at.
JUDGED = pa.array([EARLY_ENDS, "heartbeat", "stall", "prefix_cache", "no_progress"])


def draw(run_dir: Path) -> Path:
    """run.png, then report.html with it."""
    picture.draw(run_dir)
    return write(run_dir)


def write(run_dir: Path) -> Path:
    """Makes `run_dir`/report.html from the run's other files and returns its path. UsageError where
    `run_dir` is no complete run's."""
    run = FinishedRun.load(run_dir)
    path = run_dir / "report.html"
    try:
        write_text(path, page(run))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def page(run: FinishedRun) -> str:
    """The whole page. Every value in it is escaped but the style, the script and the pictures."""
    events = pq.read_table(run.path / "events.parquet")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((PAGE / "report.html").read_text())
    drawn = timeline(run.requests, events)
    return template.render(
        style=(PAGE / "report.css").read_text(),
        script=(PAGE / "report.js").read_text(),
        title=title(run.manifest),
        name=run.path.resolve().name,
        origin=origin(run.manifest),
        simulator=run_table.simulator([run.manifest]),
        verdict=run.summary["verdict"],
        rules=_rules(run, events.filter(pc.is_in(events["kind"], JUDGED)).to_pylist()),
        tiles=list(_tiles(run.summary)),
        latencies=_latencies(run.summary),
        columns=list(COLUMNS.values()),
        models=_models(run.summary["models"]),
        num_more_models=max(0, len(run.summary["models"]) - MAX_MODELS),
        totals=list(_totals(run)),
        pictures=[_embedded(path) for path in sorted(run.path.glob("*.png"))],
        timeline=drawn.as_json(),
        by_requests=any("served" in rows for rows in drawn.rows),
        within=seconds(drawn.within_s) if drawn.within_s else "",
        num_left_out=drawn.num_left_out,
        repeat=repeat(run.manifest),
        provenance=list(_provenance(run)),
    )


def repeat(manifest: Mapping[str, Any]) -> list[str]:
    """Shell lines that run the same again: the revision, where it is known, and the command."""
    git = manifest["git"]
    lines = [f"git checkout {git['revision']}"] if git else []
    groups = manifest["overrides"]
    typed = manifest["command"]
    if len(typed) > 2 and typed[2] == "harness" and not _swept(typed):
        return [*lines, shlex.join(typed)]
    return [*lines, shlex.join(["python", "-m", "harness", *groups])]


def _swept(words: list[str]) -> bool:
    return bool({"-m", "--multirun"} & set(words[3:]))


def _rules(run: FinishedRun, events: list[dict[str, Any]]) -> list[Rule]:
    """As the run was judged, from its files; `summary.json` has the reasons alone."""
    for event in events:
        event["fields"] = json.loads(event["fields"])
    return rules(Evidence.of(run.requests, events, simulated=run.manifest["simulated"]))


def _tiles(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(name, number, what is beside it)."""
    for key in ("ttft_s", "tpot_s", "e2e_s"):
        row = summary[key]
        yield f"{LATENCIES[key]} P50", _cell(row, "p50"), f"P99 {_cell(row, 'p99')}"
    rate = number(summary["output_throughput_tokens_per_s"])
    yield "output", f"{rate} tok/s", f"{number(summary['request_throughput_per_s'])} requests/s"
    slo = summary["slo"]
    limits = f"TTFT {seconds(slo['ttft_s'])}, TBT {seconds(slo['tbt_s'])}"
    share = summary["slo_attainment"]["request"]
    yield "requests within SLO", "none" if share is None else f"{share:.1%}", limits
    done = f"{summary['num_completed']:,} of {summary['num_requests']:,}"
    yield "completed", done, f"{summary['num_failed']:,} failed"


def _latencies(summary: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    return [
        (name, [_cell(summary[key], column) for column in COLUMNS])
        for key, name in LATENCIES.items()
    ]


def _cell(row: Mapping[str, float | None], column: str) -> str:
    value = row[column]
    return absent(row, column) if value is None else seconds(value)


def _models(models: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    if len(models) < 2:
        return []
    return [
        (name, f"{row['num_requests']:,}", [
            "none" if (value := row["slo_attainment"][kind]) is None else f"{value:.1%}"
            for kind in ("token", "time", "request")
        ])
        for name, row in list(models.items())[:MAX_MODELS]
    ]  # fmt: skip


def _totals(run: FinishedRun) -> Iterator[tuple[str, str]]:
    """What the table at the end of a run has below its latencies, as text."""
    goodput = number(run.summary["goodput_per_s"])
    yield "goodput", f"{goodput} requests/s within SLO {run.summary['slo']['name']}"
    yield from run_table.device_lines(run.summary)
    yield "workload", "; ".join(run_table.workload_lines(run.manifest["dataset"]))
    errors = run.summary.get("errors", {})
    if errors:
        yield "errors", "; ".join(f"{count} x {text}" for text, count in errors.items())


def _provenance(run: FinishedRun) -> Iterator[tuple[str, str]]:
    manifest, git = run.manifest, run.manifest["git"]
    yield "configuration", manifest["config_hash"]
    yield "schedule sha256", manifest["schedule_sha256"]
    if sources := manifest.get("sources"):
        yield "sources", f"{code_hash(sources)}, of {len(sources)} files (manifest.json names them)"
    if git:
        yield "revision", git["revision"] + (", with changes" if git["dirty"] else "")
    yield "ran", f"{manifest['started_utc']} to {manifest['ended_utc']}"
    machine = manifest["machine"]
    yield "harness on", f"{machine['cpu']}, {machine['num_cores']} cores, {machine['platform']}"
    if machine.get("gpus"):
        yield "GPUs", ", ".join(str(gpu.get("name", gpu)) for gpu in machine["gpus"])
    yield "versions", ", ".join(f"{name} {v}" for name, v in manifest["versions"].items())
    yield "options", ", ".join(f"{group}={name}" for group, name in manifest["choices"].items())
    yield "seeds", run_table.seeds(manifest)


def _embedded(path: Path) -> tuple[str, str]:
    """(name, data URL)."""
    return path.name, f"data:image/png;base64,{b64encode(path.read_bytes()).decode()}"
