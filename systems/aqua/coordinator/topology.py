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
class Topology:
    """Devices by name, and pairs of devices.

    Raises UsageError unless each pair is in one node (scale-up domain) and names known devices, and
    each device is in one pair at most: one producer to one consumer (section 5).
    """

    memory_bytes: Mapping[str, int]
    nodes: Mapping[str, int]
    producers: Mapping[str, str]  # {consumer: producer}

    def __post_init__(self) -> None:
        for name, size in self.memory_bytes.items():
            if size < 1:
                raise UsageError(f"device {name}: memory_bytes={size}; valid: at least 1")
        paired: set[str] = set()
        for consumer, producer in self.producers.items():
            for name in (consumer, producer):
                if name not in self.memory_bytes:
                    known = ", ".join(sorted(self.memory_bytes)) or "none"
                    raise UsageError(f"place {name!r} of a pair is unknown; devices: {known}")
                if name in paired:
                    raise UsageError(
                        f"device {name} is in two pairs: a producer lends to one consumer"
                    )
                paired.add(name)
            if self.nodes[consumer] != self.nodes[producer]:
                raise UsageError(
                    f"consumer {consumer} is on node {self.nodes[consumer]} and its producer "
                    f"{producer} on node {self.nodes[producer]}: memory is lent within a node"
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
    for name, device in devices.items():
        _check_device(name, device)
    for consumer, producer in pairs.items():
        if not isinstance(producer, str):
            raise UsageError(f"the producer of {consumer} is {producer!r}; valid: a device's name")
    return Topology(
        {name: device["memory_bytes"] for name, device in devices.items()},
        {name: device["node"] for name, device in devices.items()},
        pairs,
    )


def _check_device(name: str, device: Any) -> None:
    if not isinstance(device, dict) or set(device) != {"node", "memory_bytes"}:
        raise UsageError(f"device {name}: valid keys: node, memory_bytes")
    for key, value in device.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise UsageError(f"device {name}: {key}={value!r}; valid: a whole number, at least 0")
