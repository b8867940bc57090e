"""AQUA's slices in vLLM: when its scheduler chooses anew. No engine is made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from systems.aqua.prompt import Prompt

pytestmark = [pytest.mark.vllm]  # vLLM is imported, which takes many seconds

K = 5


def scheduler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plug-in's, above a scheduler of vLLM that knows its settings alone."""
    from vllm.v1.core.sched.scheduler import Scheduler

    from systems.aqua.plugin.connector import AquaConnector
    from systems.aqua.plugin.counters import Counts
    from systems.aqua.plugin.scheduler import AquaScheduler
    from systems.aqua.plugin.settings import Settings

    connector = object.__new__(AquaConnector)
    connector.settings = Settings(slice_iterations=K)
    connector._counts, connector._tokens, connector._slots = Counts(), {}, {}

    def init(self: Any) -> None:
        self.connector, self.requests = connector, dict.fromkeys(range(4))
        self.max_num_scheduled_tokens, self.block_size, self.max_num_active_reqs = 64, 16, 16
        self.kv_cache_config = SimpleNamespace(num_blocks=13)

    monkeypatch.setattr(Scheduler, "__init__", init)
    monkeypatch.setattr(AquaScheduler, "_check", lambda self: None)
    return AquaScheduler()


def test_a_slice_in_vllm_has_k_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four decodes of which two fit: at each choice those with the fewest tokens."""
    made, generated, chosen = scheduler(monkeypatch), dict.fromkeys(range(4), 1), []
    for _ in range(4 * K):
        prompts = {
            each: Prompt(each, each, 64 + tokens, 63 + tokens, tokens, 40)
            for each, tokens in generated.items()
        }
        made._renew(prompts)
        chosen.append(made._slice.members)
        for each in made._slice.members:
            generated[each] += 1
    assert chosen == [(0, 1)] * K + [(2, 3)] * K + [(0, 1)] * K + [(2, 3)] * K
