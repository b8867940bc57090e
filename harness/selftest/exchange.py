"""Conformance test of the exchange with other tools: a run that is exported and imported again."""

from __future__ import annotations

from math import isclose

from harness.files import read_json
from harness.records.run_folder import FinishedRun
from harness.selftest.bench import Bench, Found, conformance, found
from harness.selftest.script import Play, Script

EXACT = 1e-9  # relative
SAME = {  # a mean in vLLM's file (ms), and ours of the run, and of what is imported of the file
    "ttft": ("ttft_sent_anchored_s.mean", "ttft_s.mean"),
    "tpot": ("tpot_s.mean", "tpot_s.mean"),
    "itl": ("itl_chunk_s.mean", "itl_chunk_s.mean"),
    "e2el": ("e2e_sent_anchored_s.mean", "e2e_s.mean"),
}


@conformance(15, "exchange")
def exported(bench: Bench) -> Found:
    """`export --to vllm`, and `import` of that file: its means, those of the run and those of what
    was imported are equal within 1e-9, and the failed request failed."""
    models = {"m": Script(ttft_s=0.05, gap_s=0.01), "failed": Script(status=500)}
    rows = [(i * 0.05, "failed" if i == 7 else "m", 8, 6 + i % 5) for i in range(20)]
    run, _ = bench.served(Play(models=models), rows)
    out, folder = bench.new_folder().with_suffix(".json"), bench.new_folder()
    bench.command("export", str(run.path), "--to", "vllm", "--out", str(out))
    bench.command("import", str(out), "--out", str(folder))
    file, again = read_json(out), FinishedRun.load(folder)
    means = {
        name: (1e-3 * file[f"mean_{name}_ms"], run.number(ours), again.number(theirs))
        for name, (ours, theirs) in SAME.items()
    }
    counts = [(one["num_completed"], one["num_failed"]) for one in (run.summary, again.summary)]
    return found(
        f"{len(means)} means of 19 completed requests, by three ways",
        {
            **{
                f"{name} of the file and of the import is ours": isclose(told, ours, rel_tol=EXACT)
                and isclose(back, ours, rel_tol=EXACT)
                for name, (told, ours, back) in means.items()
            },
            "19 completed and one failed": [(file["completed"], file["failed"]), *counts]
            == [(19, 1)] * 3,
        },
    )
