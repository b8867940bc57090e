"""From a composed configuration to an experiment whose every part has been built and checked.

Whatever a user can get wrong is found here, and told in one sentence. No file is written and no
device touched, except where load_share has this machine's speed measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from harness.configuration.checkpoint import check_checkpoint
from harness.configuration.checks import at_least, require
from harness.configuration.config import build, class_of, settings, typed
from harness.configuration.credentials import without_credentials
from harness.configuration.options import GROUPS, known_groups, known_keys, plain
from harness.cost.hardware import Hardware
from harness.device.prompts import require_in_vocabulary
from harness.engine_api import Engine
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.records.manifest import hash_of
from harness.records.metrics import MetricsConfig, check_objective
from harness.records.slo import Slo
from harness.records.sources import Identity, sources
from harness.running import own_pace
from harness.running.context_limit import fit_context, models_of_schedule
from harness.running.faults import Faults
from harness.running.tracking import Tracker
from harness.schedule import Schedule

# Keys that say how a run is shown or where its data lies, not what is run.
LIVE = "live"  # progress: a dashboard
PRESENTATION = (
    "tracking", "progress", "again", "strict", "objective", "data", "figure", "runs_dir",
)  # fmt: skip


@dataclass(kw_only=True, slots=True)
class Options:
    """The keys of conf/config.yaml that belong to no group."""

    seed: int
    fit_context: str
    figure: str | None  # module.function that draws a finished run's folder; null: nothing does
    progress: bool | str  # true, false or live
    again: bool
    strict: bool
    objective: str | None
    runs_dir: str
    # to_rate_per_s is so much of what this machine decodes; None: it is what the workload says
    load_share: float | None = None
    repeat: int | None = None  # number of this run among repeats of one; None: it is no repeat


@dataclass(kw_only=True, slots=True)
class ClientConfig:
    """How requests are sent: the values of `client`."""

    drain_s: float  # how long after the last arrival unfinished requests are waited for
    concurrency: int | None = None  # closed loop: so many requests in flight; None: open loop
    processes: int | None = None  # that send and read over HTTP; None: a thread of the run's own

    def __post_init__(self) -> None:
        at_least(self, 0, "", "drain_s")
        at_least(self, 1, "", "concurrency", "processes")


@dataclass(kw_only=True, slots=True)
class ModelSet:
    specs: dict[str, dict[str, Any]]  # a ModelSpec's values by the model's name in the model set
    cycle: list[str]  # names in `specs`, in the order in which a schedule's models get them
    shared_checkpoints: bool  # models of one spec have the same weights
    mix: dict[str, Any]  # workload.models unless the workload says otherwise, which checks it


KEYS = (*GROUPS, *(field.name for field in fields(Options)))


@dataclass(slots=True)
class Prepared:
    config: dict[str, Any]  # resolved, as plain data; URLs without credentials
    system: Any  # a class: built later, when there is a cluster
    system_config: Any
    options: Options
    schedule: Schedule
    models: dict[str, ModelSpec]
    hardware: Hardware
    engine: Engine
    slo: Slo
    metrics: MetricsConfig
    tracker: Tracker
    client: ClientConfig
    faults: Faults
    draw: Callable[[Path], Path | None]

    def identity(self) -> Identity:
        """Equal for two commands that run the same code with the same values on the same schedule;
        under another SLO but for `config_hash`."""
        what = {key: value for key, value in self.config.items() if key not in PRESENTATION}
        what["schedule"] = self.schedule.sha256()
        limits = {"ttft_s": self.slo.ttft_s, "tbt_s": self.slo.tbt_s}
        served = {key: value for key, value in what.items() if key != "slo"}
        return Identity(hash_of(served), sources(what), hash_of(what | {"limits": limits}))


def prepare(composed: DictConfig) -> Prepared:
    """Raises UsageError for everything that can be found wrong without a device. Uses one where
    load_share asks how fast it is."""
    known_keys(composed, KEYS)
    known_groups(composed)
    config = plain(composed)
    scalars = {key: value for key, value in config.items() if key not in GROUPS}
    options = typed(scalars, Options, "config")
    known = isinstance(options.progress, bool) or options.progress == LIVE
    require(known, f"progress={options.progress} is unknown; valid: true, false, {LIVE}")
    if options.objective is not None:
        check_objective(options.objective)
    hardware = typed(config["hardware"], Hardware, "hardware")
    data = build(config["data"], "data")
    client = typed(config["client"], ClientConfig, "client")
    require_arrivals_matter(client, config["workload"])
    specs, chosen = model_set(config)
    schedule = build(config["workload"], "workload", data=data, seed=options.seed).schedule()
    if options.load_share is not None and asks_for_rate(config["workload"], options.load_share):
        told = follow_this_machine(config, options, schedule, next(iter(specs.values())))
        schedule = build(config["workload"], "workload", data=data, seed=options.seed).schedule()
        schedule.provenance.steps.append(told)
    require(
        schedule.sessions is None or client.concurrency is None,
        f"client.concurrency={client.concurrency}: a session sends its next turn after the answer "
        "before; leave it at null, and say how many sessions begin with workload.rate_per_s",
    )
    shared = chosen.shared_checkpoints
    models = models_of_schedule(schedule, specs, chosen.cycle, shared_checkpoints=shared)
    for spec in models.values():  # simulated too: a run says whose checkpoint it served
        check_checkpoint(spec)
    schedule = fit_context(schedule, models, options.fit_context)
    slo: Slo = build(config["slo"], "slo")
    slo.require_models(models)
    engine = build(config["engine"], "engine")
    require(
        options.repeat is None or engine.name != "sim",
        "engine=sim repeats exactly, so repeat=N would tell nothing: sweep seeds instead, with "
        "-m seed=range(0,N)",
    )
    waits = client.concurrency is not None or schedule.sessions is not None
    require(
        client.processes is None or (engine.name in ("openai", "vllm") and not waits),
        f"client.processes={client.processes} is for engine=openai or vllm in an open loop: stamps "
        "come in batches, which what waits for an answer (client.concurrency, sessions) cannot use",
    )
    if schedule.prompts and engine.name in ("torch", "vllm"):  # a simulation takes the lengths
        require_in_vocabulary(schedule.requests(), models)
    system = class_of(config["system"], "system")
    if engine.name == "vllm":
        system = getattr(system, "in_vllm", system)
    return Prepared(
        config=without_credentials(config),
        system=system, system_config=settings(config["system"], system, "system"),
        options=options, schedule=schedule, models=models, hardware=hardware, engine=engine,
        slo=slo, metrics=typed(config["metrics"], MetricsConfig, "metrics"),
        tracker=build(config["tracking"], "tracking", announce=announce), client=client,
        faults=typed(config["faults"], Faults, "faults"), draw=figure(options.figure),
    )  # fmt: skip


def asks_for_rate(workload: Mapping[str, Any], share: float) -> bool:
    """Whether `workload` gives no rate of its own. UsageError where it has no rate at all."""
    told = f"load_share={share:g} sets workload.scale.to_rate_per_s, which {workload['_target_']} "
    require("to_rate_per_s" in workload.get("scale", {}), f"{told}has not: leave load_share out")
    return workload["scale"]["to_rate_per_s"] is None


def follow_this_machine(
    config: dict[str, Any], options: Options, schedule: Schedule, spec: ModelSpec
) -> str:
    """Sets the rate of `config` by options.load_share, and tells of it; `schedule`: at any rate."""
    share = options.load_share or 0.0
    require(0 < share <= 1, f"load_share={share:g} must be above 0 and at most 1")
    runs = Path(options.runs_dir)
    tokens_per_s = own_pace.decoded_per_s(config["engine"], spec, runs, announce)
    rate = own_pace.rate_per_s(share, tokens_per_s, schedule)
    config["workload"]["scale"]["to_rate_per_s"] = rate
    told = (
        f"{rate:g} requests/s: {share:g} of the {tokens_per_s:,.0f} tokens/s that one instance "
        "decodes on this machine"
    )
    announce(f"{told}; workload.scale.to_rate_per_s=N is another rate")
    return told


def require_arrivals_matter(client: ClientConfig, workload: Mapping[str, Any]) -> None:
    """Raises UsageError for a closed loop with a rate: a sweep of it would repeat one run."""
    rate = workload.get("scale", {}).get("rate", 1.0)
    require(
        client.concurrency is None or rate == 1.0,
        f"client.concurrency={client.concurrency} sends a request when another has ended, and "
        f"workload.scale.rate={rate} would change no arrival: leave it at 1, or set "
        "client.concurrency=null",
    )


def model_set(config: Mapping[str, Any]) -> tuple[dict[str, ModelSpec], ModelSet]:
    """The models on offer by their names in the model set, and the model set."""
    typed(config["model"], ModelSpec, "model")  # wrong even where the model set does not use it
    chosen = typed(config["model_set"], ModelSet, "model_set")
    specs = {
        name: typed(spec, ModelSpec, f"model_set.specs.{name}")
        for name, spec in chosen.specs.items()
    }
    valid = ", ".join(specs)
    require(chosen.cycle, f"model_set.cycle=[] names no model; valid: {valid}")
    for name in chosen.cycle:
        has = f"model_set.cycle names {name}, which model_set.specs has not: {valid}"
        require(name in specs, has)
    return specs, chosen


def figure(name: str | None) -> Callable[[Path], Path | None]:
    """The function of plots/ that draws a finished run's folder: a configuration must not be able
    to call any other."""
    if name is None:
        return lambda run_dir: None
    module, _, function = name.rpartition(".")
    require(
        module.startswith("plots."),
        f"figure={name} names no function of plots/; e.g. plots.report.draw, or null for none",
    )
    try:
        found: Callable[[Path], Path] = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"figure={name} names no function: {error}") from error
    own = getattr(found, "__module__", None) == module and callable(found)
    require(own, f"figure={name} names no function that is defined in {module}")
    return found


def announce(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
