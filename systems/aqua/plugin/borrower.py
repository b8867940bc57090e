"""A consumer's leases: what it has allocated at the coordinator, and which blocks of which region.

In the scheduler's process. Where a lease is full or gone, or the coordinator does not answer, there
is no room, and the page goes to host memory.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from urllib.parse import urlsplit

from systems.aqua.plugin.coordinator_http import CoordinatorHttp, Refused
from systems.aqua.plugin.pages import Slots

logger = logging.getLogger("vllm.aqua")
BEAT_S = 1.0


class Borrower:
    """`device`: the consumer's in the coordinator's topology. Raises ValueError where it cannot
    join."""

    def __init__(self, url: str, device: str, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._holder = f"{device}.{os.getpid()}"
        self._coordinator = CoordinatorHttp(url)
        self._free: dict[str, list[int]] = {}  # by lease, blocks of its region
        self._num_allocated = 0
        self._ending: list[Slots] = []  # read in the iteration that is being made
        self._ended: list[Slots] = []  # read in the one before it
        try:
            self._coordinator.join(self._holder, device)
        except (OSError, Refused) as error:
            raise ValueError(f"no coordinator at {urlsplit(url).netloc}: {error}") from error
        threading.Thread(
            target=self._beat, args=(CoordinatorHttp(url),), name="aqua heartbeat", daemon=True
        ).start()

    def _beat(self, coordinator: CoordinatorHttp) -> None:
        pause = threading.Event()
        while not pause.wait(BEAT_S):
            try:
                coordinator.heartbeat(self._holder)
            except OSError as error:
                logger.warning("%s", error)
            except Refused as error:
                logger.warning("no leases any more: %s", error)
                return

    def allocate(self, num_blocks: int) -> Slots | None:
        """None: no lease has room."""
        self._num_allocated += 1
        name = f"{self._holder}.{self._num_allocated}"
        try:
            lease = self._coordinator.allocate(name, self._holder, num_blocks * self._block_bytes)
            if lease is not None and lease not in self._free:
                offered = self._coordinator.leases()[lease]["offered_bytes"]
                self._free[lease] = list(range(offered // self._block_bytes))
        except (OSError, Refused, KeyError) as error:
            logger.warning("no lease: %s", error)
            return None
        if lease is None:
            return None
        free = self._free[lease]
        blocks, self._free[lease] = free[:num_blocks], free[num_blocks:]
        assert len(blocks) == num_blocks, "the coordinator counts the same blocks"
        return Slots(lease, name, blocks)

    def free_after_reading(self, slots: Slots) -> None:
        """A worker reads them once more, in the iteration that is being made."""
        self._ending.append(slots)

    def free(self, slots: Slots) -> None:
        """Nobody reads them any more."""
        try:
            self._coordinator.free(slots.allocation, self._holder)
        except (OSError, Refused) as error:
            logger.warning("allocation %s: %s", slots.allocation, error)
        if slots.lease in self._free:
            self._free[slots.lease] += slots.blocks

    def next_iteration(self) -> None:
        """The one before has been carried out."""
        for slots in self._ended:
            self.free(slots)
        self._ended, self._ending = self._ending, []

    def unwanted(self, held: Iterable[str]) -> tuple[set[str], set[str]]:
        """Of the leases `held`: those that the producer asks back, and those that are gone with all
        that lay there. None, where the coordinator does not answer."""
        try:
            known = self._coordinator.leases()
        except (OSError, Refused) as error:
            logger.warning("%s", error)
            return set(), set()
        gone = {lease for lease in held if lease not in known}
        for lease in gone:
            self._free.pop(lease, None)
        return {lease for lease in held if lease in known and known[lease]["overdrawn_bytes"]}, gone
