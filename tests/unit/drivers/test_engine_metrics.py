"""Pages of metrics of a server, each second: a table, failures that end nothing, and a picture."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pyarrow.parquet as pq
import pytest

from harness.clock import WallLoop
from harness.drivers import engine_metrics
from harness.drivers.engine_metrics import NAME, scraping
from harness.records.device_events import summarise_events
from harness.records.record import Recorder
from harness.selftest.golden_server import GoldenServer
from harness.selftest.script import Script
from plots.engine_metrics import HISTOGRAMS, draw, means

PAGE = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 2.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 3.0
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 4.0
vllm:time_to_first_token_seconds_count{model_name="m"} 4.0
vllm:time_to_first_token_seconds_sum{model_name="m"} 0.5
"""


def scraped(tmp_path: Path, *pages: str) -> Recorder:
    """A server that has each of `pages` for some scrapes."""
    loop, recorder = WallLoop(), Recorder([])
    with GoldenServer(lambda body: Script([]), ["m"]) as server:
        server.metrics = pages[0]
        target = SimpleNamespace(root=server.url.removesuffix("/v1"), headers={})
        endpoint = SimpleNamespace(name="vllm-0", target=target)
        with scraping([endpoint], loop, recorder, tmp_path):  # type: ignore[list-item]
            for page in pages:
                server.metrics = page
                time.sleep(0.3)
    return recorder


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_metrics, "INTERVAL_S", 0.02)


def test_each_sample_is_a_row_with_histograms(tmp_path: Path) -> None:
    recorder = scraped(tmp_path, PAGE)
    rows = pq.read_table(tmp_path / NAME).to_pylist()
    times = sorted({row["time_s"] for row in rows})
    assert len(times) >= 2
    first = [row for row in rows if row["time_s"] == times[0]]
    assert len(first) == 5
    bucket = [row for row in first if json.loads(row["labels"]).get("le") == "0.1"]
    assert [(row["server"], row["value"]) for row in bucket] == [("vllm-0", 3.0)]
    (event,) = recorder.events
    assert event["fields"]["num_failed"] == 0
    assert "scrapes_failed" not in summarise_events(recorder.events, 1.0)
    draw(tmp_path)
    assert (tmp_path / "engine_metrics.png").stat().st_size > 0


def test_a_histogram_has_the_mean_of_what_it_counted_since_the_page_before(tmp_path: Path) -> None:
    later = PAGE.replace('_count{model_name="m"} 4.0', '_count{model_name="m"} 6.0')
    scraped(tmp_path, PAGE, later.replace('_sum{model_name="m"} 0.5', '_sum{model_name="m"} 0.9'))
    told = pd.read_parquet(tmp_path / NAME)
    ttft, between = (means(told, name) for name in HISTOGRAMS.values())
    assert ttft["value"].tolist() == [pytest.approx(0.2)]  # 0.4 s of two requests
    assert between.empty


@pytest.mark.parametrize("odd", ["", "a{ 1\n"])
def test_a_page_that_fails_is_counted_and_no_error(tmp_path: Path, odd: str) -> None:
    recorder = scraped(tmp_path, PAGE, odd)
    told = summarise_events(recorder.events, 1.0)["scrapes_failed"]["vllm-0"]
    assert told["num_failed"] >= 1
    assert told["last_error"]
    assert (tmp_path / NAME).is_file()


def test_a_server_without_metrics_leaves_no_file(tmp_path: Path) -> None:
    assert scraped(tmp_path, "").events == []
    assert not (tmp_path / NAME).exists()
    draw(tmp_path)
    assert not (tmp_path / "engine_metrics.png").exists()
