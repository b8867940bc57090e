"""Conformance tests of how answers are counted: chunks, early ends, errors, caches, goodput; and in
the exchange with other tools, of a run that is exported and imported again."""

from __future__ import annotations

from math import isclose, isfinite
from typing import Any

import numpy as np

from harness.files import read_json
from harness.records.run_folder import FinishedRun
from harness.records.token_log import TokenLog
from harness.selftest.bench import Bench, Found, conformance, found
from harness.selftest.script import Play, Script

CHUNKED, IN_CHUNK = 40, 4  # tokens of an answer, and of each of its chunks
OFF_S = 0.002  # of a mean TPOT
EXACT = 1e-6  # relative
ROUND_S = 0.1  # of a duration of seconds
REAL = "ttft_s", "tpot_s", "tbt_s", "e2e_s", "itl_chunk_s", "tpot_incl_first_s"
ALIKE = 1e-9  # relative, and seconds: AIPerf has whole nanoseconds
SENT = {  # a mean in vLLM's file (ms), and ours of the run, and of what is imported of the file
    "ttft": ("ttft_sent_anchored_s.mean", "ttft_s.mean"),
    "tpot": ("tpot_s.mean", "tpot_s.mean"),
    "itl": ("itl_chunk_s.mean", "itl_chunk_s.mean"),
    "e2el": ("e2e_sent_anchored_s.mean", "e2e_s.mean"),
}
LLM_D = {  # a mean in llm-d's report (s), and ours of the run
    "time_to_first_token": "ttft_sent_anchored_s.mean", "time_per_output_token": "tpot_s.mean",
    "inter_token_latency": "tbt_s.mean", "request_latency": "e2e_sent_anchored_s.mean",
}  # fmt: skip
DUE = {
    name: (f"{name}_s.mean",) * 2 for name in ("ttft", "tpot", "e2e")
}  # arrivals are in the file
EXCHANGED = {
    "vllm": SENT, "aiperf-records": SENT, "guidellm": DUE,
    "inference-perf-requests": DUE | {"tbt": ("tbt_s.mean",) * 2},
}  # fmt: skip


@conformance(2, "tokens in chunks", alone=True)
def chunks(bench: Bench) -> Found:
    """4 tokens in a chunk: TPOT within 2 ms of the server's; gaps between chunks 39/9 of it;
    three gaps of 0 in each chunk."""
    script = Script(ttft_s=0.1, gap_s=0.05, tokens_per_event=IN_CHUNK)
    rows = [(i * 0.2, "m", 8, CHUNKED) for i in range(5)]
    run, server = bench.served(Play(models={"m": script}), rows)
    num = CHUNKED // IN_CHUNK
    true_s = float(
        np.mean([each.writes_s[num - 1] - each.writes_s[0] for each in server.answers])
    ) / (CHUNKED - 1)
    tpot_s, chunk_s = run.number("tpot_s.mean"), run.number("itl_chunk_s.mean")
    zeros = int((TokenLog.from_table(run.requests).tbt_s() == 0).sum())
    return found(
        f"TPOT {tpot_s * 1e3:.2f} ms where the server had {true_s * 1e3:.2f}, gaps between chunks "
        f"{chunk_s / tpot_s:.3f} times that, {zeros} gaps of 0",
        {
            "TPOT is the server's within 2 ms": abs(tpot_s - true_s) <= OFF_S,
            "a gap between chunks is (n - 1) / (chunks - 1) TPOTs": isclose(
                chunk_s / tpot_s, (CHUNKED - 1) / (num - 1), rel_tol=EXACT
            ),
            "three of four tokens have a gap of 0": zeros == 5 * num * (IN_CHUNK - 1),
        },
    )


@conformance(3, "short answers")
def short_answers(bench: Bench) -> Found:
    """An early stop, one token, no token, a tool call in one event: no division by zero, and no
    TTFT among the gaps.

    Tokens of tool calls need the chat API.
    """
    models = {
        "stopped": Script(stop_at=2, gap_s=0.02),
        "one": Script(),
        "none": Script(stop_at=0),
        "tools": Script(tool_calls=True, tokens_per_event=8, ttft_s=0.05),
    }
    rows = [(i * 0.05, name, 8, 1 if name == "one" else 8) for i, name in enumerate(models)]
    run, _ = bench.served(
        Play(models=models), rows, "engine.api=chat", "engine.allow_early_end=true"
    )
    ended = {row["model"]: row for row in run.requests.to_pylist()}
    numbers = [run.summary[name].get("mean") for name in REAL]
    gaps = run.summary["itl_chunk_s"]["num_samples"]
    return found(
        f"{run.summary['num_completed']} of 4 completed, {gaps} gap between chunks",
        {
            "two tokens and a stop are complete": _has(ended["stopped"], 2),
            "an answer of one token is complete": _has(ended["one"], 1),
            "an answer of no token failed, and says so": ended["none"]["status"] == "failed"
            and "no token at all" in ended["none"]["error"],
            "a tool call in one event has 8 tokens and is noted as buffered": _has(
                ended["tools"], 8
            )
            and ended["tools"]["buffered"],
            "no TTFT counts as a gap between chunks": gaps == 1,
            "every mean is a number": all(x is not None and isfinite(x) for x in numbers),
        },
    )


@conformance(4, "failures")
def failures(bench: Bench) -> Found:
    """An HTTP 500, a reset, an error in mid-stream, a time-out: each is told, counted and in
    the denominator."""
    told = {
        "http": (Script(status=500), "HTTP 500"),
        "reset": (Script(reset_at=3, gap_s=0.02), "connection lost, after 3 of 6 tokens"),
        "error": (Script(error_at=2), "error in mid-stream after 2 of 6 tokens"),
        "hang": (Script(hang_at=1), "not finished 3 s after it was sent, with 1 of 6 tokens"),
    }
    models = {"fine": Script(), **{name: script for name, (script, _) in told.items()}}
    rows = [(i * 0.05, name, 8, 6) for i, name in enumerate([*models, "fine", "fine", "fine"])]
    limits = ("engine.request_timeout_s=3", "slo.ttft_s=60", "slo.tbt_s=60")
    run, _ = bench.served(Play(models=models), rows, *limits)
    errors = {row["model"]: row for row in run.requests.to_pylist()}
    kept, attained = run.summary, run.summary["slo_attainment"]["request"]
    return found(
        f"{kept['num_failed']} of {kept['num_requests']} failed, attainment {attained:.1%}",
        {
            **{
                f"{name}: “{said}”": said in errors[name]["error"]
                for name, (_, said) in told.items()
            },
            "4 of 8 failed": (kept["num_failed"], kept["num_requests"]) == (4, 8),
            "failed requests are in the denominator": attained == 4 / 8,
        },
    )


@conformance(9, "warm cache")
def prefix_cache(bench: Bench) -> Found:
    """The repeat of a run on one server with a prefix cache is INVALID; with engine.cold=true
    it is not."""
    rows = [(i * 0.02, "m", 64, 2) for i in range(20)]
    with bench.serving(Play(models={"m": Script()}, caches=True)) as server:
        runs = [bench.run(server, rows, *words) for words in ([], [], ["engine.cold=true"])]
    flags = ["prefix cache" in run.invalid for run in runs]
    return found(
        f"of a first run, its repeat and a cold one, these are INVALID for the cache: {flags}",
        {
            "the first run is not": not flags[0],
            "its repeat on the warm cache is INVALID": flags[1],
            "a repeat with engine.cold=true is not": not flags[2],
        },
    )


@conformance(10, "prompt lengths")
def prompt_lengths(bench: Bench) -> Found:
    """A server that counts 20 % more prompt tokens makes a run INVALID; 3 % more make a note.

    A template or another tokenizer does that.
    """
    rows = [(i * 0.02, "m", 100, 2) for i in range(20)]
    far, near = (
        bench.served(Play(models={"m": Script(prompt_tokens=num)}), rows)[0] for num in (120, 103)
    )
    noted = near.summary["verdict"].get("notes", [])
    told = next((each for each in noted if "prompt tokens" in each), "no note")
    return found(
        f"20 % more: {far.invalid or 'VALID'}; 3 % more: {told}",
        {
            "20 % more is INVALID": "prompts were not what was asked" in far.invalid,
            "3 % more is VALID with a note": "2,060 prompt tokens where 2,000" in told
            and "prompts" not in near.invalid,
        },
    )


@conformance(11, "goodput", alone=True)
def goodput(bench: Bench) -> Found:
    """Attainment and goodput equal a count by hand, with late, slow, failed, single-token and
    timed-out answers, and with the drain in the duration.

    By hand: three of seven are good. `drained` is the last to come and answers for 3 s more.
    """
    models = {
        "good": Script(ttft_s=0.05, gap_s=0.02),
        "late": Script(ttft_s=1.5, gap_s=0.02),
        "slow": Script(ttft_s=0.05, gap_s=0.5),
        "failed": Script(status=500),
        "single": Script(ttft_s=0.05),
        "lost": Script(hang_at=1),
        "drained": Script(ttft_s=0.05, gap_s=0.05),
    }
    tokens = {"single": 1, "drained": 61}
    rows = [(i * 0.1, name, 8, tokens.get(name, 5)) for i, name in enumerate(models)]
    limits = ("slo.ttft_s=0.8", "slo.tbt_s=0.2", "client.drain_s=5")
    run, server = bench.served(Play(models=models), rows, *limits)
    summary, attained = run.summary, run.summary["slo_attainment"]["request"]
    true_s = server.of("drained").writes_s[60] - server.of("good").received_s
    good, duration_s = summary["goodput_per_s"] * summary["duration_s"], summary["duration_s"]
    return found(
        f"attainment {attained:.4f}, {good:.6f} good in {duration_s:.2f} s (server: {true_s:.2f})",
        {
            "3 of 7 are good": isclose(attained, 3 / 7),
            "goodput is these 3 over the duration": isclose(good, 3.0),
            "the duration has the drain, as the server saw it": abs(duration_s - true_s) < ROUND_S,
            "the lost request timed out": summary["num_timeouts"] == 1,
        },
    )


@conformance(15, "exchange")
def exported(bench: Bench) -> Found:
    """`export` for vLLM, AIPerf, GuideLLM and inference-perf, and `import` of each file: the means
    of the run, of what was imported, in vLLM's file and in llm-d's report are equal within 1e-9,
    and the failed request failed."""
    models = {"m": Script(ttft_s=0.05, gap_s=0.01), "failed": Script(status=500)}
    rows = [(i * 0.05, "failed" if i == 7 else "m", 8, 6 + i % 5) for i in range(20)]
    run, _ = bench.served(Play(models=models), rows)
    files = {to: bench.new_folder().with_suffix(".json") for to in EXCHANGED}
    again = {}
    for to, out in files.items():
        folder = bench.new_folder()
        bench.command("export", str(run.path), "--to", to, "--out", str(out))
        bench.command("import", str(out), "--out", str(folder))
        again[to] = FinishedRun.load(folder)
    file = read_json(files["vllm"])
    pairs = {f"{name} of vLLM's file": (1e-3 * file[f"mean_{name}_ms"], run.number(ours))
             for name, (ours, _) in SENT.items()}  # fmt: skip
    report = bench.new_folder().with_suffix(".json")
    bench.command("export", str(run.path), "--to", "llm-d", "--out", str(report))
    latency = read_json(report)["results"]["request_performance"]["aggregate"]["latency"]
    pairs |= {f"{name} of llm-d's report": (latency[name]["mean"], run.number(ours))
              for name, ours in LLM_D.items()}  # fmt: skip
    pairs |= {
        f"{name} of the import of {to}": (again[to].number(theirs), run.number(ours))
        for to, same in EXCHANGED.items()
        for name, (ours, theirs) in same.items()
    }
    counts = [(one.summary["num_completed"], one.summary["num_failed"])
              for one in (run, *again.values())]  # fmt: skip
    return found(
        f"{len(pairs)} means of 19 completed requests, by {len(EXCHANGED) + 1} tools",
        {
            **{
                f"{name} is ours": isclose(theirs, ours, rel_tol=ALIKE, abs_tol=ALIKE)
                for name, (theirs, ours) in pairs.items()
            },
            "19 completed and one failed": {(file["completed"], file["failed"]), *counts}
            == {(19, 1)},
        },
    )


def _has(row: dict[str, Any], tokens: int) -> bool:
    return row["status"] == "completed" and len(row["token_times_s"]) == tokens
