"""`+system=muxserve`: placement before the run, ADBS during it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.clock import Loop
from harness.cluster import Cluster
from harness.configuration.checks import one_of
from harness.cost.hardware import Hardware
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Demand, Placement, profile_of
from harness.request import Request
from systems.muxserve.adbs import QuotaConfig
from systems.muxserve.estimate import EstimateConfig, Llm, ThroughputEstimator
from systems.muxserve.memory import Budget, MemoryConfig
from systems.muxserve.mesh import Mesh
from systems.muxserve.placement import Placer, first_names, kv_weight, llms_of
from systems.muxserve.resident import Resident
from systems.serving.iteration import Limits


class MuxServe:
    """`place` raises UsageError if no placement has room for all models."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        """The keys of `conf/system/muxserve.yaml`. Raises ValueError for an unknown variant."""

        variant: str  # paper or artifact: how much of the memory weights may take
        weights_share: dict[str, float]  # by variant
        prefill_share: float  # of the multiprocessors, for a prefill
        excess_share: float  # by how much running jobs together may exceed the multiprocessors
        max_num_batched_tokens: int  # of a prefill
        estimate: EstimateConfig
        memory: MemoryConfig
        quotas: QuotaConfig

        def __post_init__(self) -> None:
            one_of(self.variant, self.weights_share, "variant", "choose one of")

    @staticmethod
    def place(
        config: Config, models: Mapping[str, ModelSpec], hardware: Hardware, demand: Demand
    ) -> list[Placement]:
        budget = Budget(config.memory, hardware.memory_bytes, config.weights_share[config.variant])
        estimator = ThroughputEstimator(profile_of(hardware), config.estimate)
        placer = Placer(estimator, budget, config.estimate.max_num_seqs, 1 + config.excess_share)
        llms = llms_of(models, demand.rates_per_s)
        meshes = placer.best(llms, hardware.num_devices, hardware.devices_per_node)
        if meshes is None:
            raise UsageError(refusal(llms, budget, hardware))
        placements = []
        for mesh in [mesh for mesh in meshes if mesh.llms]:
            weights = [kv_weight(llm) for llm in mesh.llms]
            shares = budget.memory_shares(mesh.specs, weights, len(mesh.devices))
            for llm, candidate, share in zip(mesh.llms, mesh.candidates, shares, strict=True):
                placements.append(
                    Placement(
                        devices=mesh.devices,
                        model=llm.name,
                        compute_share=candidate.share,
                        prefill_compute_share=config.prefill_share,
                        memory_share=share,
                    )
                )
        return placements

    def __init__(self, config: Config, *, loop: Loop, cluster: Cluster) -> None:
        limits = Limits(
            max_num_seqs=config.estimate.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            enable_chunked_prefill=False,
            scheduler_reserve_full_isl=True,
        )
        self._loop = loop
        self._placed = first_names(cluster.models)
        self._at: dict[str, tuple[Mesh, Resident]] = {}  # by the model's name
        meshes: dict[range, Mesh] = {}
        for instance, placement in zip(cluster.instances, cluster.placements, strict=True):
            assert placement.model is not None, "place() names one"
            mesh = meshes.get(placement.devices)
            if mesh is None:
                mesh = meshes[placement.devices] = Mesh(
                    loop,
                    cluster.drop,
                    prefill_share=config.prefill_share,
                    total_share=1 + config.excess_share,
                    quotas=config.quotas,
                )
            resident = Resident(instance, placement.compute_share, loop, limits)
            mesh.residents.append(resident)
            self._at[placement.model] = mesh, resident
        self._meshes = list(meshes.values())

    def submit(self, request: Request) -> None:
        mesh, resident = self._at[self._placed[request.model]]
        mesh.submit(resident, request)

    async def serve(self) -> None:
        for mesh in self._meshes:
            self._loop.spawn(mesh.serve(), name="mesh")


def refusal(llms: Sequence[Llm], budget: Budget, hardware: Hardware) -> str:
    """The message of `place` if no placement has room for all models."""
    beside = budget.beside_weights_bytes
    largest = max(llms, key=lambda llm: llm.spec.weight_bytes)
    needed = sum(llm.spec.weight_bytes + beside for llm in llms)
    room = budget.free_bytes([], 1)
    return (
        f"MuxServe cannot find a placement for {len(llms)} models on hardware={hardware.name}: "
        f"weights, with {beside / 1e9:.1f} GB for each model, need {needed / 1e9:.1f} GB "
        f"({largest.spec.name} alone needs {(largest.spec.weight_bytes + beside) / 1e9:.1f} GB); "
        f"{hardware.num_devices} devices have {room / 1e9:.1f} GB each, and no model is split "
        "further to fit"
    )
