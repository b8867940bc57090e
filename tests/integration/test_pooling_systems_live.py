"""Systems that share instances between models, on real workers: every request's tokens are those
that it gets from a model of its own, whatever was switched, swapped and restarted meanwhile."""

from pathlib import Path

import pytest

from harness.client import Client
from harness.config import build
from harness.options import plain
from harness.placement import pooled
from tests.integration.test_torch_pool import MODELS, dedicated_tokens, requests_for, started
from tests.running import composed

# Alpha down to what Q_MAX allows: every turn is then Q_MAX, and a restart pays off.
LONG_TURNS = ["system.min_alpha=0.001", "system.max_quota_s=0.3"]
STAGES = ("component_reuse", "explicit_memory", "prefetch", "fine_grained_sync")


def scaling(stage: int) -> list[str]:
    """T0 to T3 of Aegaeon's Fig. 7, 8 and 10."""
    on = {"component_reuse": 1, "explicit_memory": 2, "prefetch": 2, "fine_grained_sync": 3}
    return [f"system.scaling.{name}={str(stage >= on[name]).lower()}" for name in STAGES]


CASES = {
    "aegaeon 1+1": (2, ["+system=aegaeon"]),
    "aegaeon 2+2": (4, ["+system=aegaeon"]),
    "aegaeon T1": (2, ["+system=aegaeon", *scaling(1), *LONG_TURNS]),
    "aegaeon T0": (2, ["+system=aegaeon", *scaling(0), *LONG_TURNS]),
    "aegaeon prefill first": (2, ["+system=aegaeon", "system.schedule=prefill_first"]),
    "serverlessllm": (2, ["+system=serverlessllm"]),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[int]]:
    return dedicated_tokens(tmp_path_factory.mktemp("alone"), MODELS)


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_a_model_of_ones_own(
    case: str, alone: dict[int, list[int]], tmp_path: Path
) -> None:
    num_devices, overrides = CASES[case]
    requests = requests_for(MODELS, 3)
    for index, request in enumerate(requests):
        request.arrival_s = 0.03 * index
    with started(tmp_path / "run", MODELS, pooled, requests, num_devices) as (experiment, _, c):
        node = composed(*overrides, "+workload=burstgpt").system
        loop, recorder = experiment.loop, experiment.recorder
        system = build(plain(node), "system", loop=loop, cluster=c)
        client = Client(Client.Config(drain_s=60.0), loop=loop, recorder=recorder, system=system)

        async def main() -> None:
            loop.spawn(system.serve(), name="system")
            await client.play(requests)

        loop.run(main())
        made = dict(c.pool[0]._device.tokens)  # type: ignore[attr-defined]
    assert made == alone
    assert all(request.finished for request in requests)
    switches = [event for event in recorder.events if event["kind"] == "switch"]
    assert len(switches) > num_devices, "models took turns"
