"""`python -m systems.aqua.plugin.lender --coordinator URL --device NAME --bytes N`: a producer that
serves nothing and lends N bytes of its GPU's memory, or of host memory if it sees no GPU, until its
lease or its process is ended.

It stands in for an engine with memory to spare, since vLLM's own KV tensors are private.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from systems.aqua.coordinator.http_client import coordinator_at
from systems.aqua.coordinator.ledger import Refused
from systems.aqua.coordinator.requests import Join, Leave, Offer
from systems.aqua.plugin import region

BEAT_S = 1.0
TIMEOUT_S = 2.0  # of an answer


def serve(url: str, device: str, num_bytes: int, over: threading.Event) -> None:
    """Lends until the lease has ended or `over` is set. Raises OSError or Refused if it cannot
    begin."""
    holder = f"{device}.{os.getpid()}"
    coordinator = coordinator_at(url, TIMEOUT_S)
    lent = region.lend(holder, num_bytes)
    coordinator.make(Join(holder, device))
    coordinator.make(Offer(lent.lease, holder, num_bytes))
    print(f"lease {lent.lease}", flush=True)
    try:
        while not over.wait(BEAT_S):
            try:
                coordinator.heartbeat(holder)
                if lent.lease not in coordinator.leases():
                    break  # reclaimed, and empty
            except OSError as error:
                print(error, file=sys.stderr, flush=True)
    finally:
        lent.end()
        coordinator.make(Leave(holder))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m systems.aqua.plugin.lender", description=__doc__)
    parser.add_argument("--coordinator", required=True, metavar="URL")
    parser.add_argument("--device", required=True, help="of the coordinator's topology")
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--with-parent", action="store_true", help="ends when its stdin closes")
    asked = parser.parse_args(arguments)
    over = threading.Event()

    def end(_: int, __: FrameType | None) -> None:
        sys.exit(0)

    def end_with_parent() -> None:
        sys.stdin.read()
        over.set()

    signal.signal(signal.SIGTERM, end)
    if asked.with_parent:
        threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        serve(asked.coordinator, asked.device, asked.bytes, over)
    except (OSError, Refused, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
