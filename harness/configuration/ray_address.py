"""Whether anybody answers at the address of a Ray cluster: Ray itself asks for many minutes."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from harness.errors import UsageError

RAY_CLUSTER = "Ray cluster"  # in sentences that say that a run cannot have its nodes
REACH_S = 5.0
# Ray asks who takes its connection and does not answer twenty times, for many minutes.
FEW_TRIES = {"RAY_NUM_REDIS_GET_RETRIES": "2", "RAY_py_gcs_connect_timeout_s": "5"}
VARIABLE, LAUNCHER, KEY = "RAY_ADDRESS", "hydra/launcher=ray", "hydra.launcher.ray.init.address"


def check_address(address: str, named: str) -> None:
    """Raises UsageError where `address`, which `named` gave, has a port and nobody takes a
    connection to it within REACH_S. Has Ray give up sooner in this process."""
    for name, value in FEW_TRIES.items():
        os.environ.setdefault(name, value)
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon:  # as auto
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except (OSError, OverflowError, ValueError) as error:
        raise UsageError(f"no Ray cluster at {named}={address}: {error}") from None


def check_launcher(words: Sequence[str]) -> None:
    """`check_address` of the cluster on which the launcher that `words` name makes runs; nothing
    for launchers other than Ray's, and where that one starts a Ray of its own."""
    if LAUNCHER not in words:
        return
    pairs = [word.lstrip("+").partition("=") for word in words]
    named, address = VARIABLE, os.environ.get(VARIABLE) or "local"
    for key, _, value in pairs:
        if key == KEY and value != "null":
            named, address = KEY, value.strip("'\"")
    if address != "local":
        check_address(address, named)
