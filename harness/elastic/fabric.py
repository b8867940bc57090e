"""What an engine must do below an `ElasticInstance`, and nothing more: move bytes, and know layers.

`harness.sim.fabric` lets virtual time pass on the links; `harness.engine.fabric` has workers send
real bytes. Which bytes, when and where to is decided above, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from harness.clock import Event
from harness.device.location import Location

Place = Location | tuple[Location, ...]  # a tuple: the devices of a tensor-parallel group


@dataclass(frozen=True, slots=True)
class Memory:
    """`name`: of the worker or the file behind it, where there is one."""

    name: str
    place: Place

    @property
    def node(self) -> int:
        return self.place.node if isinstance(self.place, Location) else self.place[0].node


class Span(NamedTuple):
    """`num_bytes` bytes, from one memory's offset to another's."""

    source_at: int
    target_at: int
    num_bytes: int


class Fabric(Protocol):
    places_matter: bool  # whether `spans` are read: a simulator counts bytes alone
    on_lost: Callable[[str, str], None]  # set by the cluster: an instance that has died, and why

    async def copy(
        self,
        source: Memory,
        target: Memory,
        num_bytes: int,
        spans: Callable[[], Sequence[Span]],
        *,
        purpose: str,
        priority: int = 0,
        chunk_bytes: int | None = None,
        issue_s: float | None = None,
        stop: Event | None = None,
    ) -> bool:
        """Moves `num_bytes`, of each device of a group; False where `stop` broke it off. Higher
        priorities go first, between chunks. `issue_s`: the chunks are copies issued one behind
        another, each so long after the one before, of which the latencies overlap; a live engine's
        take what they take. UsageError for places without a path between them, InstanceLost where
        an end dies meanwhile."""
        ...

    def kill(self, name: str) -> None:
        """The instance dies, as by SIGKILL; `on_lost` follows once that is noticed."""
        ...

    async def load(
        self,
        source: Memory,
        target: Memory,
        layers: Mapping[int, Span],
        *,
        arrival: Callable[[int], Event] | None,
        on_layer: Callable[[int, float], None],
        priority: int = 0,
        chunk_bytes: int | None = None,
        stop: Event | None = None,
    ) -> bool:
        """Brings the weights of `layers` one after the other, as `copy` does, each once `source`
        has it: `arrival` of an instance is set while a layer is there, None stands for a file.
        `on_layer(layer, start_s)`: batches may use it from now on; its first byte left at
        `start_s`. False: `stop` broke it off; layers that came before stay."""
        ...

    async def forget(self, memory: Memory, layers: Sequence[int], *, used: bool) -> None:
        """The bytes of `layers` are zero from now on, and KV pages. `used`: by batches, until now;
        else nothing, or a part of them, had come."""
        ...
