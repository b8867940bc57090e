"""How wrong the simulator is: signed errors of a simulated run against the real one.

Pure functions over summaries. Errors are (simulated - real) / real in percent for times and
rates, and differences in share for SLO attainment; None where either side has too few samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Any

LATENCIES = ("ttft_s", "tpot_s", "tbt_s", "e2e_s")
STATISTICS = ("p50", "p90", "p99")
RATES = ("output_throughput_tokens_per_s", "goodput_per_s")

# (quantity, statistic, largest absolute error) up to 0.9 of the knee: the project's own bar.
TARGETS = (
    ("tpot_s", "p50", 10.0),
    ("tpot_s", "p90", 10.0),
    ("ttft_s", "p50", 15.0),
    ("ttft_s", "p90", 25.0),
    ("slo_attainment", "token", 0.03),
)
TARGET_LOAD = 0.9

Row = dict[str, Any]


def compare(real: Mapping[str, Any], simulated: Mapping[str, Any]) -> list[Row]:
    """One row per quantity and statistic: real, simulated and the signed error."""
    keys = [(quantity, statistic) for quantity in LATENCIES for statistic in STATISTICS]
    pairs = {key: (real[key[0]][key[1]], simulated[key[0]][key[1]]) for key in keys}
    pairs |= {(rate, ""): (real[rate], simulated[rate]) for rate in RATES}
    rows = [_row(*key, *values, _percent(*values)) for key, values in pairs.items()]
    token = (real["slo_attainment"]["token"], simulated["slo_attainment"]["token"])
    return [*rows, _row("slo_attainment", "token", *token, token[1] - token[0])]


def over_passes(rows: Sequence[Row]) -> list[Row]:
    """One row per point, quantity and statistic from those of several passes: medians, with
    `spread`, by how much the highest real value exceeds the lowest (percent of the median; of
    attainment the difference; None of fewer than two). No simulator can be nearer than that."""
    out = []
    for about, group in groupby(sorted(rows, key=_identity), key=_identity):
        workload, load, quantity, statistic = about
        passes = [row for row in group if row["error"] is not None]
        real, simulated, error = (
            median(row[name] for row in passes) if passes else None
            for name in ("real", "simulated", "error")
        )
        spread = None
        if len(passes) > 1:
            values = [row["real"] for row in passes]
            spread = max(values) - min(values)
            if quantity != "slo_attainment":
                spread *= 100 / median(values)
        merged = _row(quantity, statistic, real, simulated, error)
        out.append({"workload": workload, "load": load, **merged, "spread": spread})
    order = {key: number for number, key in enumerate(dict.fromkeys(map(_identity, rows)))}
    return sorted(out, key=lambda row: order[_identity(row)])


def worst(rows: Iterable[Row], quantity: str, statistic: str) -> float | None:
    """The error of largest size among `rows`; None where none could be computed."""
    errors = [
        row["error"]
        for row in rows
        if (row["quantity"], row["statistic"]) == (quantity, statistic) and row["error"] is not None
    ]
    return max(errors, key=abs) if errors else None


def verdicts(rows: Sequence[Row]) -> list[Row]:
    """Each target with the worst and the median error found for it up to TARGET_LOAD, and the
    largest spread of the real runs there. `rows`: from `over_passes`."""
    low = [row for row in rows if row["load"] <= TARGET_LOAD]
    out = []
    for quantity, statistic, limit in TARGETS:
        found = worst(low, quantity, statistic)
        of_target = [r for r in low if (r["quantity"], r["statistic"]) == (quantity, statistic)]
        sizes = [abs(row["error"]) for row in of_target if row["error"] is not None]
        spreads = [row["spread"] for row in of_target if row["spread"] is not None]
        out.append(
            {
                "quantity": quantity,
                "statistic": statistic,
                "limit": limit,
                "worst": found,
                "median": median(sizes) if sizes else None,
                "spread": max(spreads, default=None),
                "met": found is not None and abs(found) <= limit,
            }
        )
    return out


def headline(targets: Sequence[Row], real: str, hardware: str) -> str:
    """One line for everything that is simulated: where it was checked and how wrong it was."""
    parts = [
        f"{row['quantity'].removesuffix('_s').upper()} {row['statistic'].upper()} "
        f"{row['median']:.0f} % ({row['worst']:+.0f} %)"
        for row in targets
        if row["quantity"] != "slo_attainment" and row["median"] is not None
    ]
    return (
        f"simulator error against engine={real} on {hardware} up to {TARGET_LOAD} of the knee, "
        f"median (worst): {', '.join(parts)}"
    )


def _identity(row: Row) -> tuple[str, float, str, str]:
    return row["workload"], row["load"], row["quantity"], row["statistic"]


def _row(quantity: str, statistic: str, real: Any, simulated: Any, error: float | None) -> Row:
    return {
        "quantity": quantity,
        "statistic": statistic,
        "real": real,
        "simulated": simulated,
        "error": error,
    }


def _percent(real: float | None, simulated: float | None) -> float | None:
    if real is None or simulated is None or real == 0:
        return None
    return (simulated - real) / real * 100
