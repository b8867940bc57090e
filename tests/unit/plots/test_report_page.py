"""report.html: one file that asks nobody for anything, and a timeline with every instance."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest

from harness.files import read_json
from harness.records.numbers import number, seconds
from harness.records.record import Recorder, Segment
from harness.records.tables import EVENTS, events_table, requests_table
from harness.request import Request
from plots.__main__ import main
from plots.report import repeat
from plots.timeline import MAX_SPANS, timeline
from tests.unit.metrics.service import Service, steady, write_run
from tests.unit.metrics.test_receive_lag import beating

VOID = {"meta", "br", "img", "link", "input"}


class Page(HTMLParser):
    """The text of elements by their class or tag, what is fetched, and whether all tags close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open[-1:] == ["script"] else self.texts).append(data)


def page_of(path: Path) -> Page:
    assert main(["report", str(path)]) == 0
    page = Page((path / "report.html").read_text())
    assert not page.open
    return page


def test_a_report_is_one_file_with_the_runs_numbers(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steady(100))
    page = page_of(path)
    assert all(each.startswith("data:") for each in page.fetched)
    assert not [text for text in page.scripts if "http" in text]
    text = " ".join(" ".join(page.texts).split())
    summary, manifest = read_json(path / "summary.json"), read_json(path / "manifest.json")
    assert summary["verdict"]["status"] in text
    assert manifest["schedule_sha256"] in text
    assert manifest["config_hash"] in text
    assert "100 of 100" in text
    assert json.loads(page.scripts[0])["end_s"] > 0
    within = summary["intervals_95"]
    low, high = within["e2e_s"]["p50"]
    assert f"{seconds(low)} to {seconds(high)}" in text
    for kind, (low, high) in within["slo_attainment"].items():
        attained = summary["slo_attainment"][kind]
        assert f"{kind} {attained:.1%} (95 %: {low:.1%} to {high:.1%})" in text
    low, high = map(number, within["goodput_per_s"])
    assert f"requests/s (95 %: {low} to {high}) within SLO" in text


def test_broken_rules_are_named_and_odd_text_is_escaped(tmp_path: Path) -> None:
    service = Service((0.0, 5))
    service.send(0)
    service.fail(0, "</script><b>bold</b>")
    page = page_of(write_run(tmp_path / "run", service))
    text = " ".join(" ".join(page.texts).split())
    assert "</script><b>bold</b>" in text
    assert "none of 1 requests completed" in text
    assert text.count("broken") == 1


def test_the_page_has_the_late_stamps_that_the_verdict_saw(tmp_path: Path) -> None:
    service = beating(steady(100), stamped_by="kernel")
    records = service.recorder.records.values()
    came_s = [float(time_s) for record in records for time_s in record.token_times_s()]
    since_s = [time_s - 0.015 for time_s in came_s]
    service.recorder.event(
        "late_stamps", "client", since_s[0], came_s[-1], since_s=since_s, came_s=came_s
    )
    path = write_run(tmp_path / "run", service)
    (reason,) = read_json(path / "summary.json")["verdict"]["reasons"]
    assert "P99 receive lag over tokens 15.0 ms" in reason
    text = " ".join(" ".join(page_of(path).texts).split())
    assert text.count(reason) == 2  # of the verdict, and of its rule
    assert text.count("broken") == 1


def test_no_report_of_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "is not a complete run's folder" in capsys.readouterr().err


def test_spans_are_sorted_into_what_ran_loaded_moved_and_waited() -> None:
    recorder = Recorder([Request(0, 0.0, "m", 5, 2), Request(1, 0.0, "m", 5, 1)])
    for request in (record.request for record in recorder.records.values()):
        recorder.sent(request, 0.5)
    first, second = (record.request for record in recorder.records.values())
    recorder.segment([first], Segment(1.0, 2, 1.0, 0.0), "plain-0")  # tokens at 2 and 3 s
    recorder.segment([second], Segment(1.0, 1, 1.0, 0.0), "pool-0")
    recorder.event("run", "pool-0", 1.0, 2.0, model="m", phase="decode", requests=[1])
    recorder.event("load", "pool-0", 0.0, 1.0, model="m", staged=True)
    recorder.event("transfer", "pool-0", 0.0, 0.5, purpose="weights", bytes=1)
    recorder.event("switch", "pool-0", 0.0, 1.0, model="m", before=None, hidden=False)
    recorder.preempted(first, "plain-0", 2.5)
    made = timeline(requests_table(recorder), events_table(recorder))
    assert made.lanes == ["plain-0", "pool-0"]
    assert {row: [span[:2] for span in spans] for row, spans in made.rows[0].items()} == {
        "waited": [[0.5, 1.5]], "served": [[2.0, 1.0]],
    }  # fmt: skip
    assert {row: [span[:2] for span in spans] for row, spans in made.rows[1].items()} == {
        "ran": [[1.0, 1.0]], "loaded": [[0.0, 1.0]], "moved": [[0.0, 0.5]], "waited": [[0.0, 1.0]],
    }  # fmt: skip
    assert [(at, made.labels[int(label)]) for at, _, label in made.marks] == [(2.5, "preempt")]


def test_many_spans_become_few_that_cover_the_same_time() -> None:
    requests = requests_table(Recorder([Request(0, 0.0, "m", 5, 2)]))
    count = 4 * MAX_SPANS
    columns = [
        ["run"] * count, ["pool-0"] * count, [float(i) for i in range(count)],
        [i + 0.9 for i in range(count)], ['{"model": "m", "phase": "decode"}'] * count,
    ]  # fmt: skip
    made = timeline(requests, pa.table(columns, schema=EVENTS))
    spans = made.rows[0]["ran"]
    assert len(spans) <= MAX_SPANS
    assert made.within_s >= 0.1
    assert spans[0][0] == 0.0
    assert spans[-1][0] + spans[-1][1] == pytest.approx(count - 0.1)


def test_the_command_is_the_typed_one_unless_it_was_a_sweep_or_a_figure() -> None:
    typed = ["python", "-m", "harness", "+system=vllm", "workload.window.seconds=[0,60]"]
    manifest = {"git": None, "command": typed, "overrides": ["+system=vllm", "seed=1"]}
    assert repeat(manifest) == ["python -m harness +system=vllm 'workload.window.seconds=[0,60]'"]
    swept = [*typed, "-m", "seed=0,1"]
    assert repeat(manifest | {"command": swept, "git": {"revision": "abc", "dirty": True}}) == [
        "git checkout abc", "python -m harness +system=vllm seed=1",
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["versions", "choices", "machine"])
def test_a_run_that_lacks_what_the_page_shows_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    path = write_run(tmp_path / "run", steady(3))
    manifest = read_json(path / "manifest.json")
    del manifest[key]
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert main(["report", str(path)]) == 2
    assert "is damaged: " in capsys.readouterr().err
    assert not (path / "report.html").exists()
