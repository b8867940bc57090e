"""Which models share which devices: MuxServe's greedy placement (Algorithm 1).

Every way to cut the nodes into meshes is tried. Models are placed one by one, the most computation
first, each on the mesh where it adds the most throughput. The cut that serves the most requests/s
wins. Tensor parallelism is not searched: a model goes on a mesh of `tp` devices. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations_with_replacement, pairwise

from harness.model_spec import ModelSpec
from systems.muxserve.estimate import Candidate, Llm, ThroughputEstimator
from systems.muxserve.memory import Budget

ROUNDING = 1e-9  # shares such as 0.3 have no exact float


@dataclass(slots=True)
class PlacedMesh:
    """Some devices, the models on them, and the requests/s that the models serve together."""

    devices: range
    llms: list[Llm] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    served_per_s: float = 0.0

    @property
    def specs(self) -> list[ModelSpec]:
        return [llm.spec for llm in self.llms]

    @property
    def computation(self) -> float:
        return sum(llm.computation for llm in self.llms)


class Placer:
    """Places models by Algorithm 1."""

    def __init__(
        self, estimator: ThroughputEstimator, budget: Budget, max_num_seqs: int, total_share: float
    ) -> None:
        """total_share: the sum, at most, of the decode shares of the models on a mesh. 1 is all
        multiprocessors; above 1 they may be exceeded."""
        self._estimator, self._budget = estimator, budget
        self._max_num_seqs, self._total_share = max_num_seqs, total_share

    def best(
        self, llms: Sequence[Llm], num_devices: int, devices_per_node: int
    ) -> list[PlacedMesh] | None:
        """The placement that serves the most requests/s; None if not all models fit."""
        sizes = {llm.spec.tp for llm in llms}
        found = [
            meshes
            for cut in cuts(num_devices, devices_per_node, sizes)
            if (meshes := self.greedy(llms, cut)) is not None
        ]
        return max(found, key=lambda m: sum(mesh.served_per_s for mesh in m), default=None)

    def greedy(self, llms: Sequence[Llm], cut: Sequence[range]) -> list[PlacedMesh] | None:
        """The models placed on the meshes of `cut`; None if a model fits on no mesh."""
        meshes = [PlacedMesh(devices) for devices in cut]
        for llm in sorted(llms, key=lambda llm: (-llm.computation, -llm.scale)):
            options = [
                (trial, mesh) for mesh in meshes if (trial := self._with(mesh, llm)) is not None
            ]
            if not options:
                return None
            trial, mesh = max(options, key=lambda option: self._merit(*option))
            meshes[meshes.index(mesh)] = trial
        return meshes

    def _merit(self, trial: PlacedMesh, mesh: PlacedMesh) -> tuple[float, float, float]:
        """Ranks a mesh for a model, the first of these first: throughput gained, less computation
        on the mesh, more free memory on it."""
        gained = round(trial.served_per_s - mesh.served_per_s, 9)
        free = self._budget.free_bytes(mesh.specs, len(mesh.devices))
        return gained, -mesh.computation, free

    def _with(self, mesh: PlacedMesh, llm: Llm) -> PlacedMesh | None:
        """The mesh with one more model; None if the model does not fit."""
        width, specs = len(mesh.devices), [*mesh.specs, llm.spec]
        tokens = self._estimator.request_tokens
        if llm.spec.tp != width or not self._budget.fits(specs, width, tokens):
            return None
        llms = [*mesh.llms, llm]
        rooms = self._max_batches(llms, width)
        candidates = [*mesh.candidates, self._estimator.candidate(llm, rooms[-1])]
        if sum(candidate.share for candidate in candidates) > self._total_share + ROUNDING:
            return None
        served = self._estimator.served_per_s(list(zip(llms, candidates, rooms, strict=True)))
        return PlacedMesh(mesh.devices, llms, candidates, served)

    def _max_batches(self, llms: Sequence[Llm], width: int) -> list[int]:
        """How many requests' KV fits, for each model; the KV memory is divided by `kv_weight`."""
        kv_bytes = self._budget.kv_bytes([llm.spec for llm in llms], width)
        weights = [kv_weight(llm) for llm in llms]
        total, batches = sum(weights), []
        for llm, weight in zip(llms, weights, strict=True):
            part = kv_bytes * (weight / total if total else 1 / len(llms))
            request_bytes = llm.spec.held_kv_bytes_per_token * self._estimator.request_tokens
            batches.append(max(1, min(int(part // request_bytes), self._max_num_seqs)))
        return batches


def kv_weight(llm: Llm) -> float:
    """The weight by which KV memory is divided among models: requests/s times KV bytes per
    token."""
    return llm.rate_per_s * llm.spec.held_kv_bytes_per_token


def cuts(num_devices: int, devices_per_node: int, sizes: set[int]) -> Iterator[list[range]]:
    """Every way to cut the nodes into meshes of the given sizes; devices may be left over.

    All nodes but the last are equal, so only the number of nodes that are cut in each way counts.
    """
    full, rest = divmod(num_devices, devices_per_node)
    wide_first = sorted(sizes, reverse=True)
    whole = list(_splits(devices_per_node, wide_first))
    for nodes in combinations_with_replacement(whole, full):
        for last in _splits(rest, wide_first):
            yield [
                range(*ends)
                for node, split in enumerate([*nodes, last])
                for ends in pairwise(accumulate(split, initial=node * devices_per_node))
            ]


def _splits(num_devices: int, sizes: Sequence[int]) -> Iterator[list[int]]:
    """Every way to cut one node, as sizes, largest first. The smallest size takes all it can of
    the rest."""
    size, *smaller = sizes
    most = num_devices // size
    for count in range(most + 1) if smaller else [most]:
        rest = _splits(num_devices - count * size, smaller) if smaller else [[]]
        for split in rest:
            yield [size] * count + split


def first_names(models: Mapping[str, ModelSpec]) -> dict[str, str]:
    """{name: the first name of the same model}.

    Names stand for the same model if their specs are the same object. Equal specs are two models
    with one checkpoint.
    """
    first: dict[int, str] = {}
    return {name: first.setdefault(id(spec), name) for name, spec in models.items()}


def llms_of(models: Mapping[str, ModelSpec], rates_per_s: Mapping[str, float]) -> list[Llm]:
    """The models to place. The rates of all names of a model add up."""
    rates: dict[str, float] = {}
    for name, first in first_names(models).items():
        rates[first] = rates.get(first, 0.0) + rates_per_s.get(name, 0.0)
    return [Llm(name, models[name], rate_per_s) for name, rate_per_s in rates.items()]
