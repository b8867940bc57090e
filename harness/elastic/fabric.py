"""What an engine must do below an `ElasticInstance`, and nothing more: move bytes, and know layers.

`harness.sim.fabric` lets virtual time pass on the links; `harness.engine.fabric` has workers send
real bytes. Which bytes, when and where to is decided above, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from harness.clock import Event
from harness.device.location import Location, Place, members
from harness.errors import UsageError


@dataclass(frozen=True, slots=True)
class Memory:
    """`name`: of the worker or the file behind it, where there is one. `parts`: memories of other
    instances which are one here, device by device; simulated alone."""

    name: str
    place: Place
    parts: tuple[Memory, ...] = ()

    @property
    def owners(self) -> tuple[Memory, ...]:
        """Itself, or its parts: each is of one instance or file."""
        return self.parts or (self,)

    @property
    def node(self) -> int:
        return members(self.place)[0].node

    def part(self, devices: range) -> Memory:
        """This memory on those of its devices, counted from 0; where it has no others, itself.
        UsageError for a part that begins beyond them."""
        size = len(members(self.place))
        if devices.start and devices.stop > size:
            raise UsageError(
                f"devices {devices.start} to {devices.stop - 1} of {self.name}; valid: 0 to "
                f"{size - 1}"
            )
        if len(devices) >= size:
            return self
        part = members(self.place)[devices.start : devices.stop]
        return Memory(self.name, part[0] if len(part) == 1 else part)


class Span(NamedTuple):
    """`num_bytes` bytes, from one memory's offset to another's."""

    source_at: int
    target_at: int
    num_bytes: int


class Sending(NamedTuple):
    """How the bytes of a copy go. `purpose`: what they are for; in simulation copies of different
    purposes share a link, live they take turns. `priority`: higher ones go first, between chunks.
    `issue_s`: the chunks are copies issued one behind another, each so long after the one before,
    of which the latencies overlap; a live engine's take what they take. `stop`: breaks it off."""

    purpose: str
    priority: int = 0
    chunk_bytes: int | None = None
    issue_s: float | None = None
    stop: Event | None = None


class Fabric(Protocol):
    places_matter: bool  # whether `spans` are read: a simulator counts bytes alone
    paced: bool  # whether copies take the time of the hardware profile's links
    on_lost: Callable[[str, str], None]  # set by the cluster: an instance that has died, and why
    on_host_lost: Callable[[int], None]  # the same, before: a node that has failed

    async def copy(
        self, source: Memory, target: Memory, num_bytes: int, spans: Callable[[], Sequence[Span]],
        sending: Sending,
    ) -> bool:  # fmt: skip
        """Moves `num_bytes`, of each device of a group; False where it was broken off. UsageError
        for places without a path between them, InstanceLost where an end dies meanwhile."""

    def kill(self, name: str) -> None:
        """The instance dies, as by SIGKILL; `on_lost` follows once that is noticed."""

    async def stall_links(
        self, devices: Sequence[Location], others: Sequence[Location], for_s: float
    ) -> bool:
        """No byte crosses the own links of `devices` to and from `others` for `for_s`, once the
        message under way has; False: one did. For links that are `paced`."""

    async def load(
        self, source: Memory, target: Memory, layers: Mapping[int, Span],
        arrival: Callable[[int], Event] | None, on_layer: Callable[[int, float], None],
        stop: Event | None,
    ) -> bool:  # fmt: skip
        """Brings the weights of `layers` one after the other, as `copy` does, each once `source`
        has it: `arrival` of an instance is set while a layer is there, None stands for a file.
        `on_layer(layer, start_s)`: batches may use it from now on; its first byte left at
        `start_s`. False: `stop` broke it off; layers that came before stay."""

    async def forget(self, memory: Memory, layers: Sequence[int], *, used: bool) -> None:
        """The bytes of `layers` are zero from now on, and KV pages. `used`: by batches, until now;
        else nothing, or a part of them, had come."""
