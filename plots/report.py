"""report.html: a finished run on one page that needs no network, beside its run.png.

The table, the verdict rule by rule, a timeline of instances that can be zoomed, the picture, the
command that repeats the run and where its numbers came from. The page is plots/page/report.html
with its style and script in it.
"""

from __future__ import annotations

import json
import shlex
from base64 import b64encode
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import jinja2
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import UsageError
from harness.files import write_text, writing
from harness.records import end_table, run_table
from harness.records.answers import EARLY_ENDS
from harness.records.closed_loop import CLOSED_LOOP
from harness.records.evidence import Evidence
from harness.records.numbers import number, seconds
from harness.records.run_folder import FinishedRun
from harness.records.run_table import COLUMNS, LATENCIES, origin, title
from harness.records.sources import code_hash
from harness.records.verdict import Rule, rules
from plots import run as picture
from plots import scaling
from plots.timeline import timeline

PAGE = Path(__file__).resolve().parent / "page"
MAX_MODELS = 12  # models that are shown by name
# Kinds of events that the verdict looks at.
JUDGED = ("heartbeat", "stall", "late_stamps", "prefix_cache", "no_progress", "scrapes")


def draw(run_dir: Path) -> Path:
    """Writes run.png, and scaling.png if the run scaled; then report.html with them."""
    picture.draw(run_dir)
    scaling.draw(run_dir)
    if (run_dir / "engine_metrics.parquet").is_file():
        from plots import engine_metrics  # with pandas

        engine_metrics.draw(run_dir)
    return write(run_dir)


def write(run_dir: Path) -> Path:
    """Makes `run_dir`/report.html from the run's other files and returns its path. UsageError where
    `run_dir` is no complete run's, or its files lack what the page shows."""
    run = FinishedRun.load(run_dir)
    path = run_dir / "report.html"
    try:
        made = page(run)
    except jinja2.UndefinedError as error:
        raise UsageError(f"{run_dir} is damaged: {error.message}") from error
    with writing(path):
        write_text(path, made)
    return path


def page(run: FinishedRun) -> str:
    """The whole page. Every value in it is escaped but the style, the script and the pictures."""
    events, scaled = run.events(), scaling.scaling(run)
    judged = pc.is_in(events["kind"], pa.array([CLOSED_LOOP, EARLY_ENDS, *JUDGED]))
    return template("report.html").render(
        script=(PAGE / "report.js").read_text(),
        title=title(run.manifest),
        name=run.path.resolve().name,
        origin=origin(run.manifest),
        simulator=_simulator(run),
        manifest=run.manifest,
        summary=run.summary,
        rules=_rules(run, events.filter(judged).to_pylist()),
        latencies=LATENCIES,
        columns=COLUMNS,
        cell=run_table.cell,
        grey=end_table.within_error(run.summary, run.manifest),
        ends_of=run_table.ends_of,
        slo_words=end_table.slo_words,
        model_columns=end_table.MODEL_COLUMNS,
        models=model_rows(run.summary["models"]),
        lines=[
            *end_table.error_lines(run.summary, run.manifest),
            *end_table.slo_lines(run.summary),
            *end_table.other_lines(run.summary),
        ],
        workload="; ".join(end_table.workload_lines(run.manifest["dataset"])),
        pictures={
            path.name: data_url(path.read_bytes()) for path in sorted(run.path.glob("*.png"))
        },
        timeline=timeline(run.requests, events),
        scaling=scaling.said(scaled, run.summary) if scaled else {},
        episode_title=scaling.TITLE,
        episode_columns=scaling.COLUMNS,
        episodes=[*scaling.episode_rows(scaled)] if scaled else [],
        repeat=repeat(run.manifest),
        code_hash=code_hash,
        seeds=run_table.seeds(run.manifest),
    )


def model_rows(models: Mapping[str, Any]) -> list[list[str]]:
    """Of the most requested models; a single model has no numbers of its own."""
    return [*islice(end_table.model_rows(models), MAX_MODELS)] if len(models) > 1 else []


def _simulator(run: FinishedRun) -> list[str]:
    if not run.manifest["simulated"]:
        return []
    band = run_table.band_line(run.manifest, run.summary)
    return [*run_table.simulator([run.manifest]), f"band: {band}"]


def template(name: str) -> jinja2.Template:
    """A page of plots/page, which escapes its values but the style."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"seconds": seconds, "number": number, "percent": run_table.share}
    environment.globals["style"] = (PAGE / "report.css").read_text()
    return environment.from_string((PAGE / name).read_text())


def repeat(manifest: Mapping[str, Any]) -> list[str]:
    """Shell lines that run the same again: the revision, where it is known, and the command."""
    typed = manifest["command"]
    swept = {"-m", "--multirun"} & set(typed[3:])
    if swept or typed[2:3] != ["harness"]:
        typed = ["python", "-m", "harness", *manifest["overrides"]]
    git = manifest["git"]
    return [*([f"git checkout {git['revision']}"] if git else []), shlex.join(typed)]


def _rules(run: FinishedRun, events: list[dict[str, Any]]) -> list[Rule]:
    """The rules as the run was judged by them, from its files; `summary.json` has the reasons
    alone."""
    for event in events:
        event["fields"] = json.loads(event["fields"])
    return rules(Evidence.of(run.requests, events, simulated=run.manifest["simulated"]))


def data_url(picture: bytes) -> str:
    """`picture`: a PNG's bytes."""
    return f"data:image/png;base64,{b64encode(picture).decode()}"
