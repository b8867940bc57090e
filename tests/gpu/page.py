"""The page of a GPU's results: where, what passed, and what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def page(facts: Mapping[str, Any], found: Sequence[Mapping[str, Any]], out: Path) -> str:
    """`out`: the folder with a folder for each step."""
    revision = facts["revision"] or {"revision": "unknown", "dirty": False}
    code = revision["revision"] + (", with uncommitted changes" if revision["dirty"] else "")
    gpus = ", ".join(f"{g['name']} (driver {g['driver']})" for g in facts["machine"]["gpus"])
    lines = [
        "# On a GPU", "",
        f"{gpus}; torch {facts['versions'].get('torch', 'unknown')}; revision {code}; "
        f"profile {facts['hardware']}. Random weights. Live, on one machine.", "",
        "| step | asks | result | seconds | last line of its log |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for row in found:
        told = row["last_line"].replace("|", "\\|")[:100]
        lines.append(
            f"| {row['step']} | {row['asks']} | {row['status']} | {row['seconds']:.0f} | {told} |"
        )
    return "\n".join([*lines, *_decode(out / "decode" / "decode.json"), *_runs(found, out)]) + "\n"


def _decode(file: Path) -> list[str]:
    if not file.exists():
        return []
    made = json.loads(file.read_text())
    head = f"{made['model']}, {made['dtype']}, {made['context_tokens']} tokens of context"
    rows = [
        f"| {row['num_requests']} | {row['step_s'] * 1e3:.2f} | {row['floor_s'] * 1e3:.2f} |"
        for row in made["steps"]
    ]
    columns = "| requests | ms a step | ms to read weights and KV once |"
    return ["", f"## A decode step: {head}", "", columns, "|---|---|---|", *rows]


def _runs(found: Sequence[Mapping[str, Any]], out: Path) -> list[str]:
    """Each whole run: its verdict and latencies."""
    rows = []
    for step in found:
        file = out / step["step"] / "run" / "summary.json"
        if not file.exists():
            continue
        made = json.loads(file.read_text())
        ttft, tpot = made["ttft_s"], made["tpot_s"]
        cells = [
            step["step"], made["verdict"]["status"],
            f"{made['num_completed']} of {made['num_requests']}",
            _ms(ttft["p50"]), _ms(ttft["p99"]), _ms(tpot["p50"]),
        ]  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    if not rows:
        return []
    return ["", "## Whole runs", "",
            "| system | verdict | completed | TTFT P50 ms | TTFT P99 ms | TPOT P50 ms |",
            "|---|---|---|---|---|---|", *rows]  # fmt: skip


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.1f}"
