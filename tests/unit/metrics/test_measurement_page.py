"""docs/measurement.md has each definition as the code has it, and the summary's metrics."""

from __future__ import annotations

import re

from harness.exporting.conventions import DEFINITIONS
from harness.records.closed_loop import CLOSED_LOOP
from harness.records.manifest import PROJECT
from harness.records.metrics import KEYS
from harness.records.slo import KINDS
from tests.unit.metrics.service import steady

LINES = (PROJECT / "docs" / "measurement.md").read_text().splitlines()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES if line[:1] == "|"]


def test_the_pages_definitions_are_the_codes() -> None:
    told = {row[0]: row[1:] for row in ROWS if "/" in row[0] and row[0][0] == "`" and len(row) == 6}
    assert told == {
        f"`{one.id}`": [
            one.quantity,
            {1e3: "ms", 1e2: "%"}.get(one.unit)
            or ("1/s" if one.is_rate else "share" if one.is_one_number else "s"),
            one.anchor, one.of, f"a {one.each}",
        ]
        for one in DEFINITIONS
    }  # fmt: skip


def test_each_key_of_a_summary_is_explained() -> None:
    service = steady(70)
    service.recorder.event(CLOSED_LOOP, "client", 0.0, 1.0, concurrency=2)
    service.recorder.event(
        "fault", "gpu0", 0.0, 1.0, fault="kill", planned="", struck=True, why_not=""
    )
    for kind, fields in {
        "switch": {"hidden": True},
        "run": {},
        "host_full": {"host_kv_bytes": 1},
        "slot": {"role": "prefill", "num_devices": 1},
        "transfer": {"purpose": "weights", "bytes": 1},
        "kv_move": {"purpose": "kv", "bytes": 1, "requests": [0]},
        "lease": {"bytes": 1},
        "pace": {"paced_s": 1.0, "behind_s": 0.0},
        "scrapes": {"num_failed": 1, "num_pages": 2, "last_error": "gone"},
    }.items():
        service.recorder.event(kind, "gpu0", 0.0, 1.0, **fields)
    summary = service.summary()
    assert {"switches", "closed_loop", "faults", "lease_seconds", "scrapes_failed"} <= set(summary)
    docs = PROJECT / "docs"
    pages = [(docs / f"{page}.md").read_text() for page in ("measurement", "reading-results")]
    named = set(re.findall(r"`(?:harness/)?(\w+)[.`]", " ".join(pages)))
    assert set(summary) - named == set()
    assert set(summary) <= set(KEYS)


def test_the_ids_of_what_only_we_define_are_keys_of_a_summary() -> None:
    told = [row[0].strip("`").removeprefix("harness/") for row in ROWS if len(row) == 4]
    summary = steady(70).summary()
    known = {"qoe.mean", "stalls.seconds", "littles_law.l", "gpu_seconds"}
    assert known <= set(told[2:])
    for name in told[2:]:
        found = summary
        for key in name.split("."):
            found = found[key]
        assert isinstance(found, (int, float)), name


def test_the_kinds_of_limits_are_the_codes() -> None:
    at = next(i for i, row in enumerate(ROWS) if row[1] == "a request's latency")
    told = [row[0].strip("`").partition("`")[0] for row in ROWS[at + 2 : at + 2 + len(KINDS)]]
    assert told == [*KINDS]


def test_each_key_with_a_formula_is_in_a_summary() -> None:
    summary = steady(70).summary()
    keys = [row[0].strip("`") for row in ROWS if len(row) == 3 and row[0].endswith(("_s`", "t`"))]
    assert {"ttft_s", "tbt_s", "goodput_per_s"} <= set(keys)
    for key in set(keys) - KINDS.keys():
        name, _, below = key.partition(".")
        assert name in summary, key
        assert not below or below in summary[name], key
