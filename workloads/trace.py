"""The rows of a dataset on their way to becoming a schedule, with a label for every change.

A `Trace` is never changed: each operation returns a new one. Unlike a schedule it may lack
arrivals or model names, and may hold failed rows (0 tokens) until `usable` drops them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from harness.configuration.checks import require
from harness.errors import UsageError
from harness.schedule import Provenance, Synthetic

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Strings = npt.NDArray[np.object_]
Bools = npt.NDArray[np.bool_]
Place = tuple[int, ...]
Rows = slice | Ints | Bools


log = logging.getLogger(__name__)

MAX_REQUESTS = 100_000_000  # more than any public trace has rows; a schedule of them takes 4 GB
MAX_LEAD_IN_S = 60.0  # times whose first arrival is later than this count from something else


@dataclass(slots=True, eq=False, frozen=True)
class Trace:
    """Columns of one length; `arrival_s` in seconds since the trace's start, in order."""

    arrival_s: Floats | None  # None: a dataset of lengths alone
    model: Strings | None  # None: the dataset names no models
    prompt_tokens: Ints
    output_tokens: Ints
    provenance: Provenance
    prompts: Strings | None = None  # harness.request.Prompt each; None: lengths alone
    shared: Strings | None = None  # harness.request.Segments each; None: prompts share nothing
    priority: Ints | None = None  # None: all alike
    chat: Ints | None = None  # each request's id, where a trace of conversations has them …
    parent: Ints | None = None  # … and the id of the request that it continues
    # Place each, of WEKA's: the conversation's number, and where it has branches the place in its
    # list of requests, of a branch's request that in the branch's too
    place: Strings | None = None

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def take(self, rows: Rows) -> Trace:
        names = [field.name for field in fields(self) if field.name != "provenance"]
        columns = {name: getattr(self, name) for name in names}
        taken = {name: column[rows] for name, column in columns.items() if column is not None}
        return replace(self, **taken)

    def labelled(self, step: str, *synthetic: Synthetic) -> Trace:
        """Adds `step` to the provenance, and the kinds of what is no longer the dataset's own by
        it."""
        old = self.provenance
        kinds = [str(kind) for kind in Synthetic if kind in old.synthetic or kind in synthetic]
        provenance = replace(old, synthetic=kinds, steps=[*old.steps, step])
        return replace(self, provenance=provenance)

    def arrivals(self) -> Floats:
        if self.arrival_s is None:
            raise UsageError(
                f"{self.provenance.source} has no timestamps, only lengths: "
                "choose workload.arrivals.kind=poisson, gamma or ramp"
            )
        return self.arrival_s

    def mean_rate_per_s(self) -> float:
        arrival_s = self.arrivals()
        if arrival_s[-1] == arrival_s[0]:
            raise UsageError(
                f"{self.provenance.source} has no mean rate, all its rows arrive at one time: "
                "give workload.arrivals.rate_per_s"
            )
        return float((len(self) - 1) / (arrival_s[-1] - arrival_s[0]))


def stream(seed: int, purpose: str) -> np.random.Generator:
    """One random stream for each purpose, so that changing one draw leaves all others as they were:
    a function of both arguments alone. `seed` ≥ 0."""
    return np.random.default_rng([seed, *purpose.encode()])


def objects(values: Sequence[object]) -> Strings:
    """A column of `values`, which numpy must not look into."""
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


@dataclass(kw_only=True, slots=True)
class WindowConfig:
    """A half-open window. Rows are counted as in the file, failed ones included, header
    excluded."""

    rows: list[int] | None  # [start, end)
    seconds: list[float] | None  # [start, end) since the first row

    def check(self) -> None:
        one = self.rows is None or self.seconds is None
        require(one, "workload.window takes rows or seconds, not both")
        check_range(self.rows, "workload.window.rows")
        check_range(self.seconds, "workload.window.seconds")


def require_feasible(num_requests: float, where: str) -> None:
    """Raises UsageError for more requests than a schedule can hold."""
    many = f"{num_requests:.3g}" if num_requests < np.inf else "endlessly many"
    told = f"{where} asks for {many} requests; at most {MAX_REQUESTS:,}"
    require(num_requests <= MAX_REQUESTS, told)


def check_range(bounds: list[int] | list[float] | None, where: str) -> None:
    if bounds is not None:
        right = len(bounds) == 2 and 0 <= bounds[0] < bounds[1]
        require(right, f"{where}={list(bounds)} must be [start, end) with 0 <= start < end")


def rows_window(trace: Trace, bounds: list[int], where: str = "workload.window.rows") -> Trace:
    """Keeps rows [start, end); arrivals count from the first of them."""
    start, end = bounds
    source = trace.provenance.source
    require(
        end <= len(trace), f"{where}=[{start},{end}) is beyond the {len(trace)} rows of {source}"
    )
    cut = trace.take(slice(start, end))
    if cut.arrival_s is not None:
        cut = replace(cut, arrival_s=cut.arrival_s - cut.arrival_s[0])
    return cut.labelled(f"rows [{start}, {end})")


def seconds_window(trace: Trace, bounds: list[float]) -> Trace:
    """Keeps arrivals in [start, end) seconds of the trace's own time, counted from `start`."""
    start, end = bounds
    arrival_s = trace.arrivals()
    last_s = float(arrival_s[-1])
    if end > np.floor(last_s) + 1:  # the next whole second still holds the last row
        raise UsageError(
            f"workload.window.seconds=[{start:g},{end:g}) is beyond {trace.provenance.source}, "
            f"whose last request arrives at {last_s:.3f} s"
        )
    cut = trace.take((arrival_s >= start) & (arrival_s < end))
    cut = replace(cut, arrival_s=cut.arrivals() - start)
    return cut.labelled(f"seconds [{start:g}, {end:g})")


def from_first_row(trace: Trace) -> Trace:
    """The trace with arrivals in seconds since the first row."""
    return replace(trace, arrival_s=trace.arrivals() - trace.arrivals()[0])


def without_lead_in(trace: Trace) -> Trace:
    """Counts arrivals from the first row, where that arrives so late that its file counts from
    another time, e.g. from 1970: a replay would wait for all of it. A shorter silence at the start
    is the trace's."""
    if trace.arrival_s is None or trace.arrival_s[0] <= MAX_LEAD_IN_S:
        return trace
    step = f"arrivals counted from the first, which the file has at {trace.arrival_s[0]:.3f} s"
    return from_first_row(trace).labelled(step)


def before(trace: Trace, end_s: float) -> Trace:
    """Leaves out the rows that arrive at `end_s` or later, if there are any."""
    if trace.arrival_s is None:
        return trace
    keep = trace.arrival_s < end_s
    source, num_dropped = trace.provenance.source, int((~keep).sum())
    require(keep.any(), f"no row of {source} arrives before workload.read_until_s={end_s:g}")
    if num_dropped == 0:
        return trace
    return trace.take(keep).labelled(f"{num_dropped} rows from {end_s:g} s on left out")


def usable(trace: Trace) -> Trace:
    """Leaves out the rows that nothing can be sent or awaited for: no prompt, or no output."""
    keep = (trace.prompt_tokens > 0) & (trace.output_tokens > 0)
    num_dropped = int((~keep).sum())
    if num_dropped == 0:
        return trace
    return trace.take(keep).labelled(f"dropped {num_dropped} rows with 0 prompt or output tokens")


def in_order(trace: Trace) -> Trace:
    arrival_s = trace.arrival_s
    if arrival_s is None or (np.diff(arrival_s) >= 0).all():
        return trace
    late = int((np.diff(arrival_s) < 0).sum())
    rows = np.argsort(arrival_s, kind="stable")
    return trace.take(rows).labelled(f"sorted by arrival ({late} rows came before an earlier one)")


def head(trace: Trace, num_requests: int) -> Trace:
    """The first `num_requests`, or all where there are fewer, which is then said."""
    if num_requests > len(trace):
        step = f"all {len(trace)} requests there are: fewer than num_requests={num_requests}"
        log.warning("%s: %s", trace.provenance.source, step)
        return trace.labelled(step)
    if num_requests == len(trace):
        return trace
    return trace.take(slice(0, num_requests)).labelled(f"first {num_requests} requests")
