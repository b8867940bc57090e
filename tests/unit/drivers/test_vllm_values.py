"""What is read off a vLLM server, and values that none could be started with."""

from __future__ import annotations

from typing import Any

import pytest

from harness.drivers.vllm import VllmEngine, device_names
from harness.errors import UsageError

FIELDS: dict[str, Any] = {
    "num_kv_blocks": None,
    "block_tokens": None,
    "gpu_memory_utilization": 0.9,
    "cpu_kv_cache_bytes": 1 << 20,
    "load_format": "dummy",
    "request_timeout_s": 1.0,
    "start_timeout_s": 1.0,
    "extra_args": [],
    "extra_env": {},
}


@pytest.mark.parametrize(
    ("device", "gpus", "names"),
    [
        ("cpu", None, {"cpu"}),
        ("cpu", "GPU 0: NVIDIA H200", {"cpu"}),
        ("cuda", "GPU 0: NVIDIA H200\nGPU 1: NVIDIA H200", {"NVIDIA H200"}),
        ("cuda", "GPU 0: NVIDIA L40S\nGPU 1: NVIDIA A100", {"NVIDIA A100", "NVIDIA L40S"}),
        ("cuda", "GPU 0: NVIDIA H200\n  MIG 1g.18gb  Device  0: (UUID: x)", {"NVIDIA H200"}),
        ("cuda", None, {"cuda"}),
    ],
)
def test_devices_carry_the_names_that_the_server_reports(
    device: str, gpus: str | None, names: set[str]
) -> None:
    info = {
        "vllm_config": {"device_config": {"device": device}},
        "system_env": {"nvidia_gpu_models": gpus},
    }
    assert device_names(info) == names


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_kv_blocks", 0),
        ("block_tokens", -16),
        ("gpu_memory_utilization", 0.0),
        ("cpu_kv_cache_bytes", 0),
        ("request_timeout_s", -1.0),
        ("start_timeout_s", 0.0),
    ],
)
def test_a_value_that_is_not_above_0_is_refused_by_its_name(key: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"engine.{key}={value:g} must be above 0"):
        VllmEngine(VllmEngine.Config(**FIELDS | {key: value}))
