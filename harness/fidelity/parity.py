"""How wrong the simulator is: signed errors of a simulated run against the real one.

Pure functions over summaries. Errors are (simulated - real) / real in percent for times and
rates, and differences in share for SLO attainment; None where either side has too few samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    token = (real["slo_attainment"]["token"], simulated["slo_attainment"]["token"])
    pairs |= {("slo_attainment", "token"): token}
    return [_row(*key, *values) for key, values in pairs.items()]


def over_passes(rows: Sequence[Row]) -> list[Row]:
    """One row per point, quantity and statistic from those of several passes: the medians of the
    real and the simulated values, their error, and `spread`, by how much the highest real value
    exceeds the lowest (percent of the median; of attainment the difference; None of fewer than
    two). Of a pass whose real run is not valid there is neither."""
    points: dict[tuple[str, float, str, str], list[Row]] = {}
    for row in rows:
        key = row["workload"], row["load"], row["quantity"], row["statistic"]
        points.setdefault(key, []).append(row)
    out = []
    for (workload, load, quantity, statistic), passes in points.items():
        valid = [row for row in passes if row["valid"] and row["error"] is not None]
        reals, simulated = ([row[side] for row in valid] for side in ("real", "simulated"))
        merged = _row(quantity, statistic, *(median(x) if x else None for x in (reals, simulated)))
        spread = _spread(merged, reals)
        out.append({"workload": workload, "load": load, **merged, "spread": spread})
    return out


def verdicts(passes: Sequence[Row], at_their_speed: Sequence[Row]) -> list[Row]:
    """Each target with the worst and the median error found for it up to TARGET_LOAD, of medians
    over passes, and the largest spread of the real runs there. It is met where every point has an
    error and none is too large. Beside stand the worst of any single valid pass, which the medians
    may hide, and the same as above of what was simulated `at_their_speed`, the real runs', where
    it is of as many points: they decide nothing. Both arguments have a row for each pass."""
    low = [row for row in over_passes(passes) if row["load"] <= TARGET_LOAD]
    known = [row for row in over_passes(at_their_speed) if row["load"] <= TARGET_LOAD]
    single = [row for row in passes if row["load"] <= TARGET_LOAD and row["valid"]]
    out = []
    for quantity, statistic, limit in TARGETS:
        found, told, each = (_errors(rows, quantity, statistic) for rows in (low, known, single))
        if len(told) != len(found):
            told = []
        points = [r for r in low if (r["quantity"], r["statistic"]) == (quantity, statistic)]
        spreads = [row["spread"] for row in points if row["spread"] is not None]
        out.append(
            {
                "quantity": quantity,
                "statistic": statistic,
                "limit": limit,
                "worst": max(found, key=abs, default=None),
                "worst_pass": max(each, key=abs, default=None),
                "median": _median_size(found),
                "worst_at_their_speed": max(told, key=abs, default=None),
                "median_at_their_speed": _median_size(told),
                "spread": max(spreads, default=None),
                "met": 0 < len(found) == len(points) and max(map(abs, found)) <= limit,
            }
        )
    return out


def _errors(rows: Iterable[Row], quantity: str, statistic: str) -> list[float]:
    """The errors of a statistic of a quantity, where one could be computed."""
    return [
        row["error"]
        for row in rows
        if (row["quantity"], row["statistic"]) == (quantity, statistic) and row["error"] is not None
    ]


def _median_size(errors: Sequence[float]) -> float | None:
    return median(map(abs, errors)) if errors else None


def headline(targets: Sequence[Row], real: str, hardware: str) -> str:
    """One line for everything that is simulated: where it was checked and how wrong it was."""
    parts = [_brief(row) for row in targets if row["median"] is not None]
    return (
        f"simulator error against engine={real} on {hardware} up to {TARGET_LOAD} of the knee, "
        f"median (worst): {', '.join(parts) or 'not measured'}"
    )


def _brief(row: Row) -> str:
    if row["quantity"] == "slo_attainment":
        return f"SLO {row['statistic']} {row['median']:.2f} ({row['worst']:+.2f})"
    name = row["quantity"].removesuffix("_s").upper()
    return f"{name} {row['statistic'].upper()} {row['median']:.0f} % ({row['worst']:+.0f} %)"


def _row(quantity: str, statistic: str, real: float | None, simulated: float | None) -> Row:
    error = None
    if real is not None and simulated is not None:
        error = simulated - real
        if quantity != "slo_attainment":
            error = error / real * 100 if real else None
    return {
        "quantity": quantity,
        "statistic": statistic,
        "real": real,
        "simulated": simulated,
        "error": error,
    }


def _spread(row: Row, reals: Sequence[float]) -> float | None:
    if len(reals) < 2:
        return None
    apart = max(reals) - min(reals)
    return apart if row["quantity"] == "slo_attainment" else apart / float(row["real"]) * 100
