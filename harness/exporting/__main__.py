"""Writes a finished run in another tool's format.

    aiperf    AIPerf's profile_export_aiperf.json, by its definitions
    vllm      the result of `vllm bench serve --save-detailed`: for its plots and comparisons
    perfetto  a trace of requests and of what instances did: open it at https://ui.perfetto.dev

Each file has that tool's definitions, which differ from this harness's: docs/reading-results.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.configuration.command_line import ends_in_order, parser
from harness.exporting.aiperf import aiperf_result
from harness.exporting.perfetto import trace
from harness.exporting.vllm_bench import vllm_result
from harness.files import write_text
from harness.records.run_folder import FinishedRun

FORMATS: Mapping[str, Callable[[FinishedRun], dict[str, Any]]] = {
    "aiperf": aiperf_result, "vllm": vllm_result, "perfetto": trace,
}  # fmt: skip


@ends_in_order
def main(arguments: Sequence[str] | None = None) -> int:
    about = parser("export", __doc__)
    about.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    about.add_argument("--to", required=True, choices=FORMATS, help="see above")
    about.add_argument("--out", type=Path, metavar="FILE", help="(FORMAT.json in RUN)")
    chosen = about.parse_args(arguments)
    made = FORMATS[chosen.to](FinishedRun.load(chosen.run))
    out = chosen.out or chosen.run / f"{chosen.to}.json"
    write_text(out, json.dumps(made))
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
