"""KV swap on a real worker: KV that has been to host memory and back gives the same tokens."""

from __future__ import annotations

import pytest
import torch

from systems.baselines.swap import SwapConfig
from tests.elastic import check, generated, private, undisturbed
from tests.swap import serve, swaps

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]

torch.set_num_threads(1)  # of the undisturbed run, in this process


def test_tokens_are_those_of_an_undisturbed_run() -> None:
    with private("torch", 1, kv_blocks=14) as bed:
        config = SwapConfig(requests=2, bytes=2**20, host_bytes=2**24)
        serve(bed, [(40, 60), (50, 60), (60, 40), (30, 70)], config)
        assert swaps(bed)["out"]
        check(bed)
        assert generated(bed) == undisturbed(bed)
