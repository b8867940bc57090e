from __future__ import annotations

import sys
from contextlib import ExitStack

import pytest

from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.engine.config import TorchConfig
from harness.engine.ray_launcher import ray_launcher
from harness.errors import UsageError
from tests.running import composed


def test_without_ray_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with ExitStack() as stack, pytest.raises(UsageError, match=r"pip install '\.\[cluster\]'"):
        ray_launcher(stack, 3)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["+engine.cluster=slurm"], "engine.cluster=slurm"),
        (["+engine.cluster=ray"], "engine.device=auto; valid: cpu"),
        (["+engine.cluster=ray", "engine.device=cpu"], "needs engine.num_threads"),
    ],
)
def test_what_a_cluster_cannot_have_is_refused(words: list[str], says: str) -> None:
    values = plain(composed("engine=torch", *words).engine)
    del values["_target_"]
    with pytest.raises(UsageError, match=says):
        typed(values, TorchConfig, "engine")
