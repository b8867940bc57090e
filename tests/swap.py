"""vLLM with KV swap on a test bed, on any engine."""

from __future__ import annotations

from harness.request import Request
from harness.running.testbed import Bed
from systems.baselines.swap import SwapConfig, SwapReplica
from systems.serving.iteration import Limits

LIMITS = Limits(
    max_num_seqs=256, max_num_batched_tokens=2048, enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
)  # fmt: skip


def serve(bed: Bed, lengths: list[tuple[int, int]], config: SwapConfig) -> list[Request]:
    """All of them at once, (prompt, output) tokens, on the bed's first instance, to their ends."""
    instance = bed.instances[0]
    replica = SwapReplica(instance, bed.cluster, bed.loop, LIMITS, config)
    requests = [bed.request(*each) for each in lengths]

    async def main() -> None:
        bed.loop.spawn(replica.serve(), name="replica")
        for request in requests:
            replica.submit(request)
        limit_s = bed.loop.now + 60
        while not all(request.finished for request in requests):
            assert bed.loop.now < limit_s, "some requests never end"
            await bed.loop.sleep(0.01)

    bed.run(main())
    return requests


def swaps(bed: Bed) -> dict[str, list[int]]:
    """Requests swapped out and in, in their order."""
    moves = [event["fields"] for event in bed.recorder.events if event["kind"] == "kv_move"]
    return {
        way: [move["requests"][0] for move in moves if move["purpose"] == f"swap {way}"]
        for way in ("out", "in")
    }
