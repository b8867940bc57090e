"""Conformance test of the exchange with other tools: their arithmetic on what we export."""

from __future__ import annotations

from math import isclose
from typing import Any

import numpy as np

from harness.files import read_json
from harness.selftest.bench import Bench, Floats
from harness.selftest.conformance import Conformance, Found, found
from harness.selftest.play import Play
from harness.selftest.script import Script

EXACT = 1e-9  # relative


def exported(bench: Bench) -> Found:
    models = {
        "m": Script(ttft_s=0.05, gap_s=0.01, tokens_per_event=2),
        "failed": Script(status=500),
    }
    rows = [(i * 0.05, "failed" if i == 7 else "m", 8, 6 + i % 5) for i in range(20)]
    run, _ = bench.served(Play(models=models), rows)
    out = bench.new_folder().with_suffix(".json")
    bench.command("export", str(run.path), "--to", "vllm", "--out", str(out))
    file = read_json(out)
    read = by_vllm(file)
    native = {
        "mean_ttft_ms": run.number("ttft_sent_anchored_s.mean"),
        "mean_tpot_ms": run.number("tpot_s.mean"),
        "mean_itl_ms": run.number("itl_chunk_s.mean"),
        "mean_e2el_ms": run.number("e2e_sent_anchored_s.mean"),
    }
    checks = {
        **{
            f"{name} of its arrays": isclose(file[name], read[name], rel_tol=EXACT) for name in read
        },
        **{
            f"{name} is ours": isclose(read[name], 1e3 * ours, rel_tol=EXACT)
            for name, ours in native.items()
        },
        "completed and failed": (file["completed"], file["failed"]) == (19, 1),
    }
    return found(f"{len(checks)} numbers of 19 completed requests, by two ways", checks)


def by_vllm(file: dict[str, Any]) -> dict[str, float]:
    """The statistics that `vllm bench serve` makes of its arrays: the E2E latency of a request is
    its TTFT and the gaps after it; TPOT is what follows the first token, over the tokens but one;
    percentiles interpolate; numbers are of requests without an error."""
    done = [i for i, error in enumerate(file["errors"]) if not error]
    ttft_s = np.array([file["ttfts"][i] for i in done])
    e2e_s = np.array([file["ttfts"][i] + sum(file["itls"][i]) for i in done])
    tokens = np.array([file["output_lens"][i] for i in done])
    many = tokens > 1
    values = {
        "ttft": ttft_s,
        "tpot": ((e2e_s - ttft_s) / np.maximum(tokens - 1, 1))[many],
        "itl": np.concatenate([file["itls"][i] for i in done]),
        "e2el": e2e_s,
    }
    return {key: number for name, each in values.items() for key, number in _of(name, each)}


def _of(name: str, values_s: Floats) -> list[tuple[str, float]]:
    ms = values_s * 1e3
    return [
        (f"mean_{name}_ms", float(np.mean(ms))),
        (f"median_{name}_ms", float(np.median(ms))),
        (f"std_{name}_ms", float(np.std(ms))),
        (f"p99_{name}_ms", float(np.percentile(ms, 99))),
    ]


EXCHANGE = (
    Conformance(
        15, "exchange", "`export --to vllm`: statistics that vLLM's arithmetic makes of the file's "
        "arrays equal the file's and ours within 1e-9 (there is no import to test)", exported,
    ),
)  # fmt: skip
