"""Prefill caching on real workers: the KV of a common prefix comes out of a neighbour's memory."""

from __future__ import annotations

import pytest

from tests.aqua import Asked, serve, system, transferred_bytes
from tests.elastic import check, generated, private, undisturbed
from tests.running import hardware_profile

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]

PREFIX = ((7, 100),)  # a stream with which all tokens are clear
FIRST = [Asked(0.0, 140, 12, "consumer", PREFIX)]
LATER = [Asked(0.01 * i, 108 + 9 * i, 12, "consumer", PREFIX) for i in range(5)]


@pytest.mark.parametrize("place", ["lease", "DRAM"])
def test_tokens_after_a_copied_prefix_are_those_of_an_undisturbed_run(place: str) -> None:
    name = "aqua" if place == "lease" else "vllm_cfs"
    paced = hardware_profile("local_paced")
    with private("torch", 2, kv_blocks=128, page_layers=None, on=paced, paced=True) as made:
        aqua = system(made, name, "system.consumer.prefill_caching=true", "system.copies=gathered")

        def kept() -> bool:
            return transferred_bytes(made, f"prefix out to {place}") > 0

        serve(made, aqua, FIRST, once=kept, later=LATER)
        tokens = generated(made)
        check(made)
    assert [request.cached_tokens for request in made.requests] == [0, *[100] * 5]
    copied = transferred_bytes(made, f"prefix out to {place}")
    assert transferred_bytes(made, f"prefix in from {place}") == 5 * copied
    assert tokens == undisturbed(made)
