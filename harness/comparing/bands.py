"""Whether the simulator's bands of two sides overlap: then their order is a tie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.comparing.paired import Difference, Ends
from harness.records.run_folder import FinishedRun
from harness.records.simulator_band import bands

TIE = "tie: within the simulator's band"
NO_BAND = " (no band)"  # behind an order that no error of the simulator was held against


def real_ends(runs: Sequence[FinishedRun], metric: str, value: float) -> Ends | None:
    """Where the value of a real engine may lie if that of `runs` is `value`, the widest of their
    bands; the value itself of live runs. None: a run has no band."""
    ends = [(value, value)]
    for run in runs:
        if run.manifest["simulated"]:
            # Parity's points are of its own SLO.
            of_limits = metric in ("goodput_per_s", "slo_attainment.request")
            other_limits = of_limits and "goodput" in run.summary["slo"]
            band = None if other_limits else bands(run.manifest, run.summary).get(metric)
            if band is None:
                return None
            ends.append(band.real(value))
    low, high = zip(*ends, strict=True)
    return min(low), max(high)


def within_band(
    found: Difference, reference: Sequence[FinishedRun], other: Sequence[FinishedRun]
) -> Difference:
    """`found` with the bands of both sides; a verdict of better or worse is a tie where they
    overlap, and says so where a side has none. The cost model is the same for both, but systems
    load it differently: its errors are taken to be independent, which is on the safe side."""
    if not any(run.manifest["simulated"] for run in [*reference, *other]):
        return found
    first = real_ends(reference, found.metric.key, found.value_of_reference)
    second = real_ends(other, found.metric.key, found.value_of_other)
    ordered = found.verdict in ("better", "worse")
    if first is None or second is None:
        return replace(found, verdict=found.verdict + NO_BAND * ordered)
    tie = ordered and first[0] <= second[1] and second[0] <= first[1]
    return replace(found, bands=(first, second), verdict=TIE if tie else found.verdict)
