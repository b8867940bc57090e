"""Writes a finished run in another tool's format.

    vllm            the result of `vllm bench serve --save-detailed`, for its plots and comparisons
    aiperf          AIPerf's profile_export_aiperf.json
    aiperf-records  AIPerf's profile_export.jsonl, a line for each request
    guidellm        GuideLLM's benchmarks.json
    inference-perf  inference-perf's summary_lifecycle_metrics.json
    inference-perf-requests  its per_request_lifecycle_metrics.json, with every token's time
    llm-d           llm-d's benchmark report 0.2.1
    perfetto        a trace of requests and of what instances did, for https://ui.perfetto.dev

Each file has that tool's definitions, which differ from this harness's: docs/measurement.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.configuration.command_line import ends_in_order, parser
from harness.exporting.aiperf import aiperf_records, aiperf_result
from harness.exporting.guidellm import guidellm_result
from harness.exporting.inference_perf import benchmark_report, per_request, summary
from harness.exporting.perfetto import trace
from harness.exporting.vllm_bench import vllm_result
from harness.files import write_text
from harness.records.run_folder import FinishedRun

FORMATS: Mapping[str, Callable[[FinishedRun], Any]] = {
    "vllm": vllm_result, "aiperf": aiperf_result, "aiperf-records": aiperf_records,
    "guidellm": guidellm_result, "inference-perf": summary,
    "inference-perf-requests": per_request, "llm-d": benchmark_report, "perfetto": trace,
}  # fmt: skip
LINES = ("aiperf-records",)  # JSON objects, one a line


@ends_in_order
def main(arguments: Sequence[str] | None = None) -> int:
    about = parser("export", __doc__)
    about.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    about.add_argument("--to", required=True, choices=FORMATS, help="see above")
    about.add_argument("--out", type=Path, metavar="FILE", help="(FORMAT.json, or .jsonl, in RUN)")
    chosen = about.parse_args(arguments)
    made = FORMATS[chosen.to](FinishedRun.load(chosen.run))
    lines = chosen.to in LINES
    out = chosen.out or chosen.run / f"{chosen.to}.{'jsonl' if lines else 'json'}"
    text = "".join(json.dumps(one) + "\n" for one in made) if lines else json.dumps(made)
    write_text(out, text)
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
