"""AQUA's image and audio producers."""

from itertools import pairwise
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from harness.configuration.config import typed
from harness.configuration.options import plain
from systems.aqua.producer import Producer
from tests.running import ROOT

FILES = sorted((ROOT / "conf/producer").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_memory_and_throughput_meet_the_published_point(path: Path) -> None:
    node = OmegaConf.load(path)
    assert isinstance(node, DictConfig)
    producer: Producer = typed(plain(node), Producer, "producer")
    assert producer.name == path.stem
    at_peak = producer.memory_bytes(producer.peak_batch)
    free = producer.device_memory_bytes - at_peak
    assert free == pytest.approx(producer.free_bytes_at_peak)
    assert free > 10e9, "AQUA section 4: a producer has over 10 GB free at its peak"
    assert producer.memory_bytes(0) == producer.weight_bytes
    shares = [producer.throughput_share(b) for b in range(1, 4 * producer.peak_batch)]
    gains = [after - before for before, after in pairwise(shares)]
    assert min(gains) > 0
    assert gains == sorted(gains, reverse=True), "diminishing returns"
    assert shares[producer.peak_batch - 1] == pytest.approx(producer.share_at_peak)


def test_there_are_the_six_that_aqua_names() -> None:
    names = {"audiogen", "kandinsky-2.2", "musicgen", "sd-1.5", "sd-3", "sdxl"}
    assert {path.stem for path in FILES} == names
