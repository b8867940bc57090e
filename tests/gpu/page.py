"""What came of the steps on a GPU: gpu.json, and the page that tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.files import read_json

OF_RUNS = ("num_completed", "num_requests", "ttft_s", "tpot_s", "verdict")


def collected(
    facts: Mapping[str, Any], found: Sequence[Mapping[str, Any]], out: Path
) -> dict[str, Any]:
    """gpu.json. `facts`: where the steps ran, `out`: the folder with a folder for each step."""
    runs = {}
    for step in (row["step"] for row in found):
        file = out / step / "run" / "summary.json"
        if file.exists():
            made = read_json(file)
            runs[step] = {name: made[name] for name in OF_RUNS}
    decode = out / "decode" / "decode.json"
    return {
        **facts, "steps": list(found), "runs": runs,
        "decode": read_json(decode) if decode.exists() else None,
    }  # fmt: skip


def page(made: Mapping[str, Any]) -> str:
    """Of what `collected` gave: where, what passed, and what was measured."""
    revision = made["revision"] or {"revision": "unknown", "dirty": False}
    code = revision["revision"] + (", with uncommitted changes" if revision["dirty"] else "")
    gpus = ", ".join(f"{g['name']} (driver {g['driver']})" for g in made["machine"]["gpus"])
    lines = [
        "# On a GPU", "",
        f"{gpus}; torch {made['versions'].get('torch', 'unknown')}; revision {code}; "
        f"profile {made['hardware']}. Random weights. Live, on one machine.", "",
        "| step | asks | result | seconds | last line of its log |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for row in made["steps"]:
        told = row["last_line"].replace("|", "\\|")[:100]
        lines.append(
            f"| {row['step']} | {row['asks']} | {row['status']} | {row['seconds']:.0f} | {told} |"
        )
    return "\n".join([*lines, *_decode(made["decode"]), *_runs(made["runs"])]) + "\n"


def _decode(made: Mapping[str, Any] | None) -> list[str]:
    if made is None:
        return []
    head = f"{made['model']}, {made['dtype']}, {made['context_tokens']} tokens of context"
    rows = [
        f"| {row['attention']} | {row['num_requests']} "
        f"| {row['step_s'] * 1e3:.2f} | {row['floor_s'] * 1e3:.2f} |"
        for row in made["steps"]
    ]
    columns = "| attention | requests | ms a step | ms to read weights and KV once |"
    return ["", f"## A decode step: {head}", "", columns, "|---|---|---|---|", *rows]


def _runs(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Each whole run: its verdict and latencies."""
    rows = []
    for step, made in runs.items():
        ttft, tpot = made["ttft_s"], made["tpot_s"]
        cells = [
            step, made["verdict"]["status"],
            f"{made['num_completed']} of {made['num_requests']}",
            _ms(ttft["p50"]), _ms(ttft["p90"]), _ms(tpot["p50"]),
        ]  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    if not rows:
        return []
    return ["", "## Whole runs", "",
            "| system | verdict | completed | TTFT P50 ms | TTFT P90 ms | TPOT P50 ms |",
            "|---|---|---|---|---|---|", *rows]  # fmt: skip


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.1f}"
