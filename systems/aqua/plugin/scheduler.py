"""vLLM's scheduler with AQUA's choice of the requests on the device (section 7).

`scheduler_cls=systems.aqua.plugin.scheduler.AquaScheduler`, with `AquaConnector` as KV connector.
Before each of vLLM's iterations the fair scheduler's slice takes effect. Running requests that are
not its members are preempted, and their KV is saved. Waiting members are put first. Other waiting
requests are held back. vLLM then makes the batch as always, from members only.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import vllm
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from systems.aqua.fair_scheduler import Since, choose, due
from systems.aqua.paging import falls_back
from systems.aqua.plugin.connector import AquaConnector
from systems.aqua.prompt import Limits, Prompt, Slice
from systems.aqua.service_order import ServiceOrder

VERSION = "0.32.0"
READY = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


@dataclass(slots=True)
class Aside:
    """Requests that are hidden from vLLM in an iteration."""

    waiting: list[Request]
    running: list[Request]


class AquaScheduler(Scheduler):
    """vLLM's scheduler with time slices. k of section 7 is `slice_iterations` of the connector's
    extra configuration. Raises ValueError for settings that it cannot serve exactly."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._check()
        assert isinstance(self.connector, AquaConnector)
        # A slice has room for all of its members and their growth: vLLM need not wait for room for
        # a whole prompt, nor reserve room for running requests.
        self.scheduler_reserve_full_isl = False
        self._limits = Limits(
            batch_tokens=self.max_num_scheduled_tokens,
            slice_iterations=self.connector.settings.slice_iterations,
            # vLLM keeps one block; it has checked that the others hold max_model_len tokens.
            num_blocks=self.kv_cache_config.num_blocks - 1,
            block_tokens=self.block_size,
            max_prompts=self.max_num_active_reqs,
        )
        self._slice = Slice((), (), fair=False)
        self._iterations = 0
        self._arrivals: dict[str, int] = {}
        self._num_arrived = 0
        self._prefilling: set[Hashable] = set()

    def _check(self) -> None:
        """Raises ValueError for what this scheduler cannot serve exactly."""
        config, parallel = self.vllm_config, self.vllm_config.parallel_config
        refused = {
            f"vLLM {vllm.__version__}; valid: {VERSION}": not vllm.__version__.startswith(VERSION),
            "a KV connector other than AquaConnector": not isinstance(
                self.connector, AquaConnector
            ),
            "async_scheduling=True; valid: False": self.scheduler_config.async_scheduling,
            "speculative decoding": config.speculative_config is not None,
            "enable_chunked_prefill=False": not self.scheduler_config.enable_chunked_prefill,
            "a scheduling policy other than fcfs": self.scheduler_config.policy != "fcfs",
            "a watermark": self.kv_cache_manager.watermark_blocks > 0,
            "a model whose KV blocks are zeroed": self.needs_kv_cache_zeroing,
            "pipeline or context parallelism": parallel.world_size != parallel.tensor_parallel_size
            or parallel.decode_context_parallel_size != 1,
            "a model with several kinds of KV": len(self.kv_cache_config.kv_cache_groups) != 1,
        }
        for what, found in refused.items():
            if found:
                raise ValueError(f"AquaScheduler does not run with {what}")

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        prompts = self._prompts()
        if not prompts or self._pause_state != PauseState.UNPAUSED:
            return super().schedule(throttle_prefills)
        self._renew(prompts)
        aside = self._put_aside(prompts)
        try:
            return super().schedule(throttle_prefills)
        finally:
            self.running.extend(aside.running)
            for request in aside.waiting:
                self.waiting.add_request(request)

    def _prompts(self) -> dict[Hashable, Prompt]:
        """Every request that could run now, as the fair scheduler sees it."""
        assert isinstance(self.connector, AquaConnector)
        found: dict[Hashable, Prompt] = {}
        for name, request in self.requests.items():
            running = request.status == RequestStatus.RUNNING
            if not running and request.status not in READY:
                continue
            if name not in self._arrivals:
                self._arrivals[name] = self._num_arrived
                self._num_arrived += 1
            computed = request.num_computed_tokens if running else self.connector.saved(name)
            output = min(request.max_tokens, self.max_model_len - request.num_prompt_tokens)
            found[name] = Prompt(
                request_id=name,
                arrival=self._arrivals[name],
                known_tokens=request.num_tokens,
                computed_tokens=computed,
                generated_tokens=request.num_output_tokens,
                remaining_tokens=max(1, output - request.num_output_tokens),
                resident=running,
            )
        return found

    def _renew(self, prompts: dict[Hashable, Prompt]) -> None:
        """Chooses a new slice if it is due, and counts this iteration."""
        connector = self.connector
        assert isinstance(connector, AquaConnector)
        gone = [name for name in self._arrivals if name not in self.requests]
        for name in gone:
            del self._arrivals[name]
        members = self._slice.members
        since = Since(
            iterations=self._iterations,
            completed=bool(gone),
            prefilled=any(name in prompts and prompts[name].decoding for name in self._prefilling),
            arrived=any(name not in members for name in prompts),
        )
        order = ServiceOrder(self._limits, prompts.values())
        if due(since, self._slice, order):
            fcfs = falls_back(connector.in_dram(), connector.settings.fcfs_when_in_dram)
            self._slice = choose(order, fcfs=fcfs)
            self._iterations = 0
            connector.count("slices")
        self._iterations += 1
        connector.count("iterations")
        self._prefilling = {
            name for name in self._slice.members if name in prompts and not prompts[name].decoding
        }

    def _put_aside(self, prompts: dict[Hashable, Prompt]) -> Aside:
        """Preempts running requests that are not in the slice, orders its members, and hides the
        other requests."""
        members = self._slice.decodes + self._slice.prefills
        in_order = sorted((m for m in members if m in prompts), key=lambda m: m in self._prefilling)
        rank = {name: i for i, name in enumerate(in_order)}
        for request in [r for r in self.running if r.request_id not in rank]:
            self.running.remove(request)
            self._preempt_request(request, None)
        self.running.sort(key=lambda r: rank[r.request_id])
        waiting = list(self.waiting)
        ready = [r for r in waiting if r.request_id in rank]
        ready.sort(key=lambda r: rank[r.request_id])
        hidden = [r for r in waiting if r.request_id not in rank and r.status in READY]
        blocked = [r for r in waiting if r.request_id not in rank and r.status not in READY]
        self.waiting.remove_requests(waiting)
        for request in ready + blocked:
            self.waiting.add_request(request)
        wanted = sum(prompts[name].lacking_tokens for name in in_order)
        held: list[Request] = []
        if ready and wanted > self._limits.batch_tokens:
            # vLLM gives tokens to running requests first. A running prefill could leave none for a
            # waiting member that comes before it, so it stands back for this iteration.
            before = rank[ready[0].request_id]
            held = [
                r
                for r in self.running
                if r.request_id in self._prefilling and rank[r.request_id] > before
            ]
            self.running = [r for r in self.running if r not in held]
        return Aside(hidden, held)

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """A reset of running requests, e.g. for new weights, also resets paged requests."""
        return super().reset_prefix_cache(
            reset_running_requests, reset_connector or reset_running_requests
        )

    def _preempt_request(
        self, request: Request, timestamp: float | None, drop_stale_output: bool = False
    ) -> None:
        """Saves the request's KV before `super()` frees its blocks and forgets its progress. After
        a reset of the cache (`drop_stale_output`) the KV is not valid and is not saved."""
        assert isinstance(self.connector, AquaConnector)
        if request.num_computed_tokens and not drop_stale_output:
            (blocks,) = self.kv_cache_manager.get_block_ids(request.request_id)
            self.connector.page_out(request.request_id, request.num_computed_tokens, blocks)
        self.connector.count("preemptions")
        # None: now.
        super()._preempt_request(request, timestamp, drop_stale_output)  # type: ignore[arg-type]
