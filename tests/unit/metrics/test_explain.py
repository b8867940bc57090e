"""One run by several tools' definitions, and why their numbers differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.exporting.__main__ import main as export
from harness.exporting.conventions import Samples, percentile
from harness.exporting.explain import main as explain
from harness.exporting.importing import main as read
from tests.unit.metrics.service import Service, steady, write_run


def late_and_failed() -> Service:
    """The client sends the first request 0.25 s late. Two are answered in full, in chunks of two
    tokens and of one; the third fails after its first token."""
    service = Service((0.0, 3), (1.0, 2), (1.5, 4))
    service.complete(0, 0.5, 0.5, 0.9, lag_s=0.25)
    service.complete(1, 1.25, 1.35)
    service.send(2)
    service.tokens(2, 3.5)
    service.fail(2, "gone")
    return service


def explained(folder: Path, *more: str) -> dict[str, dict[str, Any]]:
    out = folder / "explained.json"
    assert explain([str(folder), *more, "--json", str(out)]) == 0
    return {f"{row['tool']} {row['name']}": row for row in json.loads(out.read_text())}


def test_each_tools_mean_is_ours_and_the_steps_between(tmp_path: Path) -> None:
    found = explained(write_run(tmp_path, late_and_failed()))
    ours, theirs = found["harness ttft_s"], found["vllm ttft_ms"]
    assert ours["mean"] == pytest.approx((0.5 + 0.25 + 2.0) / 3)
    assert theirs["mean"] == pytest.approx((0.25 + 0.25) / 2)
    assert theirs["differs"] == {
        "counts from the sending": pytest.approx(-0.25 / 3),
        "completed requests alone": pytest.approx(0.25 - 2.5 / 3),
    }
    of = {row["quantity"]: row for row in reversed(found.values()) if row["tool"] == "harness"}
    for row in found.values():
        steps = sum(row["differs"].values())
        assert row["mean"] == pytest.approx(of[row["quantity"]]["mean"] + steps), row["name"]


def test_a_mean_by_tokens_and_one_by_requests(tmp_path: Path) -> None:
    found = explained(write_run(tmp_path, late_and_failed()))
    assert found["harness tpot_s"]["mean"] == pytest.approx((0.2 + 0.1) / 2)
    by_token = found["guidellm inter_token_latency_ms"]
    assert by_token["percentiles"] == "inverted_cdf"
    assert by_token["p50"] == pytest.approx(0.2)  # and not between the two
    assert by_token["mean"] == pytest.approx((0.4 + 0.1) / 3)
    assert by_token["differs"] == {"weighted by tokens": pytest.approx(0.5 / 3 - 0.15)}
    assert found["guidellm time_per_output_token_ms"]["mean"] == pytest.approx((0.65 + 0.35) / 5)


def test_windows_of_rates(tmp_path: Path) -> None:
    found = explained(write_run(tmp_path, late_and_failed()))
    assert found["harness request_throughput_per_s"]["mean"] == pytest.approx(2 / 3.5)
    vllm = found["vllm output_throughput"]
    assert vllm["mean"] == pytest.approx(5 / 3.25)
    assert set(vllm["differs"]) == {
        "window begins with the first sending", "completed requests alone",
    }  # fmt: skip


def test_gaps_between_tokens_whose_times_are_not_known_are_none(tmp_path: Path) -> None:
    """GuideLLM's file has the first and the last time of an answer: no tool's gaps follow. A live
    client saw chunks, whose gaps a tool that counts chunks has."""
    live = write_run(tmp_path / "run", late_and_failed())
    assert export([str(live), "--to", "guidellm"]) == 0
    assert read([str(live / "guidellm.json"), "--out", str(tmp_path / "imported")]) == 0
    summary = json.loads((live / "summary.json").read_text())
    summary["slo_attainment"]["token"] = None
    (live / "summary.json").write_text(json.dumps(summary))
    for folder, tools in ((tmp_path / "imported", set()), (live, {"vllm", "aiperf"})):
        gaps = [row for row in explained(folder).values() if row["quantity"] == "gaps"]
        assert {row["tool"] for row in gaps if row["mean"] is not None} == tools


def judged(folder: Path, goodput: str) -> tuple[Path, dict[str, Any]]:
    """The first is good from its sending alone; the last has one token."""
    service = Service((0.0, 3), (1.0, 2), (1.5, 4), (1.6, 1))
    service.complete(0, 0.5, 0.5, 0.9, lag_s=0.25)
    service.complete(1, 1.25, 1.35)
    service.send(2)
    service.tokens(2, 3.5)
    service.fail(2, "gone")
    service.complete(3, 1.7)
    write_run(folder, service, goodput=goodput)
    return folder, explained(folder)


def test_good_requests_by_each_tools_rules(tmp_path: Path) -> None:
    folder, found = judged(tmp_path, "ttft:400 tpot:300")
    by_hand = {
        "harness goodput_per_s": 2 / 3.5, "vllm request_goodput": 3 / 3.25,
        "aiperf goodput": 2 / 3.25, "inference-perf request_goodput": 2 / 1.45,
        "harness slo_attainment.request": 2 / 4, "aiperf good_request_fraction": 2 / 4,
        "inference-perf goodput_percentage": 2 / 3,
    }  # fmt: skip
    for name, value in by_hand.items():
        assert found[name]["mean"] == pytest.approx(value), name
        ours = (
            "goodput_per_s" if found[name]["quantity"].endswith("/s") else "slo_attainment.request"
        )
        steps = sum(found[name]["differs"].values())
        assert found[f"harness {ours}"]["mean"] + steps == pytest.approx(value), name
    assert any("one token" in word for word in found["aiperf goodput"]["differs"])
    for tool in ("vllm", "aiperf", "inference-perf"):
        assert export([str(folder), "--to", tool]) == 0
        rows = explained(folder, str(folder / f"{tool}.json"))
        good = [r for r in rows.values() if r["tool"] == tool and r["quantity"].startswith("good")]
        assert [r["left"] for r in good] == pytest.approx([0.0] * len(good), abs=1e-9)
    assert json.loads((folder / "inference-perf.json").read_text())["successes"]["goodput_metrics"][
        "goodput_percentage"
    ] == pytest.approx(200 / 3)


@pytest.mark.parametrize("goodput", ["ttft:400 tbt_max:300", "ttft:400 m/ttft:500 x/ttft:100"])
def test_limits_that_no_tool_has_give_no_goodput_of_tools(tmp_path: Path, goodput: str) -> None:
    folder, found = judged(tmp_path, goodput)
    assert found["harness goodput_per_s"]["mean"] is not None
    own_limits = "m/" in goodput  # of the run's only model: as good as for all
    for name in ("vllm request_goodput", "inference-perf goodput_percentage"):
        assert (found[name]["mean"] is not None) is own_limits
    assert export([str(folder), "--to", "vllm"]) == 0
    found = json.loads((folder / "vllm.json").read_text())
    assert (found["request_goodput"] is not None) is own_limits


@pytest.mark.parametrize(
    ("tool", "file"),
    [(tool, f"{tool}.json") for tool in ("vllm", "aiperf", "guidellm", "inference-perf")],
)
def test_nothing_is_left_over_from_a_file_of_this_run(tmp_path: Path, tool: str, file: str) -> None:
    folder = write_run(tmp_path, late_and_failed())
    assert export([str(folder), "--to", tool]) == 0
    found = explained(folder, str(folder / file))
    rows = [row for row in found.values() if row["tool"] == tool]
    assert {row["name"] for row in rows if "in_file" not in row} == set()
    for row in rows:
        assert row["left"] == pytest.approx(0.0, abs=1e-9), row["name"]


def test_what_a_file_has_more_is_left_over(tmp_path: Path) -> None:
    folder = write_run(tmp_path, steady(20))
    ours = explained(folder)["guidellm time_to_first_token_ms"]["mean"]
    file = tmp_path / "guidellm.json"
    mean = {"successful": {"mean": 1e3 * ours + 7.0}}
    file.write_text(json.dumps({"benchmarks": [{"metrics": {"time_to_first_token_ms": mean}}]}))
    row = explained(folder, str(file))["guidellm time_to_first_token_ms"]
    assert row["left"] == pytest.approx(7e-3)


@pytest.mark.parametrize(
    ("tool", "name", "told"),
    [
        ("vllm", "ttft_ms", ("sent", "completed", "request", None)),
        ("aiperf", "output_token_throughput",
         ("sent", "completed", "token", "first sending to last token")),
        ("guidellm", "inter_token_latency_ms", ("arrival", "completed", "token", None)),
        ("inference-perf", "time_to_first_token",
         ("sent", "streamed", "request", None)),
    ],
)  # fmt: skip
def test_a_file_alone_says_what_its_numbers_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tool: str, name: str,
    told: tuple[str | None, ...],
) -> None:  # fmt: skip
    folder = write_run(tmp_path / "run", late_and_failed())
    assert export([str(folder), "--to", tool]) == 0
    out = tmp_path / "explained.json"
    assert explain([str(folder / f"{tool}.json"), "--json", str(out)]) == 0
    found = {row["name"]: row for row in json.loads(out.read_text())}
    keys = ("anchor", "of", "each", "window")
    assert tuple(found[name][key] for key in keys) == told
    both = explained(folder, str(folder / f"{tool}.json"))
    assert found[name]["in_file"] == both[f"{tool} {name}"]["in_file"]
    assert found[name]["ours"]["anchor"] == "arrival"
    printed = capsys.readouterr().out
    assert f"by the definitions of {tool}" in printed
    assert "(ours:" in printed
    method = "inverted_cdf" if tool == "guidellm" else "linear"
    assert found[name]["percentiles"] == (None if name.endswith("throughput") else method)
    assert "GuideLLM's the smallest sample that reaches" in " ".join(printed.split())


def test_the_table_cuts_no_number_in_a_narrow_terminal_and_tells_no_rounding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folder = write_run(tmp_path / "run", late_and_failed())
    assert export([str(folder), "--to", "vllm"]) == 0
    file = json.loads((folder / "vllm.json").read_text())
    (folder / "vllm.json").write_text(json.dumps(file | {"mean_e2el_ms": 1e3}))
    capsys.readouterr()
    found = explained(folder, str(folder / "vllm.json"))
    said = capsys.readouterr().out
    assert "…" not in said
    assert "counts from the sending" in " ".join(said.split())
    ttft, e2el = (found[f"vllm {name}_ms"] for name in ("ttft", "e2el"))
    lines = {line.split()[0]: line.split() for line in said.splitlines() if line.strip()}
    assert lines["vllm/ttft_ms"][-4:] == ["250", "ms", "0", "s"]
    assert abs(ttft["left"]) < 1e-12
    assert lines["vllm/e2el_ms"][-2:] == [f"+{1e3 * e2el['left']:.0f}", "ms"]


def test_a_json_file_that_cannot_be_written_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = write_run(tmp_path / "run", late_and_failed()), tmp_path / "out.json"
    explained_once = explain([str(folder), "--json", str(out)])
    before = out.read_bytes()

    def full(self: Path, text: str, **_: Any) -> int:
        self.write_bytes(text[:10].encode())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        explain([str(folder), "--json", str(out)])
    assert explained_once == 0
    assert out.read_bytes() == before


@pytest.mark.parametrize("content", ['{"a": 1}', "[]", "{"])
def test_a_file_of_no_known_tool_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    folder = write_run(tmp_path, steady(5))
    (tmp_path / "other.json").write_text(content)
    assert explain([str(folder), str(tmp_path / "other.json")]) == 2
    assert "other.json is " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"mean_ttft_ms": "x"}', "ttft_ms is 'x', no number"),
        ('{"mean_ttft_ms": NaN}', "ttft_ms is 'nan', no number"),
        ('{"mean_ttft_ms": 1' + "0" * 400 + "}", "ttft_ms is '1000"),
        ('{"results": {"request_performance": {}}}', "llm-d's benchmark report"),
        ('{"benchmarks": [{}, {}]}', "must have one benchmark"),
        ('{"benchmarks": [{}]}', "none of the means of guidellm's results"),
    ],
)
def test_odd_numbers_and_several_benchmarks_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    folder = write_run(tmp_path, steady(5))
    (tmp_path / "odd.json").write_text(content)
    for words in ([folder, tmp_path / "odd.json"], [tmp_path / "odd.json"]):
        assert explain(list(map(str, words))) == 2
        assert said in capsys.readouterr().err


def test_weighted_percentiles_are_those_of_each_value_repeated() -> None:
    samples = Samples(np.array([3.0, 1.0, 2.0]), np.array([2.0, 5.0, 3.0]))
    repeated = np.repeat(samples.values, samples.weights.astype(int))
    for share in (10.0, 50.0, 55.0, 90.0, 99.0):
        expected = np.percentile(repeated, share, method="inverted_cdf")
        assert percentile(samples, share) == expected


def test_aiperfs_file_has_its_own_definitions(tmp_path: Path) -> None:
    folder = write_run(tmp_path, late_and_failed())
    assert export([str(folder), "--to", "aiperf"]) == 0
    found = json.loads((folder / "aiperf.json").read_text())
    assert found["time_to_first_token"]["count"] == 2
    assert found["inter_token_latency"]["avg"] == pytest.approx(150.0)
    assert found["inter_chunk_latency"]["sum"] == pytest.approx(500.0)
    assert found["output_token_throughput_per_user"]["avg"] == pytest.approx((5 + 10) / 2)
    assert (found["request_count"]["avg"], found["error_request_count"]["avg"]) == (2, 1)
    assert found["benchmark_duration"]["avg"] == pytest.approx(3.25)
    assert (found["simulated"], found["schema_version"]) == (True, "1.4")
