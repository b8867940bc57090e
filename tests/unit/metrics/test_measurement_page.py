"""docs/measurement.md has each definition as the code has it, and the summary's metrics."""

from __future__ import annotations

from harness.exporting.conventions import DEFINITIONS
from harness.records.manifest import PROJECT
from harness.records.slo import KINDS
from tests.unit.metrics.service import steady

LINES = (PROJECT / "docs" / "measurement.md").read_text().splitlines()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES if line[:1] == "|"]


def test_the_pages_definitions_are_the_codes() -> None:
    told = {row[0]: row[1:] for row in ROWS if "/" in row[0] and row[0][0] == "`" and len(row) == 6}
    assert told == {
        f"`{one.id}`": [
            one.quantity,
            "1/s" if one.quantity.endswith("/s") else "ms" if one.unit == 1e3 else "s",
            one.anchor, one.of, f"a {one.each}",
        ]
        for one in DEFINITIONS
    }  # fmt: skip


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
