"""What eq. 3 leaves out: the wait of a request for its first turn, by Q_MAX and load.

Eq. 3 says which share of its deadlines a batch meets once it takes part in the rounds. A request
that comes from its prefill first waits for the turns of the other batches.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from harness.records.attainment import Attained
from harness.records.slo import Slo
from harness.records.token_log import Floats, TokenLog
from plots.aegaeon.attainment import TBT_S, TTFT_S
from plots.figure import Panels, Points, picture
from plots.panels import Look, lines
from plots.runs import table as of_runs
from plots.style import PALETTE

QUOTAS = {
    quota: Look(f"Q_MAX {quota:g} s", colour, marker)
    for quota, colour, marker in zip((1.0, 2.0, 4.0, 8.0), PALETTE, "vo^s", strict=False)
}


def rounds(points: Points) -> pd.DataFrame:
    """And `at_once`, the share of tokens on time had no request waited for its first turn, and
    that wait's mean and 90th percentile."""
    rows = of_runs(points)
    found = []
    for point in points:
        log = TokenLog.from_table(pq.read_table(point.folder / "requests.parquet"))
        waits_s = first_waits_s(log)
        found.append((on_time(at_once(log, waits_s)), waits_s.mean(), np.quantile(waits_s, 0.9)))
    return rows.join(pd.DataFrame(found, columns=["at_once", "wait_mean_s", "wait_p90_s"]))


def first_waits_s(log: TokenLog) -> Floats:
    """From a request's first token, which its prefill makes, to its second, in seconds; less what
    the SLO gives it for that. 0 where there is no second token."""
    waits_s = np.zeros(len(log))
    several = log.num_tokens > 1
    first = log.start[several]
    waits_s[several] = log.times_s[first + 1] - log.times_s[first] - TBT_S
    return np.maximum(waits_s, 0.0)


def at_once(log: TokenLog, waits_s: Floats) -> TokenLog:
    """The log with all tokens but the first earlier by their request's `waits_s`."""
    earlier_s = np.where(log.rank() > 0, np.repeat(waits_s, log.num_tokens), 0.0)
    return replace(log, times_s=log.times_s - earlier_s)


def on_time(log: TokenLog) -> float:
    return Attained.of(log, Slo(Slo.Config(name="aegaeon", ttft_s=TTFT_S, tbt_s=TBT_S))).token


@picture(
    "aegaeon_rounds", rounds, ("aegaeon_rounds",), shape=(1, 3), size=(9.5, 3.2), legend=4,
    quick="rows",
)  # fmt: skip
def drawing(axes: Panels, rows: pd.DataFrame) -> str:
    titles = {
        "token": "(a) tokens on time (%)",
        "at_once": "(b) had no first turn been waited for (%)",
        "wait_p90_s": "(c) wait for the first turn, P90 (s)",
    }
    for panel, (column, title) in zip(axes, titles.items(), strict=True):
        shares = column != "wait_p90_s"
        factor = 100.0 if shares else 1.0
        lines(panel, rows, "num_models", column, QUOTAS, by="max_quota_s", factor=factor)
        lowest = {"token": 60.0, "at_once": 98.0, "wait_p90_s": 0.0}[column]
        panel.set(xlabel="models", title=title, ylim=(lowest, 100.2 if shares else None))
    return (
        "Aegaeon with six of 16 GPUs for prefills, 0.1 requests/s a model; mean and range of five "
        "inputs. (b): the same runs, with each request's tokens after the first earlier by its "
        "wait between first and second token. Eq. 3 counts the later rounds, and not that wait."
    )
