"""The model and hardware that driver tests run with: those of conf/, read as a run reads them."""

from __future__ import annotations

from tests.running import hardware_profile, model_spec

TINY = model_spec("tiny-llama")
HARDWARE = hardware_profile("local")
