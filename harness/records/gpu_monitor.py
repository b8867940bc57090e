"""GPU memory, utilisation, power and energy while a run lasts, read from NVML in a thread.

A machine without an NVIDIA driver has none of it: `devices` and `summary` say so once, with an
empty list and None. Reads every GPU of the machine, whoever uses it.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pynvml

from harness.cost.hardware import Hardware
from harness.errors import UsageError

INTERVAL_S = 0.5


def devices() -> list[dict[str, Any]]:
    """name, memory_bytes and driver of each GPU; empty without an NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [
            {
                "name": pynvml.nvmlDeviceGetName(handle),
                "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                "driver": pynvml.nvmlSystemGetDriverVersion(),
            }
            for handle in _handles()
        ]
    finally:
        pynvml.nvmlShutdown()


def require_gpu(hardware: Hardware, engine: str, *, on_cpu: bool = False) -> None:
    """UsageError where a GPU's profile was chosen and the engine will run on a CPU: its figures
    would carry the GPU's name."""
    if hardware.device != "cpu" and (on_cpu or not devices()):
        raise UsageError(
            f"hardware={hardware.name} is {hardware.device}, but engine={engine} runs on this "
            "machine's cpu: choose hardware=local (or engine=sim)"
        )


class GpuMonitor:
    """Samples between `with` and its end; a row is taken at once and then each INTERVAL_S."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []  # time_s since the start, gpu, and the readings
        self._energy_j: list[float | None] | None = None  # per GPU, None: cannot tell
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> GpuMonitor:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return self
        self._handles = _handles()
        self._started_s = time.monotonic()
        self._start_j = [_energy_j(handle) for handle in self._handles]
        self._thread = threading.Thread(target=self._sample, name="gpu-monitor", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join()
        end_j = [_energy_j(handle) for handle in self._handles]
        self._energy_j = [
            None if before is None or after is None else after - before
            for before, after in zip(self._start_j, end_j, strict=True)
        ]
        pynvml.nvmlShutdown()

    def summary(self) -> dict[str, Any] | None:
        """Sums up after the run: peak memory, mean utilisation and power, energy, per GPU. None: no
        GPU."""
        if self._energy_j is None:
            return None
        return {
            "interval_s": INTERVAL_S,
            "gpus": [self._of_gpu(gpu, energy_j) for gpu, energy_j in enumerate(self._energy_j)],
        }

    def _of_gpu(self, gpu: int, energy_j: float | None) -> dict[str, Any]:
        rows = [row for row in self.rows if row["gpu"] == gpu]
        return {
            "peak_memory_bytes": max(row["memory_bytes"] for row in rows),
            "mean_utilisation": _mean([row["utilisation"] for row in rows]),
            "mean_power_w": _mean([row["power_w"] for row in rows]),
            "energy_j": energy_j,
        }

    def _sample(self) -> None:
        while True:
            time_s = time.monotonic() - self._started_s
            self.rows += [
                {"time_s": time_s, "gpu": gpu} | _readings(handle)
                for gpu, handle in enumerate(self._handles)
            ]
            if self._stop.wait(INTERVAL_S):
                return


def _handles() -> list[Any]:
    return [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]


def _readings(handle: Any) -> dict[str, Any]:
    return {
        "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).used),
        "utilisation": _read(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
        "power_w": _read(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
    }


def _energy_j(handle: Any) -> float | None:
    """The energy a GPU has used since the driver was loaded; Volta and later count it."""
    return _read(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)


def _read(reading: Any) -> float | None:
    """The reading; None where this GPU does not offer it, e.g. utilisation under MIG."""
    try:
        return float(reading())
    except pynvml.NVMLError_NotSupported:
        return None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
