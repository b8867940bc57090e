"""Measures the certificate: by how much the client's TTFT and TBT differ from a server's own.

The truth of a TTFT is the server's, from a request that was read to its end to the first token's
write; that of a TBT is the gap between two writes. So a late server is no error of the client. A
server that is far behind its script may also have read requests late, which nothing here tells from
a client that sent them late: where the client seems off, the point then says that the server was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from harness.files import make_folder, write_json
from harness.records.certificate import FILE, client_code, demand
from harness.records.evidence import MAX_LAG_S
from harness.records.manifest import git_revision, machine, utc
from harness.records.token_log import TokenLog
from harness.selftest.bench import Bench, Floats, Row
from harness.selftest.script import Play, Script

LIMIT_MS = MAX_LAG_S * 1e3  # which the verdict holds the client's lag to
STREAMS, RATES_PER_S = (16, 64, 256, 1024), (20, 50, 100, 200, 400)
TTFT_S, GAP_S = 0.1, 0.1
WRITES_PER_S = 4000.0  # at most, which a server in Python can write: the gap grows beyond
ARRIVALS_PER_S = 100.0  # at most, of streams: their number is tried, and no rate
LEAST_S = 2.0  # that a stream lasts
RATE_SPAN_S, RATE_TOKENS = 4.0, 3
WITHIN, CLIENT, SERVER = "within", "client late", "no measurement: server late"


@dataclass(frozen=True, slots=True)
class Level:
    """`load`: streams (at once) or rate (requests per second, Poisson)."""

    load: str
    level: int

    @property
    def gap_s(self) -> float:
        return GAP_S if self.load == "rate" else max(GAP_S, self.level / WRITES_PER_S)

    def rows(self) -> list[Row]:
        """Streams come evenly over twice the time that one lasts: then `level` are open."""
        if self.load == "rate":
            gaps = np.random.default_rng(0).exponential(
                1 / self.level, int(self.level * RATE_SPAN_S)
            )
            return [(float(at), "m", 64, RATE_TOKENS) for at in np.cumsum(gaps)]
        lasts_s = max(LEAST_S, self.level / ARRIVALS_PER_S)
        tokens = 1 + round((lasts_s - TTFT_S) / self.gap_s)
        return [(i * lasts_s / self.level, "m", 64, tokens) for i in range(2 * self.level)]


LOADS = {"streams": STREAMS, "rate": RATES_PER_S}
LEVELS = [Level(load, each) for load, levels in LOADS.items() for each in levels]


def measured(level: Level, bench: Bench) -> dict[str, Any]:
    """One run at this level; milliseconds by which the client's numbers exceed the server's."""
    play = Play(models={"m": Script(ttft_s=TTFT_S, gap_s=level.gap_s)})
    run, server = bench.served(play, level.rows())
    log = TokenLog.from_table(run.requests)
    tokens = int(log.asked_tokens[0])  # the writes after them have no token
    writes_s = [each.writes_s[:tokens] for each in server.answers if len(each.writes_s)]
    ttft_s = np.array(
        [each.writes_s[0] - each.received_s for each in server.answers if len(each.writes_s)]
    )
    off = {
        **_off("ttft", log.ttft_s[log.started], ttft_s),
        **_off("tbt", log.tbt_s(), np.concatenate([np.diff(each) for each in writes_s])),
    }
    lags_s = np.concatenate([each.lags_s for each in server.answers])
    lag_ms = round(float(np.percentile(lags_s, 99)) * 1e3, 2)
    row = {
        "load": level.load, "level": level.level, **demand(log), **off,
        "server_lag_p99_ms": lag_ms, "verdict": "INVALID" if run.invalid else "VALID",
    }  # fmt: skip
    return row | {"says": says(off, lag_ms)}


def _off(name: str, ours_s: Floats, true_s: Floats) -> dict[str, float]:
    mean_s = ours_s.mean() - true_s.mean()
    p99_s = np.percentile(ours_s, 99) - np.percentile(true_s, 99)
    return {
        f"{name}_mean_off_ms": round(float(mean_s) * 1e3, 2),
        f"{name}_p99_off_ms": round(float(p99_s) * 1e3, 2),
    }


def says(off_ms: dict[str, float], server_lag_ms: float) -> str:
    """Whether every difference is within LIMIT_MS, and who was late where not."""
    if max(map(abs, off_ms.values())) <= LIMIT_MS:
        return WITHIN
    return SERVER if server_lag_ms > LIMIT_MS else CLIENT


def covered(rows: Sequence[dict[str, Any]], load: str) -> list[dict[str, Any]]:
    """The levels of `load` up to the first that is not within."""
    tried = sorted((row for row in rows if row["load"] == load), key=lambda row: row["level"])
    return [*takewhile(lambda row: row["says"] == WITHIN, tried)]


def summed_up(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The most that is covered, and by how much the client was off there at most: the largest of
    the means and P99s of TTFT and of TBT (None: no level is covered)."""
    streams, rates = (covered(rows, load) for load in LOADS)
    both = [*streams, *rates]
    off = {
        f"{name}_error_ms": max(
            (abs(row[f"{name}_{of}_off_ms"]) for row in both for of in ("mean", "p99")),
            default=None,
        )
        for name in ("ttft", "tbt")
    }
    return {
        "max_streams": max((row["streams"] for row in streams), default=0),
        "max_rate_per_s": max((row["rate_per_s"] for row in rates), default=0),
        "max_tokens_per_s": max((row["tokens_per_s"] for row in both), default=0), **off,
    }  # fmt: skip


def certified(bench: Bench, runs_dir: Path, announce: Callable[[str], None]) -> Path:
    """Measures every level and writes the certificate into `runs_dir`. Raises UsageError where
    nothing can be written there, RunError where a run breaks."""
    make_folder(runs_dir)
    rows = []
    for level in LEVELS:
        rows.append(measured(level, bench))
        announce(told(rows[-1]))
    made = {
        "measured_utc": utc(datetime.now(UTC)), "machine": machine(), "client": client_code(),
        "git": git_revision(), "limit_ms": LIMIT_MS,
        **summed_up(rows), "levels": rows,
    }  # fmt: skip
    announce(
        f"covers {made['max_streams']:,} streams at once, {made['max_rate_per_s']:,} requests and "
        f"{made['max_tokens_per_s']:,} tokens within a second"
    )
    write_json(runs_dir / FILE, made)
    return runs_dir / FILE


def told(row: dict[str, Any]) -> str:
    """One line of progress."""
    return (
        f"{row['load']:<7} {row['level']:>5,}  off by ms: TTFT {row['ttft_mean_off_ms']:+.2f} "
        f"(P99 {row['ttft_p99_off_ms']:+.2f}), TBT {row['tbt_mean_off_ms']:+.2f} "
        f"(P99 {row['tbt_p99_off_ms']:+.2f}); server behind {row['server_lag_p99_ms']:.2f}; "
        f"{row['says']}"
    )
