"""Offline vLLM engines one after the other, stock or with AQUA's plug-in, in their own process.

`python aqua_offline.py JOBS.json` prints a line of JSON for each job, with what was found or why
the engine refused. A job: model directory, requests as (arrival step, prompt tokens, output
tokens), steps at which a paged one is aborted, all KV is declared void, a lease is asked back, or
the lender is killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # One thread: several wait for one another actively, which on a busy machine takes for ever.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
}  # fmt: skip
AQUA = {
    "scheduler_cls": "systems.aqua.plugin.scheduler.AquaScheduler",
    "kv_transfer_config": {
        "kv_connector": "AquaConnector",
        "kv_connector_module_path": "systems.aqua.plugin.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
    },
}
Job = dict[str, Any]


def engine(job: Job) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    words = dict(job["engine"])
    if job["aqua"]:
        words |= AQUA
        transfer = AQUA["kv_transfer_config"]
        assert isinstance(transfer, dict)
        words["kv_transfer_config"] = {
            **transfer, **job["transfer"], "kv_connector_extra_config": job["extra"]
        }  # fmt: skip
    arguments = EngineArgs(
        model=job["model"], dtype="float32", skip_tokenizer_init=True, enforce_eager=True,
        load_format="safetensors", enable_prefix_caching=job["prefixes"],
        disable_log_stats=True, **({"async_scheduling": False} | words),
    )  # fmt: skip
    return LLMEngine.from_engine_args(arguments)


def prompt(i: int, num_tokens: int) -> list[int]:
    """Different for each request but for its start, which all share."""
    return [3 + (7 * t + (97 * i if t >= 40 else 0)) % 1000 for t in range(num_tokens)]


class Watched:
    """Counts what a scheduler gives out and what its connector pages, from outside."""

    def __init__(self, scheduler: Any) -> None:
        self.computed: dict[str, int] = {}
        self.paged: list[tuple[int, bool]] = []  # tokens, in the prefill still
        self.counts: dict[str, float] = {}
        self._scheduler = scheduler
        self._schedule, scheduler.schedule = scheduler.schedule, self.schedule
        self._make_stats, scheduler.make_stats = scheduler.make_stats, self.make_stats
        if hasattr(scheduler.connector, "page_out"):
            connector = scheduler.connector
            self._page_out, connector.page_out = connector.page_out, self.page_out

    def schedule(self, *arguments: Any) -> Any:
        output = self._schedule(*arguments)
        for request_id, tokens in output.num_scheduled_tokens.items():
            name = request_id.partition("-")[0]
            self.computed[name] = self.computed.get(name, 0) + tokens
        return output

    def page_out(self, request_id: str, num_tokens: int, block_ids: Any) -> None:
        prompt_tokens = self._scheduler.requests[request_id].num_prompt_tokens
        self.paged.append((num_tokens, num_tokens < prompt_tokens))
        self._page_out(request_id, num_tokens, block_ids)

    def make_stats(self, *arguments: Any, **words: Any) -> Any:
        """Where scheduler's and workers' counts meet."""
        if (found := arguments[1]) is not None:
            for name, number in found.data.items():
                self.counts[name] = self.counts.get(name, 0) + number
        return self._make_stats(*arguments, **words)


class Region:
    """What a producer's memory holds after each page-out, read past the plug-in."""

    def __init__(self, worker: Any) -> None:
        self.checked = 0
        self._paged = worker._paged
        self._before, worker._paged.before = worker._paged.before, self.before

    def before(self, pages: Any) -> None:
        caches = self._paged._caches
        kv = {
            page.request_id: [
                b"".join(bytes(cache[block].flatten().numpy().tobytes()) for cache in caches)
                for block in page.block_ids
            ]
            for page in pages.out
        }
        self._before(pages)
        for page in pages.out:
            if page.slots is None:
                continue
            (slots,) = page.slots  # one rank's
            _, process, number = slots.lease.rsplit(".", 2)
            try:
                lent = Path(f"/proc/{process}/fd/{number}").read_bytes()
            except OSError:  # it was killed
                continue
            for slot, block in zip(slots.blocks, kv[page.request_id], strict=True):
                assert lent[slot * len(block) : (slot + 1) * len(block)] == block
                self.checked += 1


def reclaim(url: str) -> None:
    """Asks all leases back, as their producers."""
    with urllib.request.urlopen(f"{url}/status") as answer:
        leases = json.load(answer)["leases"]
    for name, lease in leases.items():
        body = json.dumps({"holder": lease["holder"], "keep_bytes": 0}).encode()
        asked = urllib.request.Request(
            f"{url}/leases/{name}/reclaim", body, {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(asked).close()


def kill(process: int) -> None:
    """Returns once its files are closed: on a busy machine a signal alone takes its time."""
    descriptor = os.pidfd_open(process)
    os.kill(process, signal.SIGKILL)
    ended, _, _ = select.select([descriptor], [], [], 60)
    assert ended, f"process {process} lives 60 s after SIGKILL"
    os.close(descriptor)


def alone(job: Job) -> bool:
    """Whether the worker is in this process."""
    ranks: int = job["engine"].get("tensor_parallel_size", 1)
    return ranks == 1


def serve(job: Job, subject: Any) -> dict[str, Any]:
    from vllm.distributed.kv_transfer import get_kv_transfer_group
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import SamplingParams

    scheduler = subject.engine_core.engine_core.scheduler
    watched = Watched(scheduler)
    region = Region(get_kv_transfer_group()) if job["aqua"] and alone(job) else None
    tokens: dict[str, list[int]] = {}
    first: dict[str, int] = {}
    aborted: list[str] = []
    step = 0
    while step <= max(at for at, _, _ in job["requests"]) or subject.has_unfinished_requests():
        for i, (at, num_prompt, num_output) in enumerate(job["requests"]):
            if at == step:
                sampling = SamplingParams(temperature=0, max_tokens=num_output, ignore_eos=True)
                inputs = TokensPrompt(prompt_token_ids=prompt(i, num_prompt))
                subject.add_request(str(i), inputs, sampling)
        if step in job["abort_one_paged_at"]:
            paged = next(iter(scheduler.connector._tokens)).partition("-")[0]
            subject.abort_request([paged])
            aborted.append(paged)
        if step in job["reset_at"]:
            assert scheduler.connector._tokens
            assert scheduler.reset_prefix_cache(reset_running_requests=True)
            assert not scheduler.connector._tokens
        if step == job["reclaim_at"]:
            assert scheduler.connector._slots
            reclaim(job["extra"]["coordinator"])
        if step == job["kill_lender_at"]:
            assert scheduler.connector._slots
            kill(job["lender"])
        for output in subject.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
            first.setdefault(output.request_id, step)
        step += 1
        assert step < 5000
    found: dict[str, Any] = {"tokens": tokens, "first": first, "aborted": aborted}
    found |= {"computed": watched.computed, "paged": watched.paged, "steps": step}
    if region is not None:
        found["checked"] = region.checked
    if job["aqua"]:
        for _ in range(2):  # the last request's end reaches the workers and the coordinator
            scheduler.schedule()
        found["counts"] = watched.counts
        found["left"] = len(scheduler.connector._tokens) + len(scheduler.connector._slots)
        found["free_blocks"] = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        found["module"] = sys.modules[type(scheduler).__module__].__file__
    return found


def served(job: Job) -> dict[str, Any]:
    """The engine is gone when this returns: its end would end the connector of the next one."""
    subject = engine(job)
    found = serve(job, subject)
    if not alone(job):
        subject.engine_core.shutdown()  # and with it the workers' processes
    return found


def end_of_engine() -> None:
    """The next one of this process makes its groups and its connector anew."""
    from vllm.distributed.kv_transfer.kv_transfer_state import ensure_kv_transfer_shutdown

    ensure_kv_transfer_shutdown()


def main(jobs: list[Job]) -> None:
    for job in jobs:
        try:
            found = served(job)
        except ValueError as error:
            found = {"refused": str(error)}
        print(json.dumps(found), flush=True)
        end_of_engine()


if __name__ == "__main__":
    os.environ |= ENVIRONMENT  # before vLLM is imported
    main(json.loads(Path(sys.argv[1]).read_text()))
