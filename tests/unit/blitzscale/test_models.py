"""Several models in a run share GPUs, network and parameter pool; each has its own policy."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest

from harness.elastic.device_layout import weight_bytes
from harness.request import Request
from systems.blitzscale.instances import State
from systems.blitzscale.system import served
from tests.running import hardware_profile, model_spec
from tests.serving_elastic import Served, burst, serve

MODELS = {"a": "tiny-llama", "b": "tiny-llama-wide", "c": "tiny-llama-deep"}
EIGHT = replace(hardware_profile("local_cluster_x4"), num_devices=8)
NONE = ["system.min_prefills=0", "system.min_decodes=0"]


def asks(model: str, at_s: float, count: int = 8) -> list[Request]:
    return [replace(each, model=model) for each in burst(at_s, count, 300, 6)]


def slots(done: Served) -> list[tuple[str, int, float, float]]:
    """Model, GPU, from when, until when: of each time that a slot was held."""
    found = {s.name: s for each in done.system.services for s in each.fleet.slots}
    return [
        (found[e["instance"]].model, found[e["instance"]].devices[0], e["start_s"], e["end_s"])
        for e in done.events("slot")
    ]


def never_shared(done: Served) -> None:
    for (one, gpu, start, end), (other, at, since, until) in combinations(slots(done), 2):
        if one != other and gpu == at:
            assert end <= since + 1e-9 or until <= start + 1e-9, "a GPU has one model at a time"


@pytest.mark.parametrize("system", ["blitzscale", "blitzscale_serverlessllm", "distserve"])
def test_each_model_is_served_by_instances_of_its_own(system: str) -> None:
    least = ["system.min_prefills=1", "system.min_decodes=1"]
    requests = [each for name in MODELS for each in asks(name, 0.1)]
    done = serve([f"+system={system}", *least], requests, models=MODELS, on=EIGHT)
    assert done.statuses() == {"completed"}
    never_shared(done)
    assert {model for model, *_ in slots(done)} == {
        "tiny-llama", "tiny-llama-wide", "tiny-llama-deep"
    }  # fmt: skip
    assert not any(instance.kv.held for instance in done.bed.instances)


def test_gpus_go_from_a_model_to_the_next() -> None:
    """Four GPUs, three models, none of which has an instance while nobody asks: each burst is
    served on the same GPUs, and the parameters come from the one host copy, never from a disk."""
    requests = asks("a", 0.0) + asks("b", 20.0) + asks("c", 40.0) + asks("a", 60.0)
    seen: list[dict[str, int]] = []
    twice: list[set[str]] = [set()]  # models in a host and in a GPU that keeps them, by look

    def watch(system: Any) -> None:
        async def look() -> None:
            while True:
                pool = system.data_plane.pool
                seen.append(dict(pool.host_copies))
                twice.append({model for model in pool.surplus() if model in seen[-1]})
                await system._loop.sleep(0.5)

        system._loop.spawn(look(), name="look")

    done = serve(["+system=blitzscale", *NONE], requests, models=MODELS, rest_s=10.0, watch=watch)
    assert done.statuses() == {"completed"}
    never_shared(done)
    gpus: dict[str, set[int]] = {}
    for model, gpu, *_ in slots(done):
        gpus.setdefault(model, set()).add(gpu)
    assert set.intersection(*gpus.values())
    sources = {e["fields"]["source"] for e in done.events("load") if e["fields"]["layers"]}
    assert any(source.startswith("dram") for source in sources)
    assert not any(source.startswith("ssd") for source in sources)
    hosts = list(done.system.data_plane.pool.host_copies.values())
    assert len(hosts) == len(set(hosts)) == 3, "at the end all are on hosts, spread evenly"
    assert {len(copies) for copies in seen} >= {2, 3}, "none while a GPU has the model"
    assert not any(one & other for one, other in pairwise(twice)), "dropped by the next look"
    assert not any(s.state for each in done.system.services for s in each.fleet.slots)


def test_all_ask_at_once_with_gpus_for_two() -> None:
    """Whoever is left waits until another model's instances are given back; nothing is lost."""
    requests = [each for name in MODELS for each in asks(name, 0.1)]
    done = serve(["+system=blitzscale", *NONE], requests, models=MODELS, rest_s=5.0)
    assert done.statuses() == {"completed"}
    never_shared(done)


def test_colocated_models_share_gpus_too() -> None:
    requests = [each for name in MODELS for each in asks(name, 0.1)]
    done = serve(["+system=blitzscale_colocated", "system.min_prefills=0"], requests, models=MODELS)
    assert done.statuses() == {"completed"}
    never_shared(done)


def test_two_names_of_one_model_share_a_service() -> None:
    both = {"a": "tiny-llama", "b": "tiny-llama"}
    done = serve(["+system=blitzscale"], asks("a", 0.0) + asks("b", 0.0), models=both)
    assert len(done.system.services) == 1
    assert done.statuses() == {"completed"}


def test_two_checkpoints_of_one_architecture_are_two_models() -> None:
    spec = model_spec("tiny-llama")
    found = served({"a": spec, "b": spec, "c": replace(spec, seed=spec.seed + 1)})
    assert found == {"a": ["a", "b"], "c": ["c"]}


def test_constant_load_of_two_models_moves_no_gpu() -> None:
    steady = [Request(0, 0.4 * i, name, 250, 10) for i in range(40) for name in ("a", "b")]
    two = {name: MODELS[name] for name in ("a", "b")}
    done = serve(["+system=blitzscale", "system.prescaling=false"], steady, models=two)
    assert not [event for event in done.events("load") if event["fields"]["layers"]]
    serving = [s for e in done.system.services for s in e.fleet.slots if s.state]
    assert {slot.state for slot in serving} == {State.SERVING}
    assert len(serving) == 4


def read_from(memory_bytes: int, requests: list[Request]) -> dict[str, list[str]]:
    """Where ServerlessLLM's later loads of each model came from, burst by burst, on one host."""
    on = replace(EIGHT, devices_per_node=8, host_memory_bytes=memory_bytes)
    only = ["+system=blitzscale_serverlessllm", *NONE, "system.prescaling=false"]
    done = serve(only, requests, models=MODELS, on=on, rest_s=10.0)
    assert done.statuses() == {"completed"}
    found = {s.name: s.model for each in done.system.services for s in each.fleet.slots}
    bursts: dict[str, dict[int, set[str]]] = {}
    for event in done.events("load"):
        if event["fields"]["layers"]:
            of_model = bursts.setdefault(found[event["instance"]], {})
            source = event["fields"]["source"].partition("0:")[0]
            of_model.setdefault(int(event["start_s"] // 20), set()).add(source)
    return {
        name: [source for sources in of_model.values() for source in sorted(sources)]
        for name, of_model in bursts.items()
    }


def test_a_full_host_evicts_what_was_used_the_longest_ago() -> None:
    """A host with room for two of three models, asked for `a`, `b`, `c`, `a`, `c`, `b`."""
    order = enumerate("abcacb")
    requests = [each for i, name in order for each in asks(name, 20.0 * i)]
    sizes = sorted(spec.tp * weight_bytes(spec) for spec in map(model_spec, MODELS.values()))
    a, b, c = MODELS.values()
    assert read_from(sum(sizes), requests) == {
        a: ["ssd", "dram"], b: ["ssd", "dram"], c: ["ssd", "dram"]
    }  # fmt: skip
    assert read_from(sum(sizes[1:]), requests) == {
        a: ["ssd", "ssd"], b: ["ssd", "ssd"], c: ["ssd", "dram"]
    }  # fmt: skip


def test_a_model_in_use_stays_in_a_full_host() -> None:
    """While `a` serves, `b` finds no room."""
    steady = [Request(0, 0.4 * i, "a", 250, 10) for i in range(200)]
    requests = steady + asks("b", 20.0) + asks("b", 60.0)
    size = max(spec.tp * weight_bytes(spec) for spec in map(model_spec, MODELS.values()))
    found = read_from(size, requests)
    assert found[MODELS["b"]] == ["ssd", "ssd"]
    assert read_from(2 * size, requests)[MODELS["b"]] == ["ssd", "dram"]
