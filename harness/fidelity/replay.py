"""`python -m harness fidelity replay`: simulates the loads of a table.

Each row is a load of equal requests on `num_gpus` GPUs, in instances of `tp` GPUs each. The policy
code is the same as in any run. Gaps between arrivals are exponential, scaled so that rate x
duration requests fill the duration. With `max_outstanding`, a client with so many connections sends
no more at once, and the times of a request begin when it is sent. A row that cannot be simulated
keeps its numbers empty and says why in `reason`.

`distinct_prompts` prompts are sent by turns; empty: no prompt is sent twice. With prefix caching
these prompts are found again, as vLLM's scheduler does it. A load begins with an empty cache; its
capacity is the capacity of a load in which every distinct prompt was sent before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from harness.calibrate import zoo
from harness.calibrate.tables import read_csv, write_csv
from harness.configuration.command_line import parser
from harness.configuration.config import settings
from harness.cost.hardware import Hardware
from harness.errors import UsageError
from harness.fidelity.play import Played, middle_per_s, play
from harness.request import Request
from harness.sim.config import SimConfig
from harness.sim.engine import SimEngine

FOUND = (
    "ttft_mean_s", "tpot_mean_s", "e2e_mean_s", "e2e_p90_s", "e2e_p99_s", "output_tokens_per_s",
    "capacity_per_s",
)  # fmt: skip
SWITCHES = {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}
LARGEST = 10**7  # of counts, and of requests in a row
PROFILE = "vllm_v1"
# Capacity: requests that come faster by this factor than all-at-once ones were completed.
OVERLOAD = 1.3
CAPACITY_ROUNDS = 12  # of max_num_seqs requests


@dataclass(frozen=True, slots=True)
class Load:
    """A row of the table."""

    model: str  # of the zoo
    gpu: str
    num_gpus: int
    tp: int
    max_num_seqs: int
    max_num_batched_tokens: int
    chunked_prefill: bool
    prefix_caching: bool
    distinct_prompts: int | None  # None: all
    rate_per_s: float
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    max_outstanding: float  # inf: open loop
    warm: bool = False  # each distinct prompt has been sent before

    @property
    def num_requests(self) -> int:
        return max(1, round(self.rate_per_s * self.duration_s))

    def request(self, index: int, arrival_s: float) -> Request:
        made = Request(index, arrival_s, self.model, self.prompt_tokens, self.output_tokens)
        if self.distinct_prompts is not None:
            made.shared = ((index % self.distinct_prompts, self.prompt_tokens),)
        return made

    def earlier(self) -> list[Request]:
        """Each distinct prompt once, where they have been sent before."""
        caching = self.warm and self.prefix_caching
        return [self.request(i, 0.0) for i in range(self.distinct_prompts or 0) if caching]

    def limits(self) -> dict[str, object]:
        return {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "enable_chunked_prefill": self.chunked_prefill,
            "enable_prefix_caching": self.prefix_caching,
        }

    def hardware(self) -> Hardware:
        """A profile of `num_gpus` GPUs, in nodes as wide as the GPU's own."""
        return replace(zoo.device(self.gpu), num_devices=self.num_gpus)


COLUMNS = tuple(field.name for field in fields(Load) if field.name != "warm")


def main(words: Sequence[str], console: Console) -> None:
    made = parser("fidelity replay", __doc__)
    columns = f"CSV file with the columns {', '.join(COLUMNS)}"
    made.add_argument("--points", type=Path, required=True, metavar="FILE", help=columns)
    written = "CSV file to write: the same rows with the simulated numbers"
    made.add_argument("--out", type=Path, required=True, metavar="FILE", help=written)
    profile = "the engine, of conf/engine/profile (vllm_v1)"
    made.add_argument("overrides", nargs="*", metavar="profile=NAME", help=profile)
    chosen = made.parse_args(words)
    name = PROFILE
    for word in chosen.overrides:  # the last counts
        key, equals, name = word.partition("=")
        if key != "profile" or not equals:
            raise UsageError(f"unknown override {word}; valid: profile=NAME")
    result = replay(chosen.points, chosen.out, name)
    num_simulated = int((result.reason == "").sum())
    console.print(
        f"{num_simulated} of {len(result)} points simulated: {chosen.out}", soft_wrap=True
    )


def replay(points: Path, out: Path, profile: str = PROFILE) -> pd.DataFrame:
    """Writes `points` with FOUND and `reason` to `out`. UsageError for a wrong table."""
    table, loads = read(points)
    config = engine_config(profile)
    capacities: dict[Load, float] = {}
    rows = [simulated(load, config, capacities) for load in loads]
    result = pd.concat([table, pd.DataFrame(rows, columns=[*FOUND, "reason"])], axis=1)
    write_csv(result, out, "--out")
    return result


def engine_config(profile: str, **values: Any) -> SimConfig:
    """The configuration of engine=sim with that profile and `values`."""
    node = zoo.node("engine/sim.yaml", profile=profile, **values)
    config: SimConfig = settings(node, SimEngine, "engine")
    return config


def simulated(
    load: Load, config: SimConfig, capacities: dict[Load, float] | None = None
) -> dict[str, Any]:
    """FOUND of one load, and an empty reason; or the reason why there is none. `capacities`: what
    is known of those of the same deployment and lengths; None: no capacity is asked for."""
    try:
        _check(load)
        engine = SimEngine(config)
        played = _play(load, engine, arrivals_s(load.num_requests, load.duration_s))
        found = measures(played, load.output_tokens) | {"reason": ""}
        if capacities is not None:
            same = replace(load, rate_per_s=0.0, duration_s=0.0, max_outstanding=inf)
            if same not in capacities:
                capacities[same] = _capacity_per_s(load, engine)
            found["capacity_per_s"] = capacities[same]
    except UsageError as error:
        return {"reason": str(error)}
    return found


def measures(played: Played, output_tokens: int) -> dict[str, float]:
    """FOUND but the capacity. TPOT of single tokens is not a number."""
    e2e_s = played.last_s - played.sent_s
    gaps = max(output_tokens - 1, 1)
    tpot_s = float((played.last_s - played.first_s).mean()) / gaps
    return {
        "ttft_mean_s": float((played.first_s - played.sent_s).mean()),
        "tpot_mean_s": tpot_s if output_tokens > 1 else float("nan"),
        "e2e_mean_s": float(e2e_s.mean()),
        "e2e_p90_s": float(np.quantile(e2e_s, 0.9)),
        "e2e_p99_s": float(np.quantile(e2e_s, 0.99)),
        "output_tokens_per_s": len(e2e_s) * output_tokens / float(played.last_s.max()),
    }


def arrivals_s(number: int, duration_s: float) -> list[float]:
    """`number` exponential gaps, scaled so that the last arrival ends `duration_s`."""
    gaps = np.random.default_rng(0).exponential(1.0, number)
    found: list[float] = (np.cumsum(gaps) * duration_s / gaps.sum()).tolist()
    return found


def _check(load: Load) -> None:
    """UsageError for what no engine could serve."""
    if load.tp > load.hardware().devices_per_node or load.num_gpus % load.tp:
        raise UsageError(
            f"tp={load.tp} does not divide {load.num_gpus} GPUs in nodes of "
            f"{load.hardware().devices_per_node}"
        )
    positions, asked = zoo.model(load.model).max_position, load.prompt_tokens + load.output_tokens
    if asked > positions:
        raise UsageError(f"a request of {asked} tokens has more than {load.model}'s {positions}")
    prompt, budget = load.prompt_tokens, load.max_num_batched_tokens
    if prompt > budget and not load.chunked_prefill:
        raise UsageError(
            f"without chunked prefill a prompt of {prompt} tokens never fits into "
            f"max_num_batched_tokens={budget}"
        )


def _play(
    load: Load, engine: SimEngine, times_s: Sequence[float], outstanding: float | None = None
) -> Played:
    requests = [load.request(i, time_s) for i, time_s in enumerate(times_s)]
    model, most = zoo.sharded(load.model, load.tp), outstanding or load.max_outstanding
    return play(requests, model, load.hardware(), engine, load.limits(), most, load.earlier())


def _capacity_per_s(load: Load, engine: SimEngine) -> float:
    """Requests/s completed under more than can be: first of as many as all come at once, then, so
    that their ends do not stay together, of arrivals at OVERLOAD times that rate."""
    instances = load.num_gpus // load.tp
    # With a cold cache all first prompts end together, and equal lengths keep them so for good.
    load = replace(load, warm=True)
    number = CAPACITY_ROUNDS * load.max_num_seqs * instances
    at_once = middle_per_s(_play(load, engine, [0.0] * number, inf).last_s)
    if not at_once > 0:
        return float("nan")
    duration_s = number / (OVERLOAD * at_once)
    return middle_per_s(_play(load, engine, arrivals_s(number, duration_s), inf).last_s)


def read(points: Path) -> tuple[pd.DataFrame, list[Load]]:
    """The table as it is, and its rows checked. Further columns are kept."""
    table = read_csv(points, "--points", COLUMNS, keep_default_na=False, dtype=str)
    if table.empty:
        raise UsageError(f"--points {points} has no rows: each is a load to simulate")
    table = table.drop(columns=[name for name in (*FOUND, "reason") if name in table])
    return table, [
        _load(row, f"{points}, row {i + 1}") for i, row in enumerate(table.to_dict("records"))
    ]


def _load(row: dict[Any, str], where: str) -> Load:
    values: dict[str, Any] = {}
    for name in COLUMNS:
        try:
            values[name] = EMPTY[name] if name in EMPTY and not row[name] else READ[name](row[name])
        except UsageError as error:
            said = error if name in ("model", "gpu") else f"{name}={row[name]} {error}"
            raise UsageError(f"{where}: {said}") from error
    load = Load(**values)
    if load.num_requests > LARGEST:
        raise UsageError(f"{where}: {load.num_requests} requests are more than {LARGEST}")
    return load


def _count(text: str) -> int:
    value = _positive(text)
    if value % 1 or value > LARGEST:
        raise UsageError(f"is not a whole number from 1 to {LARGEST}")
    return int(value)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (isfinite(value) and value > 0):
        raise UsageError("is not a number above 0")
    return value


def _switch(text: str) -> bool:
    if text.lower() not in SWITCHES:
        raise UsageError(f"is unknown; valid: {', '.join(SWITCHES)}")
    return SWITCHES[text.lower()]


# What each column holds; the rest are counts. And what an empty cell means.
READ: dict[str, Callable[[str], Any]] = dict.fromkeys(COLUMNS, _count)
READ |= {"model": zoo.model_name, "gpu": zoo.device_name}
READ |= dict.fromkeys(("chunked_prefill", "prefix_caching"), _switch)
READ |= dict.fromkeys(("rate_per_s", "duration_s"), _positive)
EMPTY = {"distinct_prompts": None, "max_outstanding": inf}
