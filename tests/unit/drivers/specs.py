"""The model and hardware that driver tests run with: those of conf/, read as a run reads them."""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from harness.cluster import ModelSpec
from harness.config import typed
from harness.hardware import Hardware

CONF = Path(__file__).parents[3] / "conf"
TINY: ModelSpec = typed(OmegaConf.load(CONF / "model/tiny-llama.yaml"), ModelSpec, "model")
HARDWARE: Hardware = typed(OmegaConf.load(CONF / "hardware/local.yaml"), Hardware, "hardware")
