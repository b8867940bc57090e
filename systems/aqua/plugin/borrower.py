"""A consumer's leases: its allocations at the coordinator, and its blocks in producers' regions.

It runs in the scheduler's process. With tensor parallelism each rank is a borrower of its own at
the coordinator, with leases of its own (section 9.3: the two shards of Llama-3.1-70B). A request
has room on every rank or on none. If a lease is full or gone, or if the coordinator does not
answer, there is no room, and the page goes to host memory.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from systems.aqua.coordinator.http_client import HttpCoordinator, coordinator_at
from systems.aqua.coordinator.ledger import Refused
from systems.aqua.coordinator.requests import Allocate, Free, Join
from systems.aqua.plugin.pages import Slots

logger = logging.getLogger("vllm.aqua")
BEAT_S = 1.0
TIMEOUT_S = 2.0  # of an answer; an iteration waits for it


class Borrower:
    """The consumer's side of leases.

    devices: each rank's name in the coordinator's topology. block_bytes: of a rank's part of a KV
    block, all layers. Raises ValueError if it cannot join the coordinator.
    """

    def __init__(self, url: str, devices: Sequence[str], block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._holders = [f"{device}.{os.getpid()}" for device in devices]
        self._coordinator = coordinator_at(url, TIMEOUT_S)
        self._free: dict[str, list[int]] = {}  # {lease: free blocks of its region}
        self._num_allocated = 0
        self._ending: list[list[Slots]] = []  # read in the iteration that is being made
        self._ended: list[list[Slots]] = []  # read in the iteration before it
        try:
            for holder, device in zip(self._holders, devices, strict=True):
                self._coordinator.make(Join(holder, device))
        except (OSError, Refused) as error:
            raise ValueError(f"no coordinator at {urlsplit(url).netloc}: {error}") from error
        own = coordinator_at(url, TIMEOUT_S)
        threading.Thread(target=self._beat, args=(own,), name="aqua heartbeat", daemon=True).start()

    def _beat(self, coordinator: HttpCoordinator) -> None:
        pause = threading.Event()
        while not pause.wait(BEAT_S):
            try:
                for holder in self._holders:
                    coordinator.heartbeat(holder)
            except OSError as error:
                logger.warning("%s", error)
            except Refused as error:
                logger.warning("no leases any more: %s", error)
                return

    def allocate(self, num_blocks: int) -> list[Slots] | None:
        """Room for `num_blocks` of every rank, in one lease each; None: some rank has no room."""
        found: list[Slots] = []
        for holder in self._holders:
            if (slots := self._allocate(holder, num_blocks)) is None:
                self.free(found)
                return None
            found.append(slots)
        return found

    def _allocate(self, holder: str, num_blocks: int) -> Slots | None:
        self._num_allocated += 1
        name = f"{holder}.{self._num_allocated}"
        try:
            size = num_blocks * self._block_bytes
            lease = self._coordinator.make(Allocate(name, holder, size))
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

    def free_after_reading(self, slots: list[Slots]) -> None:
        """Frees `slots` after the iteration that is being made, in which workers read them."""
        self._ending.append(slots)

    def free(self, slots: Iterable[Slots]) -> None:
        """Frees `slots`, of the first ranks or of all, now."""
        for holder, each in zip(self._holders, slots, strict=False):
            try:
                self._coordinator.make(Free(each.allocation, holder))
            except (OSError, Refused) as error:
                logger.warning("allocation %s: %s", each.allocation, error)
            if each.lease in self._free:
                # In order, so that neighbours stay together and cross in one copy.
                self._free[each.lease] = sorted(self._free[each.lease] + each.blocks)

    def next_iteration(self) -> None:
        """Tells that a new iteration is being made; the one before has been carried out."""
        for slots in self._ended:
            self.free(slots)
        self._ended, self._ending = self._ending, []

    def unwanted(self, held: Iterable[str]) -> tuple[set[str], set[str]]:
        """(leases that the producer asks back, leases that are gone with their content), of `held`.

        Both are empty if the coordinator does not answer.
        """
        try:
            known = self._coordinator.leases()
        except (OSError, Refused) as error:
            logger.warning("%s", error)
            return set(), set()
        gone = {lease for lease in held if lease not in known}
        for lease in gone:
            self._free.pop(lease, None)
        return {lease for lease in held if lease in known and known[lease]["overdrawn_bytes"]}, gone
