"""Systems that share instances between models, on real workers: every request's tokens are those
that it gets from a model of its own, whatever was switched, swapped and restarted meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.configuration.config import build
from harness.configuration.options import plain
from harness.model_spec import ModelSpec
from harness.placement import pooled
from harness.records.record import Recorder
from harness.running.client import Client
from systems.aegaeon.store import EmbeddedStore
from tests.integration.test_torch_pool import MODELS, dedicated_tokens, requests_for, started
from tests.running import composed, model_spec

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]

# Alpha down to what Q_MAX allows: every turn is then Q_MAX, and a restart pays off.
LONG_TURNS = ["system.min_alpha=0.001", "system.max_quota_s=0.3"]
# What moves KV and weights, of a device's events. A case shows only what it lists, and all of
# it but what only speed decides: whether a prefetch ends before its model is wanted, and what else
# is under way then.
OF_SPEED = {"prefetch", "adopt", "KV beside weights"}
KV = {"swap_out", "swap_in"}  # requests are cut off, or go from prefill to decode instances
PREFETCHED = {"staged load", "prefetch", "adopt"}
T3 = PREFETCHED | KV | {"KV beside weights"}  # on one device, at one time


def stage(name: str) -> list[str]:
    """T0 to T3 of Aegaeon's Fig. 7, 8 and 10."""
    return ["+system=aegaeon", f"+experiment/aegaeon/stage@_global_={name}"]


# What only policies tell apart (the artifact, prefill first) simulations show.
CASES = {
    "aegaeon 2+2": (4, ["+system=aegaeon"], T3),
    "aegaeon T2": (2, stage("t2"), PREFETCHED | KV),
    "aegaeon T1": (2, [*stage("t1"), *LONG_TURNS], {"pageable load", "collect"} | KV),
    "aegaeon T0": (2, [*stage("t0"), *LONG_TURNS], {"pageable load", "collect", "restart"} | KV),
    "aegaeon decode first": (2, ["+system=aegaeon", "system.schedule=decode_first"], PREFETCHED),
    "serverlessllm": (2, ["+system=serverlessllm"], {"staged load"}),
}


@dataclass
class Served:
    tokens: dict[int, list[int]]
    recorder: Recorder

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.recorder.events if event["kind"] in kinds]

    def moves(self) -> set[str]:
        """As in CASES. A prefetch that was given up is none."""
        loads = {True: "staged load", False: "pageable load"}
        staged = {loads[event["fields"]["staged"]] for event in self.events("load")}
        complete = {"prefetch" for e in self.events("prefetch") if e["fields"]["complete"]}
        others = {e["kind"] for e in self.events("collect", "restart", "adopt", *KV)}
        return staged | complete | others | self._beside()

    def _beside(self) -> set[str]:
        return {
            "KV beside weights"
            for kv in self.events(*KV)
            for weights in self.events("load", "adopt")
            if kv["instance"] == weights["instance"]
            and kv["start_s"] < weights["end_s"]
            and weights["start_s"] < kv["end_s"]
        }


def serve(
    run_dir: Path, num_devices: int, overrides: list[str],
    watch: Callable[[Any], None] = lambda system: None, per_node: int | None = None,
    models: dict[str, ModelSpec] = MODELS,
) -> Served:  # fmt: skip
    """watch: is given the system before anything arrives and after everything has ended."""
    requests = requests_for(models, 3)
    for index, request in enumerate(requests):
        request.arrival_s = 0.03 * index
    with started(run_dir, models, pooled, requests, num_devices, per_node) as live:
        experiment, _, cluster = live
        node = composed(*overrides, "+workload=burstgpt").system
        loop, recorder = experiment.loop, experiment.recorder
        system = build(plain(node), "system", loop=loop, cluster=cluster)
        client = Client(180.0, loop=loop, recorder=recorder, system=system)
        watch(system)

        async def main() -> None:
            loop.spawn(system.serve(), name="system")
            await client.play(requests)

        loop.run(main())
        watch(system)
        device: Any = cluster.pool[0]._device
        return Served(dict(device._run.book.generated), recorder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[int]]:
    return dedicated_tokens(tmp_path_factory.mktemp("alone"), MODELS)


def assert_all_have_their_tokens(served: Served, alone: dict[int, list[int]]) -> None:
    assert {record.status for record in served.recorder.records.values()} == {"completed"}
    assert served.tokens == alone


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_a_model_of_ones_own(
    case: str, alone: dict[int, list[int]], tmp_path: Path
) -> None:
    num_devices, overrides, moves = CASES[case]
    served = serve(tmp_path / "run", num_devices, overrides)
    assert_all_have_their_tokens(served, alone)
    assert len(served.events("switch")) > num_devices, "models took turns"
    assert moves - OF_SPEED <= served.moves() <= moves


def test_models_of_all_families_take_turns(tmp_path: Path) -> None:
    names = ("tiny-llama", "tiny-qwen3", "tiny-mixtral", "tiny-opt")
    models = {name: model_spec(name) for name in names}
    served = serve(tmp_path / "run", 2, stage("t2"), models=models)
    assert_all_have_their_tokens(served, dedicated_tokens(tmp_path / "alone", models))
    assert len(served.events("switch")) > 2, "models took turns"


def test_tokens_are_the_same_where_the_proxy_dies_and_its_store_is_all_that_is_left(
    alone: dict[int, list[int]], tmp_path: Path
) -> None:
    """With requests at instances, one at none, and others to come."""
    store = tmp_path / "store.jsonl"
    stores: list[Any] = []
    served = serve(
        tmp_path / "run", 2,
        ["+system=aegaeon", f"system.store.path={store}", "system.store.restart_at_s=0.2"],
        watch=lambda system: stores.append(system._proxy.store),
    )  # fmt: skip
    assert_all_have_their_tokens(served, alone)
    assert served.moves() >= T3 - OF_SPEED
    before, after = stores
    assert after is not before
    assert EmbeddedStore(store).items() == {}  # nobody was forgotten
