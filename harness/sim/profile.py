"""`harness.cluster.Profile` from a hardware profile's calibration, in every world."""

from __future__ import annotations

from harness.cluster import ModelSpec
from harness.hardware import Hardware
from harness.sim.cost import CostModel


class HardwareProfile:
    def __init__(self, hardware: Hardware) -> None:
        self.pcie_peak_bytes_per_s = hardware.pcie_peak_bytes_per_s
        self.pcie_bytes_per_s = hardware.pcie_bytes_per_s
        self.ssd_bytes_per_s = hardware.ssd_bytes_per_s
        self._hardware = hardware
        self._costs: dict[tuple[str, int], CostModel] = {}
        self._prefill_s: dict[tuple[str, int, int], float] = {}

    def prefill_s(self, model: ModelSpec, prompt_tokens: int) -> float:
        key = (model.name, model.tp, prompt_tokens)
        if key not in self._prefill_s:  # those that sort queues ask for the same ones again
            self._prefill_s[key] = self._cost(model).mixed_step([(0, prompt_tokens)], 0, 0)
        return self._prefill_s[key]

    def decode_step_s(self, model: ModelSpec, num_requests: int, context_tokens: int) -> float:
        return self._cost(model).decode_step(num_requests, context_tokens)[0]

    def _cost(self, model: ModelSpec) -> CostModel:
        key = (model.name, model.tp)
        if key not in self._costs:
            self._costs[key] = CostModel(model, self._hardware)
        return self._costs[key]
