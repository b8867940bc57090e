"""Requests and a profile with round numbers."""

from __future__ import annotations

from harness.model_spec import ModelSpec
from harness.request import Request
from tests.running import model_spec

TINY = model_spec("tiny-llama")
MODELS = dict.fromkeys("ABC", TINY)


def requests(models: str, *, prompt: int = 10, output: int = 10) -> list[Request]:
    """One request for each letter, numbered in order."""
    return [Request(i, 0.0, model, prompt, output) for i, model in enumerate(models)]


class RoundProfile:
    """A millisecond for each prompt token and each decode step."""

    pcie_peak_bytes_per_s = 10e9
    pcie_bytes_per_s = 10e9
    ssd_bytes_per_s = 1e9

    def prefill_s(self, model: ModelSpec, prompt_tokens: int) -> float:
        return prompt_tokens / 1000

    def decode_step_s(self, model: ModelSpec, num_requests: int, context_tokens: int) -> float:
        return 0.001
