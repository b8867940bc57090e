"""One offline vLLM engine, stock or with AQUA's plug-in, in a process of its own.

`python aqua_offline.py JOB.json` prints a line of JSON at the end. The job: model directory,
requests as (arrival step, prompt tokens, output tokens), steps at which a paged one is aborted, or
all KV is declared void.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
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


def engine(job: dict[str, Any]) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    words = dict(job["engine"])
    if job["aqua"]:
        words |= AQUA
        extra = {"slice_iterations": job["slice_iterations"]}
        transfer = AQUA["kv_transfer_config"]
        assert isinstance(transfer, dict)
        words["kv_transfer_config"] = {
            **transfer, **job.get("transfer", {}), "kv_connector_extra_config": extra
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
        self._scheduler = scheduler
        self._schedule, scheduler.schedule = scheduler.schedule, self.schedule
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


def main(job: dict[str, Any]) -> dict[str, Any]:
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import SamplingParams

    subject = engine(job)
    scheduler = subject.engine_core.engine_core.scheduler
    watched = Watched(scheduler)
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
        for output in subject.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
            first.setdefault(output.request_id, step)
        step += 1
        assert step < 5000
    found: dict[str, Any] = {"tokens": tokens, "first": first, "aborted": aborted}
    found |= {"computed": watched.computed, "paged": watched.paged, "steps": step}
    if job["aqua"]:
        connector = scheduler.connector
        for name in ("num_out", "num_in", "blocks_out", "blocks_in"):
            found[name] = getattr(connector, name)
        # The last request's end reaches the worker with the next iteration, which does not come.
        found["left"] = len(connector._tokens)
        found["free_blocks"] = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        found["module"] = sys.modules[type(scheduler).__module__].__file__
    return found


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
