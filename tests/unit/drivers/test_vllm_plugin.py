"""Whether a server schedules by a system's plug-in, and what the plug-in counted, off its pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.drivers.counters import parse_counters, require_active, since
from harness.errors import RunError
from harness.records.device_events import summarise_events
from harness.system import ServerPlugin

PAGE = """# HELP vllm:aqua_iterations_total AQUA: iterations.
# TYPE vllm:aqua_iterations_total counter
vllm:aqua_iterations_total{engine="0",model_name="default"} 12.0
vllm:aqua_iterations_created{engine="0",model_name="default"} 1.7e+09
vllm:aqua_preemptions_total{engine="0",model_name="default"} 3.0
vllm:aqua_paged_bytes_total{engine="0",model_name="d",purpose="page out to DRAM"} 1.0e+06
vllm:num_preemptions_total{engine="0",model_name="default"} 3.0
"""
PLUGIN = ServerPlugin(
    scheduler={"scheduler_cls": "a.Scheduler"}, arguments=[], python_path=Path(),
    counters="vllm:aqua_", proof="vllm:aqua_iterations_total",
)  # fmt: skip


def test_only_its_counters_are_read() -> None:
    assert parse_counters(PAGE, PLUGIN.counters) == {
        "iterations": 12.0, "preemptions": 3.0, "paged_bytes/page out to DRAM": 1e6,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("named", "found", "reason"),
    [
        (None, {"iterations": 1.0}, "vllm-0 schedules by its own scheduler, not a.Scheduler"),
        ("a.Scheduler", {}, "vllm-0 answered a request, and a.Scheduler counted nothing"),
        ("a.Scheduler", {"iterations": 0.0}, "counted nothing"),
    ],
)
def test_a_server_that_serves_without_it_is_an_error(
    named: str | None, found: dict[str, float], reason: str
) -> None:
    with pytest.raises(RunError, match=reason):
        require_active(PLUGIN, "vllm-0", named, found)
    require_active(PLUGIN, "vllm-0", "a.Scheduler", {"iterations": 1.0})


def test_what_was_counted_in_a_run_is_in_its_summary() -> None:
    purpose = "page out to lease"
    before = {"iterations": 5.0, "slices": 1.0, "preemptions": 0.0, "lost_blocks": 0.0}
    grown = {"pages": 2.0, "copies": 16.0, "blocks": 7.0, "bytes": 700.0, "seconds": 0.5}
    after = {"iterations": 25.0, "slices": 3.0, "preemptions": 2.0, "lost_blocks": 0.0}
    after |= {f"paged_{name}/{purpose}": value for name, value in grown.items()}
    event = {
        "kind": "server_paging", "instance": "vllm-0", "start_s": 0.0, "end_s": 9.0,
        "fields": since(after, before),
    }  # fmt: skip
    found = summarise_events([event], 9.0)
    assert found["plugin"] == {"iterations": 20, "slices": 2, "preemptions": 2, "lost_blocks": 0}
    assert found["kv_moves"] == {
        purpose: {"requests": 2, "copies": 16, "bytes": 700, "seconds": 0.5}
    }
