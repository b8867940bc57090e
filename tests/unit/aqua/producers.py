"""The published image and audio producers, from conf/producer."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from harness.configuration.config import typed
from harness.configuration.options import plain
from systems.aqua.producer import Producer
from tests.running import ROOT


def _read() -> list[Producer]:
    found = []
    for path in sorted((ROOT / "conf/producer").glob("*.yaml")):
        node = OmegaConf.load(path)
        assert isinstance(node, DictConfig)
        found.append(typed(plain(node), Producer, "producer"))
    return found


PRODUCERS = _read()
