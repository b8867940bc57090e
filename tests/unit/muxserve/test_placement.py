"""Which models MuxServe places together, on devices of 80 GiB, and against all other ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.configuration.config import settings as config_of
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Demand, Placement, profile_of, resident_models
from systems.muxserve.estimate import Llm, ThroughputEstimator
from systems.muxserve.memory import Budget
from systems.muxserve.placement import PlacedMesh, Placer, cuts, llms_of
from systems.muxserve.system import MuxServe
from tests.examples import examples
from tests.running import composed, hardware_profile, model_spec

SPECS = {name: model_spec(name) for name in ("qwen2.5-7b", "yi1.5-9b", "llama2-13b")}
CYCLE = [*["qwen2.5-7b"] * 6, *["yi1.5-9b"] * 2, *["llama2-13b"] * 2]  # of model_set=aegaeon


def config(*overrides: str) -> MuxServe.Config:
    node = composed("+system=muxserve", *overrides).system
    found: MuxServe.Config = config_of(plain(node), MuxServe, "system")
    return found


CONFIG = config()
H100 = hardware_profile("h100x1")


def devices(num: int, per_node: int = 8) -> Hardware:
    return replace(H100, num_devices=num, devices_per_node=per_node)


def models(*names: str) -> dict[str, ModelSpec]:
    return {f"{name}-{i}": replace(SPECS[name], seed=i) for i, name in enumerate(names)}


def model_set(num_models: int) -> dict[str, ModelSpec]:
    return models(*(CYCLE[i % 10] for i in range(num_models)))


def place(
    chosen: dict[str, ModelSpec], num_devices: int, *overrides: str, rate_per_s: float = 0.1
) -> list[Placement]:
    demand = Demand(dict.fromkeys(chosen, rate_per_s))
    return MuxServe.place(config(*overrides), chosen, devices(num_devices), demand)


def test_two_13b_models_share_an_80_gb_device_and_a_third_is_refused() -> None:
    assert len(place(models(*["llama2-13b"] * 2), 1)) == 2
    with pytest.raises(UsageError, match="cannot find a placement for 3 models on hardware=h100x1"):
        place(models(*["llama2-13b"] * 3), 1)


def test_the_refusal_has_the_numbers() -> None:
    numbers = r"100\.9 GB \(llama2-13b alone needs 33\.6 GB\).*85\.9 GB"
    with pytest.raises(UsageError, match=numbers):
        place(models(*["llama2-13b"] * 3), 1)


def test_as_its_code_counts_memory_no_device_takes_a_third_model_of_any_class() -> None:
    code = "system.variant=artifact"
    assert len(place(models(*["qwen2.5-7b"] * 32), 16, code)) == 32
    with pytest.raises(UsageError, match="33 models"):
        place(models(*["qwen2.5-7b"] * 33), 16, code)


def test_as_its_code_counts_memory_28_models_of_the_market_fit_on_16_devices() -> None:
    placed = place(model_set(28), 16, "system.variant=artifact")
    assert sorted(p.model for p in placed if p.model) == sorted(model_set(28))
    with pytest.raises(UsageError, match="29 models"):
        place(model_set(29), 16, "system.variant=artifact")


def test_models_that_share_devices_have_room_and_multiprocessors_for_all() -> None:
    placed = place(model_set(40), 16)
    for first in range(16):
        here = [p for p in placed if p.devices.start == first]
        assert here
        assert sum(p.memory_share for p in here) <= CONFIG.memory.usable_share + 1e-9
        assert sum(p.compute_share for p in here) <= 1 + CONFIG.excess_share + 1e-9


def test_popular_models_are_kept_apart() -> None:
    chosen = models(*["qwen2.5-7b"] * 4)
    rates = dict(zip(chosen, [8.0, 0.1, 0.1, 8.0], strict=True))
    placed = MuxServe.place(CONFIG, chosen, devices(2), Demand(rates))
    at = {p.model: p.devices.start for p in placed}
    assert at[next(iter(chosen))] != at[list(chosen)[3]]


def test_a_higher_rate_takes_more_multiprocessors() -> None:
    (calm,) = place(models("llama2-13b"), 1, rate_per_s=0.1)
    (busy,) = place(models("llama2-13b"), 1, rate_per_s=12.0)
    assert calm.compute_share == 0.3
    assert busy.compute_share > 0.3


def test_names_of_one_model_are_one_model_to_place() -> None:
    spec = SPECS["qwen2.5-7b"]
    (llm,) = llms_of({"a": spec, "b": spec}, {"a": 0.25, "b": 0.5})
    assert llm.rate_per_s == 0.75


def test_wide_models_get_meshes_of_their_own_width_within_a_node() -> None:
    chosen = models("qwen2.5-7b", "llama2-13b")
    chosen["llama2-13b-1"] = replace(chosen["llama2-13b-1"], tp=2)
    demand = Demand(dict.fromkeys(chosen, 0.1))
    placed = MuxServe.place(CONFIG, chosen, devices(3, per_node=2), demand)
    assert {chosen[p.model].tp: len(p.devices) for p in placed if p.model} == {1: 1, 2: 2}
    for p in placed:
        assert p.devices.start // 2 == (p.devices.stop - 1) // 2


def test_cuts_cover_each_node_in_every_way_once() -> None:
    assert list(cuts(2, 2, {1})) == [[range(1), range(1, 2)]]
    found = [[len(mesh) for mesh in cut] for cut in cuts(4, 4, {1, 2})]
    assert sorted(found) == [[1, 1, 1, 1], [2, 1, 1], [2, 2]]
    assert len(list(cuts(16, 8, {1, 2}))) == 15  # five ways for a node, two nodes, order apart


def ways(llms: Sequence[Llm], num_meshes: int) -> Iterator[list[list[Llm]]]:
    for choice in product(range(num_meshes), repeat=len(llms)):
        yield [
            [llm for llm, at in zip(llms, choice, strict=True) if at == m]
            for m in range(num_meshes)
        ]


@examples(30)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(SPECS)), st.sampled_from([0.05, 0.5, 4.0])),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 2),
)
def test_greedy_places_all_models_with_at_least_four_fifths_of_the_best_throughput(
    chosen: list[tuple[str, float]], num_devices: int
) -> None:
    """Greedy may miss a placement or a little throughput; it never claims what is not there."""
    budget = Budget(CONFIG.memory, H100.memory_bytes, 1.0)
    estimator = ThroughputEstimator(profile_of(H100), CONFIG.estimate)
    placer = Placer(estimator, budget, CONFIG.estimate.max_num_seqs, 1.2)
    llms = [
        Llm(f"{name}-{i}", replace(SPECS[name], seed=i), rate)
        for i, (name, rate) in enumerate(chosen)
    ]
    found = placer.best(llms, num_devices, 8)
    others = [
        sum(mesh.served_per_s for mesh in meshes)
        for way in ways(llms, num_devices)
        if (meshes := meshes_of(placer, way)) is not None
    ]
    if found is None:
        assert not others or len({llm.spec.name for llm in llms}) > 1
        return
    served = sum(mesh.served_per_s for mesh in found)
    assert {llm.name for mesh in found for llm in mesh.llms} == {llm.name for llm in llms}
    assert 0.8 * max(others) <= served <= sum(llm.rate_per_s for llm in llms) + 1e-9


def meshes_of(placer: Placer, way: Sequence[Sequence[Llm]]) -> list[PlacedMesh] | None:
    meshes = []
    for device, llms in enumerate(way):
        mesh: PlacedMesh | None = PlacedMesh(range(device, device + 1))
        for llm in sorted(llms, key=lambda llm: (-llm.computation, -llm.scale)):
            mesh = placer._with(mesh, llm) if mesh else None
        if mesh is None:
            return None
        meshes.append(mesh)
    return meshes


def test_engines_that_cannot_divide_a_device_say_so() -> None:
    with pytest.raises(UsageError, match="choose engine=sim"):
        resident_models(place(models("qwen2.5-7b"), 1))
