"""Conformance tests of whole runs: schedules, resuming, the simulator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy import stats

from harness.errors import RunError
from harness.files import read_json
from harness.records.run_folder import FinishedRun
from harness.selftest.bench import MAX_RUN_S, Bench, Floats, Found, Server, conformance, found
from harness.selftest.prompts import hashes
from harness.selftest.script import Play, Script

MIN_P = 0.01  # of a Kolmogorov-Smirnov test, for one seed: the same at every repeat
DRAWN, DRAWN_PER_S, CV = 10_000, 10.0, 2.0
DISPERSION = 0.15  # of the variance over the mean of counts in 1 s, which is 1 of Poisson's
PER_POINT, BEFORE_KILL = 200, 150  # requests of a sweep's point, and of the one that is killed
EXACT = 1e-9  # relative
QUEUED, LOAD = 20_000, 0.5
NEAR = 0.05  # of a mean over QUEUED requests of one seed


@conformance(7, "arrivals")
def arrivals(bench: Bench) -> Found:
    """Gaps of Poisson and gamma arrivals pass a Kolmogorov-Smirnov test; the number of requests
    changes no arrival."""
    rows = [(0.0, "m", 8, 2)] * DRAWN
    poisson_s = _drawn(bench, rows, "workload.arrivals.kind=poisson")
    gamma_s = _drawn(bench, rows, "workload.arrivals.kind=gamma", f"workload.arrivals.cv={CV}")
    some_s = _drawn(
        bench, rows, "workload.arrivals.kind=poisson", f"workload.num_requests={DRAWN // 2}"
    )
    mean_s, shape = 1 / DRAWN_PER_S, 1 / CV**2
    p_poisson = stats.kstest(np.diff(poisson_s), "expon", (0, mean_s)).pvalue
    p_gamma = stats.kstest(np.diff(gamma_s), "gamma", (shape, 0, mean_s / shape)).pvalue
    counts = np.bincount(poisson_s.astype(int))[:-1]
    dispersion, cv = counts.var() / counts.mean(), np.diff(gamma_s).std() * DRAWN_PER_S
    return found(
        f"KS p {p_poisson:.3f} (Poisson) and {p_gamma:.3f} (gamma), dispersion {dispersion:.3f}, "
        f"cv {cv:.3f}",
        {
            "both distributions are the asked ones": min(p_poisson, p_gamma) > MIN_P,
            "the dispersion of Poisson is 1 within 0.15": abs(dispersion - 1) < DISPERSION,
            "half the requests arrive as the first half": np.array_equal(
                some_s, poisson_s[: DRAWN // 2]
            ),
        },
    )


def _drawn(bench: Bench, rows: list[Any], *words: str) -> Floats:
    out = bench.new_folder().with_suffix(".parquet")
    trace = bench.words(None, rows)[2]
    rate = f"workload.arrivals.rate_per_s={DRAWN_PER_S}"
    bench.command("workloads", "schedule", "trace", str(out), trace, rate, *words)
    times: Floats = np.array(pq.read_table(out)["arrival_s"])
    return times


@conformance(12, "resume")
def resume(bench: Bench) -> Found:
    """A sweep that is killed (kill -9) and started again repeats no complete point, and has
    each request once; schedules and completed requests are those of an undisturbed sweep.

    A sweep over two seeds is killed in its second point, recovered, and started again.
    """
    rows = [(i * 0.01, "m", 8, 2) for i in range(PER_POINT)]
    folder = bench.new_folder()
    play = Play(models={"m": Script(ttft_s=0.02)})
    with bench.serving(play) as server:
        sweep = [*bench.words(server, rows), "-m", "seed=0,1", f"hydra.sweep.dir={folder}"]
        killed(sweep, server, PER_POINT + BEFORE_KILL)
        status = {path.parent: read_json(path)["status"] for path in folder.glob("*/manifest.json")}
        done = [path for path, said in status.items() if said == "complete"]
        begun = [path for path, said in status.items() if said == "begun"]
        if len(done) != 1 or len(begun) != 1:
            raise RunError(f"after kill -9 the two points are {sorted(status.values())}")
        again = bool(FinishedRun.load(done[0]).invalid)  # on a busy machine: it runs again
        before = (done[0] / "summary.json").read_bytes()
        bench.command("recover", str(begun[0]))
        half = pq.read_table(begun[0] / "requests.parquet")
        bench.command(*sweep)
        after = (done[0] / "summary.json").read_bytes()
    completed = half["status"].to_pylist().count("completed")
    runs = [FinishedRun.load(path) for path in (*done, *begun)]
    sent = [each.prompt for each in server.answers]
    once = [sent.count(prompt) for prompt in hashes(runs[0])]
    ids = [run.requests["request_id"].to_pylist() for run in runs]
    undisturbed = bench.new_folder()
    with bench.serving(play) as other:
        words = bench.words(other, rows)
        bench.command(*words, "-m", "seed=0,1", f"hydra.sweep.dir={undisturbed}")
    whole = [FinishedRun.load(path.parent) for path in undisturbed.glob("*/manifest.json")]
    return found(
        f"{len(sent)} requests came; {completed} were recovered of the killed point"
        + (", and the complete one was INVALID and ran again" if again else ""),
        {
            "a complete point that was VALID is as it was": again or before == after,
            "no request of it came again": set(once) == {2 if again else 1},
            "the killed point kept what was done": 0 < completed <= BEFORE_KILL + PER_POINT // 4,
            "both points have each request once": all(
                sorted(each) == list(range(PER_POINT)) for each in ids
            ),
            "all completed": all(run.summary["num_completed"] == PER_POINT for run in runs),
            "an undisturbed sweep has the same schedules and completed requests": _points(runs)
            == _points(whole),
        },
    )


def _points(runs: list[FinishedRun]) -> dict[int, Any]:
    """Of each seed the rows of the schedule, with those that completed."""
    columns = ["request_id", "model", "arrival_s", "prompt_tokens", "output_tokens", "status"]
    return {run.manifest["seeds"]["seed"]: run.requests.select(columns).to_pylist() for run in runs}


def killed(words: list[str], server: Server, at_request: int) -> None:
    """Starts `python -m harness WORDS` and kills it once the server has had `at_request` requests.
    RunError where it ends before."""
    command = [sys.executable, "-m", "harness", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        until_s = time.monotonic() + MAX_RUN_S
        try:
            while server.num_requests() < at_request:
                if process.poll() is not None or time.monotonic() > until_s:
                    raise RunError(f"a run ended, or hung, before its request {at_request}")
                time.sleep(0.01)
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)


@conformance(13, "mistyped keys")
def mistyped_keys(bench: Bench) -> Found:
    """An unknown key, and one of another engine, are refused by name: exit status 2, nothing
    written, nothing sent."""
    folder = bench.new_folder()
    wrong = {"slo.ttft=1": "ttft", "+engine.num_kv_blocks=5": "num_kv_blocks"}
    with bench.serving(Play(models={"m": Script()})) as server:
        words = [*bench.words(server, [(0.0, "m", 8, 2)]), f"hydra.run.dir={folder}"]
        told = {word: bench.command(*words, word, expect=2) for word in wrong}
    return found(
        "; ".join(told.values()),
        {
            **{f"{word} is named": wrong[word] in said for word, said in told.items()},
            "nothing was written": not folder.exists(),
            "nothing was sent": not server.answers,
        },
    )


@conformance(16, "queues")
def queues(bench: Bench) -> Found:
    """Simulated M/M/1 and M/D/1 queues have the mean time of the closed form, within 5 %, and
    satisfy Little's law within 1e-9.

    One seat: an answer's tokens are its service. M/M/1 has outputs of exponential length, each
    served alone first, which gives E[S]; M/D/1 has equal ones.
    """
    rng = np.random.default_rng(0)
    gaps, lengths = rng.exponential(1.0, QUEUED), rng.exponential(100.0, QUEUED).astype(int) + 1
    sim = ("engine=sim", "hardware=a100x1", "model=llama2-7b", "system.max_num_seqs=1",
           "model.max_position=20000")  # fmt: skip
    far = [(i * 100.0, "m", 16, int(n)) for i, n in enumerate(lengths)]
    one = [(i * 100.0, "m", 16, 100) for i in range(2)]
    off, text = {}, []
    for name, alone, sizes, factor in (("M/M/1", far, lengths, 1.0), ("M/D/1", one, [100], 0.5)):
        service_s = bench.run(None, alone, *sim, "client.drain_s=1e9").number("e2e_s.mean")
        at_s = np.cumsum(gaps) * service_s / LOAD
        size = np.resize(sizes, QUEUED)
        rows = [(float(at), "m", 16, int(n)) for at, n in zip(at_s, size, strict=True)]
        run = bench.run(None, rows, *sim, "client.drain_s=1e9")
        theory_s = service_s * (1 + factor * LOAD / (1 - LOAD))
        off[name] = run.number("e2e_s.mean") / theory_s - 1
        little = run.number("littles_law.relative_gap")
        text.append(f"{name}: {off[name]:+.1%} of the closed form, Little's gap {little:.0e}")
        off[f"{name}, Little's law"] = little / EXACT * NEAR
    return found(
        "; ".join(text), {f"{name} holds": abs(each) <= NEAR for name, each in off.items()}
    )
