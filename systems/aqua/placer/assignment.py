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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from harness.errors import UsageError

GB = 1e9  # unit of the program's unknowns, so that they are near 1


class ModelType(NamedTuple):
    """Equal models."""

    name: str
    memory_bytes: int  # R_m of each shard: above 0 to lend, below 0 needed
    shards: int

    @property
    def sign(self) -> int:
        """t of eq. 5."""
        return -1 if self.memory_bytes < 0 else 1


@dataclass(kw_only=True, slots=True, frozen=True)
class Servers:
    """Equal servers. Raises ValueError if a value is below 1."""

    num_servers: int  # S
    gpus_per_server: int  # G
    gpu_memory_bytes: int  # G_mem

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


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
    numbers: dict[ModelType, int] = {}
    for each in models:
        numbers[each] = numbers.get(each, 0) + 1
    return list(numbers), list(numbers.values())


def objective_bytes(
    counts: Sequence[Sequence[int]], types: Sequence[ModelType], servers: Servers, *, clamp: bool
) -> float:
    """Eq. 6 of an assignment.

    counts: as in `Assignment`. clamp: both maxima are at least 0, as the artifact's variables are;
    a surplus of memory, or of producers, on all servers then costs nothing.
    """
    memory = [
        sum(n * t.shards * t.memory_bytes for n, t in zip(row, types, strict=True))
        for row in counts
    ]
    balance = [
        sum(n * t.shards * t.sign for n, t in zip(row, types, strict=True)) for row in counts
    ]
    floor = [0] if clamp else []
    return max(memory + floor) + servers.gpu_memory_bytes * max(balance + floor)


def assign(
    types: Sequence[ModelType],
    numbers: Sequence[int],
    servers: Servers,
    *,
    clamp: bool,
    time_limit_s: float,
) -> Assignment:
    """The assignment with the least objective. numbers: how many models of each type.

    Raises UsageError if they do not all fit, or if no assignment is found within the time.
    """
    _check(types, numbers, servers)
    program = _Program(types, numbers, servers, clamp)
    found = milp(
        program.cost,
        integrality=program.integer,
        bounds=program.bounds,
        constraints=program.constraints,
        options={"time_limit": time_limit_s},
    )
    if found.x is None:
        raise UsageError(
            f"{sum(numbers)} models do not fit on {servers.num_servers} servers of "
            f"{servers.gpus_per_server} GPUs, or no assignment was found in {time_limit_s:g} s: "
            f"{found.message}"
        )
    counts = program.counts(found.x)
    value = objective_bytes(counts, types, servers, clamp=clamp)
    return Assignment(counts, value, float(found.mip_dual_bound) * GB)


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


class _Program:
    """Unknowns: the counts, server by server; then max mem_s in GB; then max eq_s."""

    def __init__(
        self, types: Sequence[ModelType], numbers: Sequence[int], servers: Servers, clamp: bool
    ) -> None:
        self._shape = servers.num_servers, len(types)
        size = servers.num_servers * len(types)
        most_memory, most_balance = size, size + 1
        self.cost = np.zeros(size + 2)
        self.cost[most_memory], self.cost[most_balance] = 1, servers.gpu_memory_bytes / GB
        self.integer = np.ones(size + 2)
        self.integer[most_memory] = self.integer[most_balance] = 0
        floor = 0.0 if clamp else -np.inf
        self.bounds = Bounds(
            np.array([0.0] * size + [floor, floor]),
            np.array([*numbers] * servers.num_servers + [np.inf, np.inf], float),
        )
        rows = lil_array((len(types) + 3 * servers.num_servers, size + 2))
        low, high = np.full(rows.shape[0], -np.inf), np.zeros(rows.shape[0])
        for t, number in enumerate(numbers):  # eq. 1: every model is on one server
            for s in range(servers.num_servers):
                rows[t, s * len(types) + t] = 1
            low[t] = high[t] = number
        row = len(types)
        for s in range(servers.num_servers):
            for t, each in enumerate(types):
                column = s * len(types) + t
                rows[row, column] = each.shards  # eq. 3
                rows[row + 1, column] = each.shards * each.memory_bytes / GB  # eq. 4
                rows[row + 2, column] = each.shards * each.sign  # eq. 5
            high[row] = servers.gpus_per_server
            rows[row + 1, most_memory] = rows[row + 2, most_balance] = -1
            row += 3
        self.constraints = LinearConstraint(rows.tocsr(), low, high)

    def counts(self, x: np.ndarray) -> tuple[tuple[int, ...], ...]:
        grid = np.rint(x[:-2]).astype(int).reshape(self._shape)
        return tuple(tuple(int(n) for n in row) for row in grid)
