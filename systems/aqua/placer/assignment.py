"""Models to servers (section 5, eq. 1 to 6) as a mixed-integer program, solved by HiGHS.

Equal models are one type. The unknowns are how many models of a type each server gets. With one
binary for each model (eq. 1), equal models could be swapped, and the solver would see very many
equal solutions. Servers are alike too, but ordering them by their memory made the solver slower.
All shards of a model go together (eq. 2), so a model takes as many GPUs as it has shards.

Where formulas are unclear, the paper's text decides. R_m > 0 is a producer (the text on eq. 4 says
consumer, once). A model with R_m = 0 is a producer (t is 0/0 in eq. 5). R_m and t count each shard,
as x does. G_s of eq. 6 is the memory of one GPU, as in the artifact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from harness.configuration.checks import at_least
from harness.errors import UsageError

GB = 1e9  # unit of the program's unknowns, so that they are near 1


class ModelType(NamedTuple):
    """Models that are equal."""

    name: str
    memory_bytes: int  # R_m of each shard: above 0 to lend, below 0 needed
    shards: int

    @property
    def sign(self) -> int:
        """t of eq. 5."""
        return -1 if self.memory_bytes < 0 else 1


@dataclass(kw_only=True, slots=True, frozen=True)
class Servers:
    """Servers that are equal. Raises ValueError if a value is below 1."""

    num_servers: int  # S
    gpus_per_server: int  # G
    gpu_memory_bytes: int  # G_mem

    def __post_init__(self) -> None:
        at_least(self, 1, "", *self.__slots__)


@dataclass(slots=True, frozen=True)
class Assignment:
    """What the solver found."""

    counts: tuple[tuple[int, ...], ...]  # counts[s][t]: models of type t on server s
    objective_bytes: float  # eq. 6
    bound_bytes: float  # proven: no assignment has a smaller objective

    @property
    def gap(self) -> float:
        """How far it is from optimal at most, as a share of the objective."""
        if self.objective_bytes <= self.bound_bytes:
            return 0.0
        return (self.objective_bytes - self.bound_bytes) / max(abs(self.objective_bytes), 1.0)


def counted(models: Sequence[ModelType]) -> tuple[list[ModelType], list[int]]:
    """(types of `models` in order of appearance, how many models of each)."""
    numbers = Counter(models)
    return list(numbers), list(numbers.values())


def objective_bytes(
    counts: Sequence[Sequence[int]], types: Sequence[ModelType], servers: Servers
) -> float:
    """The value of eq. 6 for an assignment. counts: as in `Assignment`."""
    grid = np.array(counts, dtype=object)  # integers without end
    memory = grid @ [each.shards * each.memory_bytes for each in types]  # eq. 4
    balance = grid @ [each.shards * each.sign for each in types]  # eq. 5
    most: int = max(memory) + servers.gpu_memory_bytes * max(balance)
    return most


def assign(
    types: Sequence[ModelType], numbers: Sequence[int], servers: Servers, *, time_limit_s: float,
    most_nodes: int | None = None,
) -> Assignment:  # fmt: skip
    """The assignment with the least objective. numbers: how many models of each type. most_nodes:
    of the search; it ends there on any machine, where a time ends it sooner on a slow one.

    Raises UsageError if they do not all fit, or if no assignment is found within the time.
    """
    _check(types, numbers, servers)
    found = _solved(types, numbers, servers, time_limit_s, most_nodes)
    if found.x is None:
        raise UsageError(
            f"{sum(numbers)} models do not fit on {servers.num_servers} servers of "
            f"{servers.gpus_per_server} GPUs, or no assignment was found in {time_limit_s:g} s: "
            f"{found.message}"
        )
    grid = np.rint(found.x[:-2]).astype(int).reshape(servers.num_servers, len(types))
    counts = tuple(tuple(map(int, row)) for row in grid)
    value = objective_bytes(counts, types, servers)
    return Assignment(counts, value, float(found.mip_dual_bound) * GB)


def _solved(
    types: Sequence[ModelType], numbers: Sequence[int], servers: Servers, time_limit_s: float,
    most_nodes: int | None,
) -> Any:  # fmt: skip
    """Unknowns: the counts, server by server; then max mem_s in GB; then max eq_s."""
    nodes = {} if most_nodes is None else {"node_limit": most_nodes}
    num_servers, num_counts = servers.num_servers, servers.num_servers * len(types)
    every_model = np.tile(np.eye(len(types)), num_servers)  # eq. 1: each is on one server
    shards = np.array([each.shards for each in types], float)
    memory = np.array([each.shards * each.memory_bytes / GB for each in types])
    balance = np.array([each.shards * each.sign for each in types], float)
    of_server = np.array([shards, memory, balance])  # eq. 3, 4 and 5
    maxima = [[0, 0], [-1, 0], [0, -1]]
    rows = np.block(
        [
            [every_model, np.zeros((len(types), 2))],
            [np.kron(np.eye(num_servers), of_server), np.tile(maxima, (num_servers, 1))],
        ]
    )
    high = np.array([*numbers, *([servers.gpus_per_server, 0, 0] * num_servers)], float)
    low = np.array([*numbers, *([-np.inf] * 3 * num_servers)])
    return milp(
        np.array([0] * num_counts + [1, servers.gpu_memory_bytes / GB]),  # eq. 6
        integrality=np.array([1] * num_counts + [0, 0]),
        bounds=Bounds(
            np.array([0.0] * num_counts + [-np.inf] * 2),
            np.array([*numbers] * num_servers + [np.inf] * 2),
        ),
        constraints=LinearConstraint(rows, low, high),
        options={"time_limit": time_limit_s, **nodes},
    )


def _check(types: Sequence[ModelType], numbers: Sequence[int], servers: Servers) -> None:
    for each, number in zip(types, numbers, strict=True):
        if not 1 <= each.shards <= servers.gpus_per_server:
            raise UsageError(
                f"{each.name} has {each.shards} shards; valid: 1 to {servers.gpus_per_server}, the "
                "GPUs of a server"
            )
        if number < 0:
            raise UsageError(f"{number} models of {each.name}; valid: at least 0")
    wanted = sum(n * each.shards for n, each in zip(numbers, types, strict=True))
    room = servers.num_servers * servers.gpus_per_server
    if wanted > room:
        raise UsageError(f"the models have {wanted} shards; valid: at most {room}, the GPUs")
