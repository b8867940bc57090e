"""FlexGen's way on real workers: prompts whose KV is larger than the device's, streamed by layer
from swap space. Tokens are those of an undisturbed run."""

from __future__ import annotations

import pytest

from tests.aqua import Asked, serve, system, transferred_bytes
from tests.elastic import check, generated, private, undisturbed
from tests.running import hardware_profile

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]

LONG = [Asked(0.0, 400, 12, "consumer"), Asked(0.0, 390, 5, "consumer")]
COPIES_FIRST = "system.consumer.overlap=false"
LONGER = [Asked(0.0, 700, 12, "consumer")]
NEIGHBOUR = ("system.swap_space=neighbour", "system.lender.free_share=0.9")
CASES = {  # blocks of 16 tokens of each device
    "DRAM": (24, (), LONG, False, "DRAM"),
    "neighbour, no overlap": (64, (*NEIGHBOUR, COPIES_FIRST), LONGER, False, "lease"),
    "dead lender": (64, NEIGHBOUR, LONGER, True, "lease"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_prompts_that_stream_keep_their_tokens(case: str) -> None:
    blocks, overrides, asked, dies, place = CASES[case]
    paced = hardware_profile("local_paced")
    with private("torch", 2, kv_blocks=blocks, on=paced, paced=True) as made:
        consumer = made.instances[0]
        room = consumer.kv.num_blocks * consumer.kv.block_tokens

        async def kill() -> None:
            while not transferred_bytes(made, "stream in, lease"):
                await made.loop.sleep(0.001)
            made.cluster.kill(made.instances[1])

        aqua = system(made, "flexgen", *overrides)
        serve(made, aqua, asked, beside=kill if dies else None)
        tokens = generated(made)
        assert not consumer.kv.held
    # A lease is a part of a device of the same size: it has no room for more than a device.
    assert all(request.prompt_tokens > room for request in made.requests) == (place == "DRAM")
    assert {record.status for record in made.recorder.records.values()} == {"completed"}
    assert tokens == undisturbed(made)
    assert transferred_bytes(made, f"stream in, {place}") > 0
    assert transferred_bytes(made, f"stream out, {place}") > 0
    if not dies:
        check(made)
