"""What each instance did over a run, as spans that a page can draw: ran, loaded, moved, waited.

Spans come from events.parquet. An instance that stamps no batches (a plain replica, a server, an
elastic instance) is shown by its requests instead: how many of those that got their first token
there were between first and last token, and when any waited for its first one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from harness.records.metrics import over_time
from harness.records.token_log import Floats, TokenLog

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
    spans = pd.concat([_of_events(events), _of_requests(requests, log, events)], ignore_index=True)
    spans = spans.astype({"start_s": float, "end_s": float})
    end_s = max(float(np.max(log.times_s, initial=0.0)), float(spans.end_s.max() or 0.0), 1e-3)
    instant = spans.row.eq("mark")
    merged, within_s = _few(spans[~instant], end_s)
    names = sorted(spans.lane.unique(), key=_by_number)
    lanes, left_out = names[:MAX_LANES], names[MAX_LANES:]
    labels = sorted({*merged.label, *spans[instant].label})
    at, of_label = ({name: i for i, name in enumerate(each)} for each in (lanes, labels))
    rows: list[dict[str, list[list[float]]]] = [{} for _ in lanes]
    columns = ["lane", "row", "label", "start_s", "end_s"]
    for lane, row, label, start_s, until_s in merged[merged.lane.isin(lanes)][columns].to_numpy():
        drawn = [round(start_s, 6), round(until_s - start_s, 6), of_label[label]]
        rows[at[lane]].setdefault(row, []).append(drawn)
    marks = spans[instant & spans.lane.isin(lanes)].head(MAX_SPANS // 4)
    return Timeline(
        end_s=end_s, lanes=lanes, labels=labels, rows=rows, within_s=within_s,
        marks=[
            [round(start_s, 6), at[lane], of_label[label]]
            for start_s, lane, label in marks[["start_s", "lane", "label"]].to_numpy()
        ],
        load=_load(requests, end_s), num_left_out=len(left_out),
    )  # fmt: skip


def _of_events(events: pa.Table) -> pd.DataFrame:
    found = events.to_pandas()
    found = found[~found.kind.isin(LEFT_OUT)]
    fields = [json.loads(text) for text in found.fields]
    length_s = found.end_s - found.start_s
    row = found.kind.map(ROWS).fillna("noted")
    return pd.DataFrame(
        {
            "lane": found.instance,
            "row": row.where((length_s > 0) | row.eq("ran"), "mark"),
            "label": [_label(k, f) for k, f in zip(found.kind, fields, strict=True)],
            "start_s": found.start_s.astype(float),
            "end_s": found.end_s.astype(float),
        }
    )


def _label(kind: str, fields: Mapping[str, Any]) -> str:
    """The label of a span, e.g. "run decode, qwen-7b": what is told beside the times."""
    phase = fields.get("phase") or fields.get("purpose") or fields.get("role") or ""
    model = fields.get("model") or ""
    return ", ".join(filter(None, [" ".join(filter(None, [kind, phase])), model]))


def _of_requests(requests: pa.Table, log: TokenLog, events: pa.Table) -> pd.DataFrame:
    """Spans of the requests of instances that have no batches among the events."""
    ran = set(events.filter(pc.equal(events["kind"], "run"))["instance"].to_pylist())
    of = np.array(requests["instance"].to_pylist(), dtype=object)
    tables = []
    for name in sorted(set(of) - ran - {""}):
        mine = log.started & (of == name)
        waits = _union(log.sent_s[mine], log.first_s[mine])
        tables.append(waits.assign(lane=name, row="waited", label="a request without a token"))
        tables.append(_levels(log.first_s[mine], log.last_s[mine]).assign(lane=name, row="served"))
    columns = ["lane", "row", "label", "start_s", "end_s"]
    return pd.concat(tables)[columns] if tables else pd.DataFrame(columns=columns)


def _union(start_s: Floats, end_s: Floats) -> pd.DataFrame:
    known = np.isfinite(start_s) & np.isfinite(end_s)
    spans = pd.DataFrame({"start_s": start_s[known], "end_s": end_s[known]})
    return _joined(spans.assign(key=0), 0.0)[["start_s", "end_s"]]


def _levels(start_s: Floats, end_s: Floats) -> pd.DataFrame:
    """Spans of one number of requests each, at most some hundreds of them."""
    edges = np.unique(np.concatenate([start_s, end_s]))
    if len(edges) > MAX_BINS:
        edges = np.linspace(edges[0], edges[-1], MAX_BINS)
    middle = (edges[1:] + edges[:-1]) / 2
    count = np.searchsorted(np.sort(start_s), middle) - np.searchsorted(np.sort(end_s), middle)
    spans = pd.DataFrame({"start_s": edges[:-1], "end_s": edges[1:], "count": count})
    spans = spans[spans["count"] > 0]
    return spans.assign(label=[f"decoding {n}" for n in spans["count"]]).drop(columns="count")


def _few(spans: pd.DataFrame, end_s: float) -> tuple[pd.DataFrame, float]:
    """Reduces spans to MAX_SPANS or not many more, by joining those of one label with short gaps
    between them, at most a pixel's; and says how short. Then the models of loads, moves and waits
    are not told."""
    if len(spans) > MAX_SPANS:
        kind = spans.label.str.partition(", ")[0]
        spans = spans.assign(label=spans.label.where(spans.row == "ran", kind))
    keys = spans.groupby(["lane", "row", "label"], sort=False).ngroup()
    spans = spans.assign(key=keys).sort_values(["key", "start_s"], kind="stable")
    found, within_s = spans, 0.0
    while len(found) > MAX_SPANS and within_s < end_s / PIXELS:
        within_s = 2 * within_s if within_s else end_s / 2**16
        found = _joined(spans, within_s)
    return found, within_s


def _joined(spans: pd.DataFrame, within_s: float) -> pd.DataFrame:
    """`spans`, sorted by key and start, where those of one key are joined that are at most this far
    apart."""
    spans = spans.sort_values(["key", "start_s"], kind="stable")
    until_s = spans.groupby("key").end_s.cummax()
    first = spans.key.ne(spans.key.shift()) | (spans.start_s > until_s.shift() + within_s)
    number = first.cumsum()
    grouped = spans.assign(end_s=until_s).groupby(number.to_numpy())
    made = grouped.first()
    made["end_s"] = grouped.end_s.max()
    return made


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
