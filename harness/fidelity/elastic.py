"""`python -m harness fidelity elastic`: simulates single elastic operations that others measured on
GPUs, and tells the error of each.

The operations and their sources are in elastic.yaml beside this file. Each runs alone, by the code
that runs it in a simulated system, on a hardware profile as it is. No constant was fitted to the
rows "held out". Writes elastic.json and elastic.md.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml
from rich.console import Console

from harness.calibrate import tables, zoo
from harness.clock import Loop, VirtualLoop
from harness.configuration.checks import one_of, positive, require
from harness.configuration.command_line import parser
from harness.configuration.config import typed
from harness.device.location import Place, dram, hbm
from harness.device.topology import Topology
from harness.elastic.fabric import Memory, Sending
from harness.fidelity.arguments import PUBLISHED
from harness.fidelity.replay import engine_config
from harness.files import YamlLoader, make_folder, write_json, write_text
from harness.placement import pooled
from harness.pooled.instance import PooledInstance
from harness.records.record import Recorder
from harness.request import Request
from harness.running import testbed
from harness.sim.engine import SimEngine
from harness.sim.fabric import SimFabric
from harness.sim.network import Network

ROWS = Path(__file__).with_name("elastic.yaml")
KINDS = ("held out", "calibrated", "at most")
PROFILE = "eager_2024"  # of the engine; its iterations are in none of these operations

hardware = cache(zoo.hardware)


@dataclass(kw_only=True, slots=True)
class Row:
    """A measurement, and on what it is simulated. elastic.yaml explains the fields."""

    operation: str
    hardware: str
    published_s: float
    kind: str
    measured: str
    source: str
    model: str | None = None
    tp: int = 1
    num_bytes: int | None = None  # of each GPU
    tokens: int | None = None
    why: str = ""

    def __post_init__(self) -> None:
        one_of(self.operation, OPERATIONS, "operation")
        one_of(self.hardware, zoo.names("hardware"), "hardware")
        one_of(self.kind, KINDS, "kind")
        positive(self, "", "published_s", "num_bytes", "tokens", "tp")
        for name in OPERATIONS[self.operation].needs:
            absent = getattr(self, name) is None
            require(not absent, f"operation={self.operation} needs {name}")
        if self.model is not None:
            one_of(self.model, zoo.names("model"), "model")


class Operation(NamedTuple):
    simulate: Callable[[Row], float]  # seconds
    needs: tuple[str, ...]  # of a row


def main(words: Sequence[str], console: Console) -> None:
    made = parser("fidelity elastic", __doc__)
    made.add_argument("--out", type=Path, default=PUBLISHED, metavar="DIR", help="%(default)s")
    console.print(f"{report(read(ROWS), made.parse_args(words).out)}", soft_wrap=True)


def read(path: Path) -> list[Row]:
    """UsageError names the row and its bad value."""
    rows = yaml.load(path.read_text(encoding="utf-8"), YamlLoader)
    return [typed(row, Row, f"{path.name}, row {i}") for i, row in enumerate(rows, 1)]


def report(rows: Sequence[Row], out: Path) -> Path:
    """Simulates every row and writes the report; returns the page's path."""
    make_folder(out)
    found = compared(rows)
    write_json(out / "elastic.json", found)
    write_text(out / "elastic.md", page(found))
    return out / "elastic.md"


def compared(rows: Sequence[Row]) -> dict[str, Any]:
    """Each row with what was simulated, and the errors of those held out: of all, and by
    operation."""
    found = [asdict(row) for row in rows]
    for row, each in zip(rows, found, strict=True):
        each["simulated_s"] = OPERATIONS[row.operation].simulate(row)
        each["error_pct"] = 100 * (each["simulated_s"] / row.published_s - 1)
    table = pd.DataFrame(found)
    held = table[table.kind == "held out"]
    parts = [("all", held), *held.groupby("operation", sort=False)]
    return {"held_out": [errors(str(name), part) for name, part in parts], "rows": found}


def errors(operation: str, held: pd.DataFrame) -> dict[str, Any]:
    size = held.error_pct.abs()
    return {
        "operation": operation, "rows": len(held), "mean_abs_pct": float(size.mean()),
        "median_abs_pct": float(size.median()), "worst_pct": max(held.error_pct, key=abs),
    }  # fmt: skip


def page(found: Mapping[str, Any]) -> str:
    rows, held = pd.DataFrame(found["rows"]), pd.DataFrame(found["held_out"])
    columns = "operation hardware measured published_s simulated_s error_pct kind source why"
    shown = rows[columns.split()].assign(
        published_s=rows.published_s.map("{:.4g}".format),
        simulated_s=rows.simulated_s.map("{:.4g}".format),
        error_pct=rows.error_pct.round().astype(int).map("{:+d}".format),
    )
    template = Path(__file__).with_name("templates") / "elastic.md"
    return tables.page(template, held=headed(held), rows=headed(shown))


def headed(table: pd.DataFrame) -> pd.DataFrame:
    return table.rename(columns=lambda name: name.replace("_pct", " %").replace("_", " "))


# On a pooled instance

Story = Callable[[PooledInstance, Loop, Row], Coroutine[Any, Any, float]]


def on_pool(story: Story, row: Row, *, cached: bool = True) -> float:
    """`cached`: the node has the model in DRAM; else on its SSD alone."""
    assert row.model is not None
    models, profile = {row.model: zoo.sharded(row.model, row.tp)}, hardware(row.hardware)
    config = engine_config(PROFILE)
    if not cached:
        config.pool.model_cache_bytes = 0
    bed = SimEngine(config), models, profile, pooled(models, profile), Recorder([])
    with testbed.started(*bed) as (cluster, loop):
        return float(loop.run(story(cluster.pool[0], loop, row)))


async def load(one: PooledInstance, loop: Loop, row: Row, *, staged: bool = True) -> float:
    await one.load(str(row.model), staged=staged)
    return loop.now


async def restart(one: PooledInstance, loop: Loop, row: Row) -> float:
    await one.restart()
    return loop.now


async def switch_by_restart(one: PooledInstance, loop: Loop, row: Row) -> float:
    await one.restart()
    return await load(one, loop, row, staged=False)


async def swap_in(one: PooledInstance, loop: Loop, row: Row, *, beside: bool = False) -> float:
    """The KV of a request comes in. `beside`: twice as much leaves meanwhile."""
    coming, leaving = request(one, row, 0, 1), request(one, row, 1, 2)
    await loop.wait(one.swap_out(coming, lambda: None))
    begin_s = loop.now
    if beside:
        one.swap_out(leaving, lambda: None)
    arrived = one.swap_in(coming, lambda: None)
    assert arrived is not None
    await loop.wait(arrived)
    return loop.now - begin_s


def request(one: PooledInstance, row: Row, number: int, times: int) -> Request:
    """A request with the KV of `times` the row's tokens on the instance."""
    tokens = times * (row.tokens or 0)
    made = Request(number, 0.0, str(row.model), tokens, 1, computed_tokens=tokens)
    assert one.kv(made.model).grow(made, tokens)
    return made


# Between memories, as the weights and KV of elastic instances move


def gpus(node: int, first: int, tp: int) -> Place:
    return tuple(hbm(node, device) for device in range(first, first + tp))


def copy(places: Callable[[int], tuple[Place, Place]], row: Row) -> float:
    assert row.num_bytes is not None
    loop, profile = VirtualLoop(), hardware(row.hardware)
    hbm_bytes_per_s = profile.memory_bandwidth_bytes_per_s
    fabric = SimFabric(loop, Network(loop, Topology(profile)), hbm_bytes_per_s, 0.0)
    source, target = (Memory(str(place), place) for place in places(row.tp))
    loop.run(fabric.copy(source, target, row.num_bytes, list, Sending("weights")))
    return loop.now


def broadcast(row: Row) -> float:
    """Every instance of a node but the first loads the model from the one before it."""
    profile, spec = hardware(row.hardware), zoo.sharded(str(row.model), row.tp)
    number, engine = profile.devices_per_node // row.tp, SimEngine(engine_config(PROFILE))
    empty = dict.fromkeys(range(1, number), range(0))
    with testbed.start(spec, profile, engine, number, resident=empty) as bed:

        async def story() -> float:
            layers = range(spec.num_layers)
            chain = pairwise(bed.instances)
            loads = [bed.loop.spawn(to.load(layers, of), name="load") for of, to in chain]
            for each in loads:
                await bed.loop.wait(each.finished)
            return bed.loop.now

        return float(bed.run(story()))


MODEL, KV, BYTES = ("model",), ("model", "tokens"), ("num_bytes",)
OPERATIONS = {
    "load from DRAM": Operation(partial(on_pool, load), MODEL),
    "load from SSD": Operation(partial(on_pool, load, cached=False), MODEL),
    "load, tensor by tensor": Operation(partial(on_pool, partial(load, staged=False)), MODEL),
    "engine start without weights": Operation(partial(on_pool, restart), MODEL),
    "switch by restart": Operation(partial(on_pool, switch_by_restart), MODEL),
    "KV in": Operation(partial(on_pool, swap_in), KV),
    "KV in beside KV out": Operation(partial(on_pool, partial(swap_in, beside=True)), KV),
    "wake-up": Operation(partial(copy, lambda tp: (dram(0), gpus(0, 0, tp))), BYTES),
    "peer copy": Operation(partial(copy, lambda tp: (gpus(0, 0, tp), gpus(0, tp, tp))), BYTES),
    "copy between nodes": Operation(
        partial(copy, lambda tp: (gpus(0, 0, tp), gpus(1, 0, tp))), BYTES
    ),
    "broadcast in a node": Operation(broadcast, MODEL),
}
