"""Single elastic operations against published times: two by hand, and what is told of bad rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.calibrate import zoo
from harness.errors import UsageError
from harness.fidelity.arguments import PUBLISHED
from harness.fidelity.elastic import OPERATIONS, ROWS, Row, compared, page, read

REPORT = Path(__file__).resolve().parents[3] / PUBLISHED
ROW = """
- operation: {operation}
  hardware: {hardware}
  model: llama3.1-8b
  published_s: 1.0
  kind: held out
  measured: a test
  source: none
"""


def simulated_s(operation: str, hardware: str, **fields: object) -> float:
    told = {"published_s": 1.0, "kind": "held out", "measured": "", "source": ""}
    row = Row(operation=operation, hardware=hardware, **(told | fields))  # type: ignore[arg-type]
    return OPERATIONS[operation].simulate(row)


def test_a_load_from_dram_crosses_pcie_once() -> None:
    found = simulated_s("load from DRAM", "h100x8", model="llama3.1-8b")
    assert found == pytest.approx(1e-5 + zoo.model("llama3.1-8b").weight_bytes / 5e10, rel=1e-6)


def test_a_peer_copy_pays_its_latency_and_its_bytes() -> None:
    assert simulated_s("peer copy", "a100x2", num_bytes=4_000_000) == pytest.approx(8e-5)


@pytest.mark.parametrize(
    ("operation", "hardware", "told"),
    [
        (
            "load from DRAM",
            "h100x9",
            "rows.yaml, row 1: hardware=h100x9 is unknown; valid: .*h100x8",
        ),
        ("fly", "h100x8", "row 1: operation=fly is unknown; valid: load from DRAM, "),
        ("peer copy", "h100x8", "row 1: operation=peer copy needs num_bytes"),
    ],
)
def test_a_broken_row_is_told_by_name(
    operation: str, hardware: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.yaml"
    path.write_text(ROW.format(operation=operation, hardware=hardware))
    with pytest.raises(UsageError, match=told):
        read(path)


def test_the_committed_report_is_what_is_simulated() -> None:
    kept = json.loads((REPORT / "elastic.json").read_text())
    found = compared(read(ROWS))
    assert found["rows"] == [
        row | {"error_pct": pytest.approx(row["error_pct"])} for row in kept["rows"]
    ]
    assert found["held_out"][0] == pytest.approx(kept["held_out"][0])
    assert page(kept) == (REPORT / "elastic.md").read_text()


def test_the_simulators_page_has_the_rows_of_the_report() -> None:
    lines = (REPORT / "elastic.md").read_text().splitlines()
    rows = [line.split(" | ")[:7] for line in lines if " | held out | " in line]
    told = (REPORT.parents[2] / "docs/simulator.md").read_text()
    assert len(rows) == json.loads((REPORT / "elastic.json").read_text())["held_out"][0]["rows"]
    assert [row for row in rows if f"{' | '.join(row)} |" not in told] == []
