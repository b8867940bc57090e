"""engine=vllm: real vLLM OpenAI servers on this machine, one per instance, replayed over HTTP.

Starts them, warms them up, reads back what they settled on, and hands out their endpoints. What
they do inside is their own.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from harness.clock import Loop, WallLoop
from harness.cluster import Cluster
from harness.configuration.checkpoint import check_checkpoint
from harness.configuration.checks import one_of, positive
from harness.device.prompts import FIRST_ID
from harness.drivers import vllm_command
from harness.drivers.body import TOKEN_IDS, Bodies, completion_body
from harness.drivers.counters import counters, require_active, since
from harness.drivers.fleet import fail, running, watch
from harness.drivers.http_endpoint import HttpEndpoint, Target
from harness.drivers.io_process import input_output
from harness.drivers.replay import replaying
from harness.drivers.server import Plan, Server, fetch
from harness.engine.agents_launcher import AgentsLauncher
from harness.engine.ray_launcher import CLUSTERS, OF_A_CLUSTER, ray_launcher
from harness.engine.site import HERE, Node, Site
from harness.engine.tokens import write_tokens
from harness.engine_api import Experiment, kv_blocks_by_model
from harness.errors import RunError, UsageError
from harness.files import write_text
from harness.placement import resident_models
from harness.records.gpu_monitor import require_gpu
from harness.system import ServerPlugin

# They ask for exactly so many tokens, and for the running usage in each event: exact counts.
REQUEST_FIELDS = {
    "temperature": 0,
    "ignore_eos": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
SCHEDULER_KEYS = (  # that are read back; scheduler_cls null: vLLM's own
    "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "async_scheduling",
    "scheduler_cls",
)  # fmt: skip
JSON = {"Content-Type": "application/json"}
WARMUP_PROMPT_TOKENS = 32
WARMUP_OUTPUT_TOKENS = 8
ASK_TIMEOUT_S = 120.0  # of one question outside the run; a first answer may compile kernels


class VllmEngine:
    name = "vllm"
    has_devices = True
    devices_known = True
    scheduler_keys = vllm_command.SCHEDULER_FLAGS

    @dataclass(kw_only=True, slots=True)
    class Config:
        num_kv_blocks: int | None  # per instance; null: what fits
        block_tokens: int | None  # null: vLLM's choice, 16 on a GPU and 128 on a CPU
        gpu_memory_utilization: float  # of a GPU's memory: weights, activations and KV
        cpu_kv_cache_bytes: int  # per instance on hardware.device=cpu
        load_format: str  # of models without a path
        request_timeout_s: float  # from sending to the stream's end
        start_timeout_s: float
        extra_args: list[str]  # appended to every server's command line
        extra_env: dict[str, str]
        cluster: str = "local"  # local: servers on this host; ray: one on each node of a cluster
        token_ids: bool = False  # of answers, asked for and written to tokens.parquet

    def __init__(self, config: Config) -> None:
        positive(config, "engine", "num_kv_blocks", "block_tokens", "gpu_memory_utilization")
        positive(config, "engine", "cpu_kv_cache_bytes", "request_timeout_s", "start_timeout_s")
        one_of(config.cluster, CLUSTERS, "engine.cluster")
        self._config = config
        self._resolved: dict[str, Any] = {}

    def make_loop(self) -> Loop:
        return WallLoop()

    @contextmanager
    def start(self, experiment: Experiment) -> Iterator[Cluster]:
        loop = experiment.loop
        assert isinstance(loop, WallLoop)
        if self._config.cluster == "local":  # else nodes may have what this host has not
            require_gpu(experiment.hardware, "vllm")
        served = resident_models(experiment.placements)
        for name in served:
            check_checkpoint(experiment.models[name])
        with ExitStack() as held:
            plugin = held.enter_context(experiment.plugin()) if experiment.plugin else None
            launcher = self._launcher(held, experiment)
            plans = self._plans(experiment, served, plugin, _sites(held, experiment, launcher))
            timeout_s = self._config.start_timeout_s
            servers = held.enter_context(running(plans, timeout_s, experiment.announce))
            for server, name in zip(servers, served, strict=True):
                _warm_up(server, name)
            self._resolved = _resolved(servers, experiment, served)
            if launcher is not None:
                self._resolved |= {"nodes": launcher.about}
            fields = REQUEST_FIELDS
            if self._config.token_ids:
                fields = fields | TOKEN_IDS
                held.callback(_keep_tokens, experiment)
            body = completion_body(experiment.models, None, experiment.seed, fields)
            recorder = experiment.recorder
            bodies = Bodies(body, recorder.records.values())
            ios = held.enter_context(input_output(loop, experiment.processes))
            endpoints = [
                HttpEndpoint(server.name, [name], self._target(server, bodies), ios, loop, recorder)
                for server, name in zip(servers, served, strict=True)
            ]
            caching = _hits_are_meant(experiment)
            held.enter_context(replaying(endpoints, ios, experiment, caching_intended=caching))
            if plugin is not None:
                held.enter_context(_counted(servers, plugin, self._resolved, experiment))
            mortal = Mortal(endpoints, experiment)
            watch(servers, loop, mortal.died)
            victims = [s.victim(loop, partial(mortal.names.add, s.name)) for s in servers]
            cluster = experiment.cluster(endpoints=endpoints, victims=victims)
            if launcher is not None:
                cluster.hosts = launcher.hosts
                for victim in victims:
                    victim.expect()  # its node may die, which is the system's to deal with
            yield cluster

    def resolved(self) -> Mapping[str, Any]:
        return self._resolved

    def _launcher(self, stack: ExitStack, experiment: Experiment) -> AgentsLauncher | None:
        """Of a cluster, with an agent on each of its nodes; None: servers are this host's."""
        hardware = experiment.hardware
        if self._config.cluster == "local":
            if hardware.nodes is not None:
                raise UsageError(OF_A_CLUSTER)
            return None
        if experiment.plugin is not None:
            raise UsageError("engine.cluster=ray with a plug-in of vLLM's; valid: local")
        widths = {len(placement.devices) for placement in experiment.placements}
        if widths != {hardware.devices_per_node}:
            wide = " and ".join(map(str, sorted(widths)))
            raise UsageError(
                "engine=vllm with engine.cluster=ray starts one server on each node, with all its "
                f"devices: hardware.devices_per_node={hardware.devices_per_node} must be the tp of "
                f"every model, here {wide}"
            )
        gpus = 0 if hardware.device == "cpu" else hardware.devices_per_node
        return ray_launcher(stack, hardware.num_nodes, hardware.nodes, gpus)

    def _plans(
        self,
        experiment: Experiment,
        served: list[str],
        plugin: ServerPlugin | None,
        sites: Sequence[Site],
    ) -> list[Plan]:
        specs = [experiment.models[name] for name in served]
        config, run_dir = self._config, experiment.run_dir.resolve()
        logs = run_dir / "logs"
        logs.mkdir(exist_ok=True)
        more = [
            *vllm_command.scheduler_flags(plugin.scheduler if plugin else experiment.scheduler),
            *(plugin.arguments if plugin else ()),
            *self._memory_flags(experiment.hardware.device == "cpu"),
            *vllm_command.flag("enable_prompt_tokens_details", True),  # usage has cached_tokens
            *config.extra_args,
        ]
        beside = plugin.gpus_beside if plugin else 0
        # A node's cores are all its server's, and so are the GPUs that Ray shows its agent.
        places: list[dict[str, str]] = [{}] * len(specs)
        if config.cluster == "local":
            tp = max(s.tp for s in specs)
            places = vllm_command.placements(len(specs), tp, os.environ, beside)
        plans = []
        each = zip(specs, served, places, sites, strict=True)
        for i, (spec, name, place, site) in enumerate(each):
            model = vllm_command.model_flags(spec, name, run_dir / "models", config.load_format)
            plans.append(
                Plan(
                    name=f"vllm-{i}",
                    command=partial(vllm_command.server_command, model_flags=model, more=more),
                    env={
                        **vllm_command.ENVIRONMENT,
                        **(vllm_command.python_path(plugin.python_path) if plugin else {}),
                        **place,
                        **config.extra_env,
                    },
                    log_path=logs / f"vllm-{i}.log",
                    site=site,
                )
            )
        return plans

    def _memory_flags(self, on_cpu: bool) -> list[str]:
        config, flag = self._config, vllm_command.flag
        flags = flag("block_size", config.block_tokens)
        flags += flag("num_gpu_blocks_override", config.num_kv_blocks)
        if on_cpu:  # vLLM's own measure, a share of all memory, fails where others use some
            return flags + flag("kv_cache_memory_bytes", config.cpu_kv_cache_bytes)
        return flags + flag("gpu_memory_utilization", config.gpu_memory_utilization)

    def _target(self, server: Server, bodies: Bodies) -> Target:
        return Target(
            root=server.url,
            url=f"{server.url}/v1/completions",
            headers=JSON,
            bodies=bodies,
            timeout_s=self._config.request_timeout_s,
            allow_early_end=False,
            keep=self._config.token_ids,
        )


def _sites(stack: ExitStack, experiment: Experiment, launcher: AgentsLauncher | None) -> list[Site]:
    """Where each server runs."""
    if launcher is None:
        return [HERE] * len(experiment.placements)
    starts = [placement.devices.start for placement in experiment.placements]
    per_node = experiment.hardware.devices_per_node
    return [Node(stack, launcher, start // per_node) for start in starts]


def _keep_tokens(experiment: Experiment) -> None:
    """Also of answers that broke off, as engine=torch does."""
    requests = [record.request for record in experiment.recorder.records.values()]
    answers = {r.request_id: r.answer for r in requests if isinstance(r.answer, list)}
    write_tokens(experiment.run_dir / "tokens.parquet", answers)


class Mortal:
    """`names`: the servers for which faults are planned. The death of another ends the run."""

    def __init__(self, endpoints: Sequence[HttpEndpoint], experiment: Experiment) -> None:
        self.names = set[str]()
        self._endpoints, self._experiment = endpoints, experiment

    def died(self, server: Server) -> None:
        if server.name not in self.names:
            fail(server)
        now_s = self._experiment.loop.now
        self._experiment.recorder.event("lost", server.name, now_s, now_s, why=server.why())
        for endpoint in self._endpoints:
            endpoint.lost = endpoint.lost or endpoint.name == server.name


@contextmanager
def _counted(
    servers: list[Server], plugin: ServerPlugin, resolved: Mapping[str, Any], experiment: Experiment
) -> Iterator[None]:
    """Raises RunError before anything is served where a server does not schedule by `plugin`; what
    the plug-in counted meanwhile is an event of each server."""
    before = []
    for server in servers:
        found = counters(server.url, plugin.counters, {})
        named = resolved["servers"][server.name]["scheduler_cls"]
        require_active(plugin, server.name, named, found)
        before.append(found)
    yield
    for server, then in zip(servers, before, strict=True):
        grown = since(counters(server.url, plugin.counters, {}), then)
        now_s = experiment.loop.now
        experiment.recorder.event("server_paging", server.name, 0.0, now_s, **grown)


def _hits_are_meant(experiment: Experiment) -> bool:
    """Whether prompts share something that the servers are to find: other hits are a leak."""
    requests = [record.request for record in experiment.recorder.records.values()]
    sharing = any(r.prompt is not None or r.shared is not None for r in requests)
    return sharing and bool(experiment.scheduler.get("enable_prefix_caching", True))


def _warm_up(server: Server, served_name: str) -> None:
    """One answer before the clock starts: it pays for lazy set-up, and proves that one comes."""
    body = {
        "model": served_name,
        "prompt": list(range(FIRST_ID, FIRST_ID + WARMUP_PROMPT_TOKENS)),
        "max_tokens": WARMUP_OUTPUT_TOKENS,
        "ignore_eos": True,
    }
    tokens = _ask(server, "/v1/completions", body)["usage"]["completion_tokens"]
    if tokens != WARMUP_OUTPUT_TOKENS:
        raise RunError(
            f"{server.name} answered the warm-up request with {tokens} tokens instead of "
            f"{WARMUP_OUTPUT_TOKENS}"
        )


def _resolved(servers: list[Server], experiment: Experiment, served: list[str]) -> dict[str, Any]:
    """What each server settled on, from its own account; the whole of it beside its log."""
    found: dict[str, Any] = {}
    devices: list[str] = []
    for server, name in zip(servers, served, strict=True):
        info = _ask(server, "/server_info?config_format=json")
        write_text(server.log_path.with_suffix(".config.json"), json.dumps(info, indent=2))
        config = info["vllm_config"]
        # Which of the machine's GPUs it has, a server does not tell.
        devices += [" or ".join(sorted(device_names(info)))] * experiment.models[name].tp
        scheduler, cache = config["scheduler_config"], config["cache_config"]
        found[server.name] = {
            "model": name,
            "num_kv_blocks": cache["num_gpu_blocks"],
            "block_tokens": cache["block_size"],
            **{key: scheduler[key] for key in SCHEDULER_KEYS},
            "enable_prefix_caching": cache["enable_prefix_caching"],
            "max_model_len": config["model_config"]["max_model_len"],
            "dtype": config["model_config"]["dtype"].removeprefix("torch."),
            "device": config["device_config"]["device"],
            "start_s": server.ready_s,
        }
    return {
        "vllm_version": _ask(servers[0], "/version")["version"],
        "num_instances": len(servers),
        "block_tokens": next(iter(found.values()))["block_tokens"],
        "num_kv_blocks": kv_blocks_by_model(
            (experiment.models[name].name, one["num_kv_blocks"])
            for name, one in zip(served, found.values(), strict=True)
        ),
        "devices": devices,  # one of each rank of each server
        "servers": found,
    }


def device_names(info: Mapping[str, Any]) -> set[str]:
    """The devices in a /server_info answer: "cpu", or the models of the machine's GPUs, as
    {"NVIDIA H200"}."""
    device = info["vllm_config"]["device_config"]["device"]
    gpus = info["system_env"]["nvidia_gpu_models"] or ""  # of nvidia-smi, whose lines these are
    names = set(re.findall(r"^GPU \d+: (.+?)\s*$", gpus, re.MULTILINE))
    return names if device == "cuda" and names else {device}


def _ask(server: Server, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """A JSON answer, to a GET or, with a body, a POST."""
    data = None if body is None else json.dumps(body).encode()
    try:
        return json.loads(fetch(server.url + path, ASK_TIMEOUT_S, JSON, data))
    except OSError as error:
        said = error.read().decode() if isinstance(error, urllib.error.HTTPError) else ""
        raise RunError(
            f"{server.name} did not answer {path}: {error} {said[:200]}; its log is "
            f"{server.log_path}"
        ) from error
