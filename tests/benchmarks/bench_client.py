"""How far the client's P99s are from the truth, and whether its verdict says so.

    python -m tests.benchmarks.bench_client [--json FILE] [--only TEXT] [--again]

A golden server in C (`golden_server.c`), in a process of its own, streams answers on a known
schedule and keeps the time of each write. The harness replays a trace against it, as a user runs
it. The truth of a TTFT is the server's: from a request fully received to its first token written,
on top of the arrival; that of a TBT is the gap between two writes. So a late server is no error of
the client, and a late send is one.

Each point is written to FILE as soon as it is known, and not run again while sources and machine
stay the same, unless --again is given or the server itself was late: then the machine was too busy.
Takes 3 to 4 minutes from nothing on two quiet cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from harness.files import write_text
from harness.records.manifest import git_revision, machine
from harness.records.token_log import TokenLog
from tests.running import ROOT, run_command

SOURCE = Path(__file__).with_name("golden_server.c")
TTFT_S, GAP_S, STORM_S = 0.1, 0.02, 4.0
WAVES = 3  # how often each stream is begun anew; a P99 of TTFT rests on 3 values per stream
STREAM_TOKENS, SHORT_TOKENS = 46, 11  # an answer lasts 1 s, or 0.3 s
# Of more streams at once than one thread can read at GAP_S: 10,000 tokens/s of 2,048 of them
SLOW_GAP_S, SLOW_TOKENS, SLOW_RATE = 0.2, 60, 256  # begun at so many a second
PROMPT_TOKENS = 256
RATE_SPAN_S = 4.0
OFF_S = 0.005  # a VALID run must not be further from the truth
STREAMS = (16, 64, 128, 256, 512, 1024)
RATES = (20, 50, 100, 200, 400)

SERVER_LATE = "no measurement: server late"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Point:
    """`level`: streams at once, or requests per second."""

    load: str  # spread, burst, storm, step, rate or slow
    level: int
    processes: int = 0  # that read and send beside the run's own; 0: a thread of it does

    @property
    def name(self) -> str:
        return f"{self.load} {self.level}{beside(self.processes)}"

    @property
    def mode(self) -> str:
        return self.load if self.load in ("storm", "step") else "own"

    def arrivals_s(self) -> Floats:
        """spread, step: evenly, each wave over a second. burst: a wave within a tenth of it.
        storm: evenly, before the storm. rate: Poisson. slow: evenly, all before the first ends."""
        n = self.level
        if self.load == "storm":
            return np.arange(n) * (STORM_S - 0.5) / n
        if self.load == "rate":
            gaps = np.random.default_rng(0).exponential(1 / n, int(n * RATE_SPAN_S))
            return np.cumsum(gaps) - gaps[0]
        if self.load == "slow":
            return np.arange(n) / SLOW_RATE
        if self.load == "burst":
            wave_s = np.arange(n) * 0.1 / n
            return np.concatenate([wave_s + wave * 1.5 for wave in range(WAVES)])
        return np.arange(n * WAVES) / n

    @property
    def tokens(self) -> int:
        return {"rate": SHORT_TOKENS, "slow": SLOW_TOKENS}.get(self.load, STREAM_TOKENS)


POINTS = [
    *(Point(load, n) for n in STREAMS for load in ("spread", "burst", "storm", "step")),
    *(Point("rate", n) for n in RATES),
    Point("slow", 2048),
    Point("slow", 2048, 2),
]


def beside(processes: int) -> str:
    return f", {processes} I/O processes" if processes else ""


def gap_s(load: str) -> float:
    return SLOW_GAP_S if load == "slow" else GAP_S


@contextmanager
def golden_server(binary: Path, point: Point, log: Path) -> Iterator[str]:
    """Yields its base URL; writes `log` at the end."""
    times_s = (TTFT_S, gap_s(point.load), STORM_S)
    command = [str(binary), point.mode, *(f"{each * 1e6:.0f}" for each in times_s)]
    with subprocess.Popen(
        [*command, str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        finally:
            server.stdin.close()
            server.wait(30)


def truth_s(log: Path) -> tuple[Floats, Floats]:
    """(TTFTs, TBTs) as the server wrote them."""
    answers = [np.array(line.split(), np.int64) for line in log.read_text().splitlines()]
    ttft = [float(times[1] - times[0]) / 1e9 for times in answers if len(times) > 1]
    tbt = [np.diff(times[1:]) / 1e9 for times in answers]
    return np.array(ttft), np.concatenate(tbt)


def p99_ms(values_s: Floats) -> float:
    return round(float(np.percentile(values_s, 99)) * 1e3, 2) if len(values_s) else float("nan")


def measured(point: Point, binary: Path, folder: Path) -> dict[str, Any]:
    """One run of the harness and what the server says of it; raises where the run broke."""
    words = [f"+client.processes={point.processes}"] if point.processes else []
    trace, log, run_dir = folder / "trace.csv", folder / "server.log", folder / "run"
    rows = (f"{at:.6f},golden,{PROMPT_TOKENS},{point.tokens}\n" for at in point.arrivals_s())
    trace.write_text("arrival_s,model,prompt_tokens,output_tokens\n" + "".join(rows))
    with golden_server(binary, point, log) as url:
        done = run_command(
            "+system=vllm", "+workload=trace", f"workload.path={trace}", "engine=openai",
            f"engine.url={url}", "tracking=none", "figure=null", "progress=false",
            f"hydra.run.dir={run_dir}", *words, timeout=60, env={},  # not forked, as a user's
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{point.name}: exit status {done.returncode}: {done.stderr[-2000:]}")
    summary = json.loads((run_dir / "summary.json").read_text())
    found = TokenLog.from_table(pq.read_table(run_dir / "requests.parquet"))
    true_ttft_s, true_tbt_s = truth_s(log)
    row = {
        "load": point.load,
        "level": point.level,
        "processes": point.processes,
        "num_requests": len(found),
        "num_completed": summary["num_completed"],
        "ttft_p99_ms": p99_ms(found.ttft_s[found.started]),
        "true_ttft_p99_ms": p99_ms(true_ttft_s),
        "tbt_p99_ms": p99_ms(found.tbt_s()),
        "true_tbt_p99_ms": p99_ms(true_tbt_s),
        "send_lag_p99_ms": p99_ms(found.send_lag_s[np.isfinite(found.send_lag_s)]),
        "receive_lag": summary.get("receive_lag_s"),
        "load_average": round(os.getloadavg()[0], 2),
        "verdict": summary["verdict"]["status"],
        "reasons": summary["verdict"]["reasons"],
    }
    return row | {"off_ms": off_ms(row)}


def off_ms(row: dict[str, Any]) -> float:
    """The larger error of the two P99s."""
    errors = (row[f"{key}_p99_ms"] - row[f"true_{key}_p99_ms"] for key in ("ttft", "tbt"))
    return round(max(map(abs, errors)), 2)


def goal_ms(row: dict[str, Any]) -> float | None:
    """How far off the client may be; None: it need only say so."""
    near, far = (200, 400) if row["load"] == "rate" else (256, 512)
    return 2.0 if row["level"] <= near else 10.0 if row["level"] <= far else None


def server_late(row: dict[str, Any]) -> bool:
    """The server itself fell behind its schedule: then it reads requests late, too, which nothing
    here tells from a late client. The machine was too busy for this point."""
    return bool(row["true_tbt_p99_ms"] > (gap_s(row["load"]) + OFF_S) * 1e3)


def judged(row: dict[str, Any]) -> str:
    """What is to be said of a row."""
    if server_late(row):
        return SERVER_LATE
    if row["verdict"] == "VALID" and row["off_ms"] > OFF_S * 1e3:
        return "FALSELY VALID"
    goal = goal_ms(row)
    return "within goal" if goal is None or row["off_ms"] <= goal else "beyond goal"


def table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Cells of the published table, its header first."""
    head = [
        "load", "streams or requests/s", "TTFT P99 ms (true)", "TBT P99 ms (true)", "off ms",
        "send lag P99 ms", "verdict", "goal",
    ]  # fmt: skip
    cells = [
        [
            row["load"] + beside(row["processes"]),
            f"{row['level']:,}",
            f"{row['ttft_p99_ms']:.1f} ({row['true_ttft_p99_ms']:.1f})",
            f"{row['tbt_p99_ms']:.1f} ({row['true_tbt_p99_ms']:.1f})",
            f"{row['off_ms']:.1f}",
            f"{row['send_lag_p99_ms']:.1f}",
            row["verdict"],
            judged(row),
        ]
        for row in rows
    ]
    return [head, *cells]


def markdown(content: dict[str, Any]) -> str:
    head, *rows = table(content["rows"])
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    host = content["machine"]
    busiest = max((row["load_average"] for row in content["rows"]), default=0.0)
    return "\n".join(
        [
            "# The client against a golden server",
            "",
            "How far are the P99s of the client from the truth? The server knows each token's",
            "time; its own P99s are in brackets. `off` is the larger of the two errors. The goals:",
            "",
            "| up to | off |",
            "| --- | --- |",
            "| 256 streams, 200 requests/s | at most 2 ms |",
            "| 512 streams, 400 requests/s | at most 10 ms |",
            "| any load | never VALID with more than 5 ms |",
            "",
            "`make bench-client` makes this page. tests/benchmarks/bench_client.py explains",
            "spread, burst, storm, step and slow. Server and client ran on the same machine",
            f"({host['cpu']}, {host['num_cores']} cores, load average up to {busiest:.1f}).",
            "",
            *lines,
            "",
        ]
    )


def at(point: Point | dict[str, Any]) -> tuple[str, int, int]:
    if isinstance(point, Point):
        return point.load, point.level, point.processes
    return point["load"], point["level"], point["processes"]


def sources() -> str:
    """Of the client, this benchmark and its server: what else changes leaves the points as they
    are."""
    paths = [Path(__file__), SOURCE, *sorted((ROOT / "harness").rglob("*.py"))]
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def started(path: Path | None, again: bool) -> dict[str, Any]:
    """The content to add points to: what `path` has of the same sources and machine."""
    content: dict[str, Any] = {
        "sources": sources(), "git": git_revision(), "machine": machine(), "rows": [],
    }  # fmt: skip
    if path is None or again or not path.exists():
        return content
    kept = json.loads(path.read_text())
    same = all(kept.get(key) == content[key] for key in ("sources", "machine"))
    return kept if same else content


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="keep the points here, and a table beside it")
    parser.add_argument("--only", default="", help="points whose name has this, e.g. 'rate 200'")
    parser.add_argument("--again", action="store_true", help="run points that are there already")
    arguments = parser.parse_args()
    compiler = shutil.which("cc")
    if compiler is None:
        parser.exit(2, "no C compiler: cc is needed to build the golden server\n")
    content = started(arguments.json, arguments.again)
    failed = []
    with tempfile.TemporaryDirectory() as build:
        binary = Path(build) / "golden_server"
        subprocess.run([compiler, "-O2", "-o", str(binary), str(SOURCE)], check=True)
        for point in POINTS:
            if arguments.only not in point.name or any(
                at(row) == at(point) and not server_late(row) for row in content["rows"]
            ):
                continue
            try:
                with tempfile.TemporaryDirectory() as folder:
                    row = measured(point, binary, Path(folder))
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                failed.append(f"{point.name}: {error}")
                continue
            content["rows"] = [r for r in content["rows"] if at(r) != at(point)] + [row]
            print(f"{point.name}: {row['off_ms']} ms off, {row['verdict']}, {judged(row)}")
            if arguments.json:
                save(content, arguments.json)
    shown = Table(*table([])[0])
    for cells in table(content["rows"])[1:]:
        shown.add_row(*cells)
    Console(width=140).print(shown)
    if failed:
        parser.exit(1, "\n".join(["not measured:", *failed]) + "\n")


def save(content: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    order = [at(point) for point in POINTS]
    content["rows"].sort(key=lambda row: order.index(at(row)))
    write_text(path, json.dumps(content, indent=1) + "\n")
    write_text(path.with_suffix(".md"), markdown(content))


if __name__ == "__main__":
    main()
