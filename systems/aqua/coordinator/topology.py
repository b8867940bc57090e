"""The devices that a coordinator knows, and which producer lends to which consumer.

It is static: AQUA-PLACER matches producers and consumers before models start (sections 5 and 6).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UsageError


@dataclass(slots=True, frozen=True)
class Device:
    node: int
    memory_bytes: int


@dataclass(slots=True, frozen=True)
class Topology:
    """Devices by name, and pairs of devices.

    Raises UsageError unless each pair is in one node (scale-up domain) and names known devices, and
    each device is in one pair at most: one producer to one consumer (section 5).
    """

    devices: Mapping[str, Device]
    pairs: Mapping[str, str]  # {consumer: producer}

    def __post_init__(self) -> None:
        for name, device in self.devices.items():
            if device.memory_bytes < 1:
                raise UsageError(
                    f"device {name}: memory_bytes={device.memory_bytes}; valid: at least 1"
                )
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

    Raises UsageError for any other content.
    """
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"topology {path} cannot be read: {error}") from error
    if not isinstance(content, dict) or set(content) != {"devices", "pairs"}:
        raise UsageError(f"topology {path}: valid keys: devices, pairs")
    devices, pairs = content["devices"], content["pairs"]
    if not isinstance(devices, dict) or not isinstance(pairs, dict):
        raise UsageError(f"topology {path}: devices and pairs are objects by device name")
    for consumer, producer in pairs.items():
        if not isinstance(producer, str):
            raise UsageError(f"the producer of {consumer} is {producer!r}; valid: a device's name")
    return Topology({name: _device(name, each) for name, each in devices.items()}, pairs)


def _device(name: str, values: Any) -> Device:
    if not isinstance(values, dict) or set(values) != {"node", "memory_bytes"}:
        raise UsageError(f"device {name}: valid keys: node, memory_bytes")
    for key, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise UsageError(f"device {name}: {key}={value!r}; valid: a whole number, at least 0")
    return Device(**values)
