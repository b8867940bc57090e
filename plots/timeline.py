"""What each instance did over a run, as spans that a page can draw: ran, loaded, moved, waited.

Spans come from events.parquet. An instance that stamps no batches (a plain replica, a server, an
elastic instance) is shown by its requests instead: how many of those that got their first token
there were between first and last token, and when any waited for its first one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.records.metrics import over_time
from harness.records.token_log import Floats, Ints, TokenLog

Strings = npt.NDArray[np.object_]

# What a kind of event is shown as. Kinds that are samples or say nothing of time are left out, and
# what a system notes by itself (`ElasticCluster.note`) is "noted".
ROWS = {
    "run": "ran",
    "load": "loaded", "prefetch": "loaded", "adopt": "loaded", "host_copy": "loaded",
    "transfer": "moved", "kv_move": "moved", "swap_in": "moved", "swap_out": "moved",
    "switch": "waited", "host_full": "waited", "restart": "waited", "collect": "waited",
    "no_progress": "waited", "stall": "waited",
    "slot": "held", "lease": "held",
}  # fmt: skip
LEFT_OUT = ("host_kv", "heartbeat", "prefix_cache", "early_ends_allowed")
MAX_SPANS = 20_000  # spans of a page: more make it large, and at full view lie within one pixel
PIXELS = 2000  # a page's width: gaps shorter than one cannot be seen at full view
MAX_LANES = 64
MAX_BINS = 600  # bins of the curve of requests above the lanes


class Spans(NamedTuple):
    """Columns of one length."""

    lane: Strings
    row: Strings
    label: Strings
    start_s: Floats
    end_s: Floats

    @staticmethod
    def of_row(lane: str, row: str, labels: list[str], start_s: Floats, end_s: Floats) -> Spans:
        columns = ([lane] * len(labels), [row] * len(labels), labels)
        lanes, rows, texts = (np.array(each, object) for each in columns)
        return Spans(lanes, rows, texts, start_s, end_s)

    def of(self, chosen: npt.NDArray[Any]) -> Spans:
        return Spans(*(column[chosen] for column in self))

    def each(self) -> Iterator[tuple[Any, ...]]:
        return zip(*(column.tolist() for column in self), strict=True)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Times in s. `rows`: of each lane, its spans by row: [start, length, index of a label].
    `marks`: [time, lane, index of a label]. `within_s`: spans of one label that are closer than
    this are drawn as one; 0: none are."""

    end_s: float
    lanes: list[str]
    labels: list[str]
    rows: list[dict[str, list[list[float]]]]
    marks: list[list[float]]
    load: dict[str, list[float]]
    within_s: float
    num_left_out: int  # lanes beyond MAX_LANES

    @property
    def by_requests(self) -> bool:
        """Whether some lane shows requests instead of batches."""
        return any("served" in rows for rows in self.rows)

    def as_json(self) -> str:
        """The timeline as JSON for a script element of a page."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(plain, separators=(",", ":")).replace("<", "\\u003c")


def timeline(requests: pa.Table, events: pa.Table) -> Timeline:
    """The timeline of a run, from its two tables."""
    log = TokenLog.from_table(requests)
    parts = [_of_events(events), *_of_requests(requests, log, events)]
    spans = Spans(*map(np.concatenate, zip(*parts, strict=True)))
    ends_s = (float(np.max(each, initial=0.0)) for each in (log.times_s, spans.end_s))
    end_s = max(*ends_s, 1e-3)
    instant = spans.row == "mark"
    merged, within_s = _few(spans.of(~instant), end_s)
    names = sorted(set(spans.lane), key=_by_number)
    lanes, left_out = names[:MAX_LANES], names[MAX_LANES:]
    labels = sorted({*merged.label, *spans.label[instant]})
    at, of_label = ({name: i for i, name in enumerate(each)} for each in (lanes, labels))
    rows: list[dict[str, list[list[float]]]] = [{} for _ in lanes]
    for lane, row, label, start_s, until_s in merged.each():
        if lane in at:
            drawn = [round(start_s, 6), round(until_s - start_s, 6), of_label[label]]
            rows[at[lane]].setdefault(row, []).append(drawn)
    marks = [
        [round(start_s, 6), at[lane], of_label[label]]
        for lane, _, label, start_s, _ in spans.of(instant).each()
        if lane in at
    ]
    return Timeline(
        end_s=end_s, lanes=lanes, labels=labels, rows=rows, within_s=within_s,
        marks=marks[: MAX_SPANS // 4], load=_load(requests, end_s), num_left_out=len(left_out),
    )  # fmt: skip


def _of_events(events: pa.Table) -> Spans:
    found = events.filter(pc.invert(pc.is_in(events["kind"], pa.array(LEFT_OUT))))
    kinds, lanes, texts = (found[name].to_pylist() for name in ("kind", "instance", "fields"))
    start_s, end_s = found["start_s"].to_numpy(), found["end_s"].to_numpy()
    row = np.array([ROWS.get(kind, "noted") for kind in kinds], object)
    row[~(end_s > start_s) & (row != "ran")] = "mark"
    labels = [_label(kind, json.loads(text)) for kind, text in zip(kinds, texts, strict=True)]
    return Spans(np.array(lanes, object), row, np.array(labels, object), start_s, end_s)


def _label(kind: str, fields: Mapping[str, Any]) -> str:
    """The label of a span, e.g. "run decode, qwen-7b": what is told beside the times."""
    phase = fields.get("phase") or fields.get("purpose") or fields.get("role") or ""
    model = fields.get("model") or ""
    return ", ".join(filter(None, [" ".join(filter(None, [kind, phase])), model]))


def _of_requests(requests: pa.Table, log: TokenLog, events: pa.Table) -> Iterator[Spans]:
    """Spans of the requests of instances that have no batches among the events."""
    ran = set(events.filter(pc.equal(events["kind"], "run"))["instance"].to_pylist())
    of = np.array(requests["instance"].to_pylist(), object)
    for name in sorted(set(of) - ran - {""}):
        mine = log.started & (of == name)
        yield _waited(name, log.sent_s[mine], log.first_s[mine])
        yield _served(name, log.first_s[mine], log.last_s[mine])


def _waited(lane: str, start_s: Floats, end_s: Floats) -> Spans:
    known = np.flatnonzero(np.isfinite(start_s) & np.isfinite(end_s))
    known = known[np.argsort(start_s[known], kind="stable")]
    labels = ["a request without a token"] * len(known)
    spans = Spans.of_row(lane, "waited", labels, start_s[known], end_s[known])
    return _joined(spans, np.zeros(len(known), np.int64), 0.0)


def _served(lane: str, start_s: Floats, end_s: Floats) -> Spans:
    """Spans of one number of requests each, at most some hundreds of them."""
    edges = np.unique(np.concatenate([start_s, end_s]))
    if len(edges) > MAX_BINS:
        edges = np.linspace(edges[0], edges[-1], MAX_BINS)
    middle = (edges[1:] + edges[:-1]) / 2
    count = np.searchsorted(np.sort(start_s), middle) - np.searchsorted(np.sort(end_s), middle)
    some = count > 0
    labels = [f"decoding {n}" for n in count[some]]
    return Spans.of_row(lane, "served", labels, edges[:-1][some], edges[1:][some])


def _few(spans: Spans, end_s: float) -> tuple[Spans, float]:
    """Reduces spans to MAX_SPANS or not many more, by joining those of one label with short gaps
    between them, at most a pixel's; and says how short. Then the models of loads, moves and waits
    are not told."""
    if len(spans.row) > MAX_SPANS:
        kinds = np.array([label.partition(", ")[0] for label in spans.label], object)
        spans = spans._replace(label=np.where(spans.row == "ran", spans.label, kinds))
    number: dict[tuple[str, ...], int] = {}
    texts = zip(spans.lane, spans.row, spans.label, strict=True)
    keys = np.array([number.setdefault(each, len(number)) for each in texts], np.int64)
    order = np.lexsort((spans.start_s, keys))
    spans, keys = spans.of(order), keys[order]
    found, within_s = spans, 0.0
    while len(found.row) > MAX_SPANS and within_s < end_s / PIXELS:
        within_s = 2 * within_s if within_s else end_s / 2**16
        found = _joined(spans, keys, within_s)
    return found, within_s


def _joined(spans: Spans, keys: Ints, within_s: float) -> Spans:
    """`spans`, sorted by key and start, where those of one key are joined that are at most this far
    apart."""
    until_s, first = spans.end_s.copy(), np.ones(len(keys), bool)
    for of_key in np.split(until_s, np.flatnonzero(np.diff(keys)) + 1):
        np.maximum.accumulate(of_key, out=of_key)
    first[1:] = np.diff(keys).astype(bool) | (spans.start_s[1:] > until_s[:-1] + within_s)
    return spans.of(first)._replace(end_s=until_s[np.roll(first, -1)])


def _load(requests: pa.Table, end_s: float) -> dict[str, list[float]]:
    series = over_time(requests, end_s / MAX_BINS)
    names = ("time_s", "running", "queued")
    return {name: [round(float(value), 4) for value in series[name]] for name in names}


def _by_number(name: str) -> tuple[str, int]:
    """The key that sorts instance-2 before instance-10, and the client and hosts behind."""
    stem = name.rstrip("0123456789")
    number = name[len(stem) :]
    behind = "~" if stem in ("client", "node-") else ""
    return behind + stem, int(number) if number else -1
