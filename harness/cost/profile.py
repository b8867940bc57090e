"""`harness.cluster.Profile` from a hardware profile's calibration, on every engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.cost.hardware import Hardware
from harness.cost.model import CostModel
from harness.cost.served import EngineCosts, cost_model
from harness.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class TimeScale:
    """What iterations take, over what a hardware profile says."""

    prefill: float = 1.0
    decode: float = 1.0


AS_PROFILED = TimeScale()


class HardwareProfile:
    """time_scale: of a machine that is not as its profile says, by the architecture's name. costs:
    what the engine adds, where it is not the one that was measured."""

    def __init__(
        self,
        hardware: Hardware,
        time_scale: Mapping[str, TimeScale] | None = None,
        costs: EngineCosts | None = None,
    ) -> None:
        self.pcie_peak_bytes_per_s = hardware.pcie_peak_bytes_per_s
        self.pcie_bytes_per_s = hardware.pcie_bytes_per_s
        self.ssd_bytes_per_s = hardware.ssd_bytes_per_s
        self._hardware, self._time_scale, self._engine = hardware, time_scale or {}, costs
        self._costs: dict[tuple[str, int], CostModel] = {}
        self._prefill_s: dict[tuple[str, int, int], float] = {}

    def prefill_s(self, model: ModelSpec, prompt_tokens: int) -> float:
        key = (model.name, model.tp, prompt_tokens)
        if key not in self._prefill_s:  # those that sort queues ask for the same ones again
            time_scale = self._time_scale.get(model.name, AS_PROFILED).prefill
            step_s = self._cost(model).mixed_step([(0, prompt_tokens)], 0, 0)
            self._prefill_s[key] = step_s * time_scale
        return self._prefill_s[key]

    def decode_step_s(self, model: ModelSpec, num_requests: int, context_tokens: int) -> float:
        time_scale = self._time_scale.get(model.name, AS_PROFILED).decode
        return self._cost(model).decode_step(num_requests, context_tokens)[0] * time_scale

    def _cost(self, model: ModelSpec) -> CostModel:
        key = (model.name, model.tp)
        if key not in self._costs:
            self._costs[key] = cost_model(model, self._hardware, self._engine)
        return self._costs[key]
