"""Makes a run's folder of another tool's result: `python -m harness import FILE`.

FILE is a result of `vllm bench serve --save-detailed`, AIPerf's profile_export.jsonl, GuideLLM's
benchmarks.json, or inference-perf's per_request_lifecycle_metrics.json. The folder has
requests.parquet, summary.json by this harness's metrics, and a manifest that names the tool, the
file and its sha256. Plots, score, compare and explain read it. Nobody watched that tool's client,
so the verdict is NOT JUDGED, never VALID. What the file lacks stands in the verdict's notes, and
numbers that need it are none.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import yaml

from harness.configuration.command_line import ends_in_order, parser
from harness.configuration.config import build
from harness.configuration.options import CONF
from harness.errors import UsageError
from harness.exporting.results import Result, read_result
from harness.records.manifest import ended, hash_of, surroundings, utc
from harness.records.metrics import summarise
from harness.records.run_folder import RunFolder
from harness.records.tables import EVENTS, REQUESTS
from harness.schedule import Provenance

SLO, STALL_S = "chat", 1.0  # as of a run that names neither: conf/config.yaml
UNKNOWN = {"name": "not told", "device": "unknown device", "num_devices": 0}


def notes(result: Result) -> Iterator[str]:
    """What a reader must know of an imported run."""
    yield from (f"not in the file: {what}" for what in result.lacking)
    if result.left_out:
        yield f"{result.left_out} requests of the tool's warm-up are left out"


def write_import(result: Result, file: Path, sha256: str, out: Path) -> None:
    """Raises UsageError where `out` is not free, RunError where it cannot be written."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} holds files; name another folder with --out")
    table = pa.Table.from_pylist(result.rows, schema=REQUESTS)
    summary = summarise(
        table, build(yaml.safe_load((CONF / "slo" / f"{SLO}.yaml").read_text()), "slo"),
        events=(), num_devices=None, wall_s=0.0, simulated=result.simulated, stall_s=STALL_S,
    )  # fmt: skip
    reason = f"imported from {result.tool}: whether its client was late is not known"
    summary["verdict"] = {"status": "NOT JUDGED", "reasons": [reason]}
    if lacking := [*notes(result)]:
        summary["verdict"] |= {"noted": ["not in the file"], "notes": lacking}
    try:
        json.dumps(summary, allow_nan=False)
    except ValueError as error:
        raise UsageError(f"{file} has times or tokens that give no number: {error}") from error
    origin = Provenance(file.name, str(file), [], "as of the file", sha256, [f"by {result.tool}"])
    imported = {"tool": result.tool, "file": str(file), "sha256": sha256}
    told = table.select(["arrival_s", "model", "prompt_tokens", "output_tokens"]).to_pylist()
    at = datetime.now(UTC)
    manifest = {
        "engine_name": "imported", "simulated": result.simulated,
        "imported": imported | {"lacking": result.lacking},
        "choices": {"system": result.tool, "workload": file.name, "engine": "imported",
                    "model": ",".join(sorted({row["model"] for row in result.rows}))},
        "overrides": [f"import={file.name}"], "config_hash": hash_of(imported),
        "command": ["python", "-m", "harness", "import", str(file)], "started_utc": utc(at),
        "seeds": {"seed": 0}, "hardware": UNKNOWN, "dataset": asdict(origin),
        "schedule_sha256": hashlib.sha256(json.dumps(told).encode()).hexdigest(), **surroundings(),
    }  # fmt: skip
    folder = RunFolder(out)
    folder.begin()
    folder.write_config({"imported": imported, "seed": 0})
    folder.write_requests(table)
    folder.write_events(pa.Table.from_pylist([], EVENTS))
    folder.write_manifest(ended(manifest, "complete", resolved={}, gpu=None, at=at))
    folder.write_summary(summary)


@ends_in_order
def main(arguments: Sequence[str] | None = None) -> int:
    about = parser("import", __doc__)
    about.add_argument("file", type=Path, metavar="FILE", help="see above")
    about.add_argument("--benchmark", type=int, metavar="N",
                       help="which of GuideLLM's benchmarks, from 1")  # fmt: skip
    about.add_argument("--out", type=Path, metavar="DIR",
                       help="(results/runs/imported-FILE-SHA256)")  # fmt: skip
    chosen = about.parse_args(arguments)
    try:
        content = chosen.file.read_bytes()
    except OSError as error:
        raise UsageError(f"{chosen.file} cannot be read: {error.strerror}") from error
    result = read_result(content, chosen.file, chosen.benchmark)
    sha256 = hashlib.sha256(content).hexdigest()
    name = f"imported-{chosen.file.stem}-{sha256[:12]}"
    out = chosen.out or Path("results/runs") / name
    write_import(result, chosen.file, sha256, out)
    print(f"{out}: {len(result.rows)} requests of {result.tool}; NOT JUDGED")
    for note in notes(result):
        print(note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
