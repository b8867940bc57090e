"""engine=none: wall time and no device, for measuring the harness by itself (+system=null)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from harness.clock import Loop, WallLoop
from harness.cluster import Cluster
from harness.engine_api import Experiment


class NoEngine:
    name = "none"
    has_devices = False
    devices_known = True

    @dataclass(kw_only=True, slots=True)
    class Config:
        pass

    def __init__(self, config: Config) -> None:
        del config  # has no fields

    def make_loop(self) -> Loop:
        return WallLoop()

    @contextmanager
    def start(self, experiment: Experiment) -> Iterator[Cluster]:
        yield experiment.cluster()

    def resolved(self) -> Mapping[str, Any]:
        return {}
