"""The devices that a coordinator knows, and which producer lends to which consumer.

It is static: AQUA-PLACER matches producers and consumers before models start (sections 5 and 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.configuration.config import typed
from harness.errors import UsageError
from harness.files import read_json


@dataclass(slots=True)
class Device:
    node: int
    memory_bytes: int


@dataclass(slots=True)
class Topology:
    """Devices by name, and pairs of devices.

    Raises UsageError unless each pair is in one node (scale-up domain) and names known devices, and
    each device is in one pair at most: one producer to one consumer (section 5).
    """

    devices: dict[str, Device]
    pairs: dict[str, str]  # {consumer: producer}

    def __post_init__(self) -> None:
        for name, device in self.devices.items():
            for key, least in (("node", 0), ("memory_bytes", 1)):
                if (value := getattr(device, key)) < least:
                    raise UsageError(f"device {name}: {key}={value}; valid: at least {least}")
        paired: set[str] = set()
        for consumer, producer in self.pairs.items():
            for name in (consumer, producer):
                if name not in self.devices:
                    known = ", ".join(sorted(self.devices)) or "none"
                    raise UsageError(f"place {name!r} of a pair is unknown; devices: {known}")
                if name in paired:
                    raise UsageError(
                        f"device {name} is in two pairs: a producer lends to one consumer"
                    )
                paired.add(name)
            nodes = self.devices[consumer].node, self.devices[producer].node
            if nodes[0] != nodes[1]:
                raise UsageError(
                    f"consumer {consumer} is on node {nodes[0]} and its producer {producer} on "
                    f"node {nodes[1]}: memory is lent within a node"
                )


def read_topology(path: Path) -> Topology:
    """Reads {"devices": {NAME: {"node": 0, "memory_bytes": N}}, "pairs": {CONSUMER: PRODUCER}}.

    Raises UsageError for content that is no such thing.
    """
    return typed(read_json(path), Topology, f"topology {path}")
