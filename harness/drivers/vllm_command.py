"""How a vLLM server is asked for: its command line, its environment, its model directory.

Pure but for writing the model's config.json. Flags and variables are those of vLLM 0.32.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.configuration.checkpoint import hf_config, require_family
from harness.engine.host import LOOPBACK
from harness.errors import UsageError
from harness.files import write_text
from harness.model_spec import ModelSpec

# What of a system's values vLLM's own scheduler understands; other keys are not its business.
SCHEDULER_FLAGS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "scheduling_policy",
    "scheduler_cls",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "async_scheduling",
)

ENVIRONMENT = {
    **LOOPBACK,  # else gloo listens at the address of the host's name, of one rank, too
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # /server_info, to read resolved values back; loopback only
    "PYTHONUNBUFFERED": "1",
}


def flag(name: str, value: Any) -> list[str]:
    """`max_num_seqs=64` as `--max-num-seqs 64`; a bool as `--name` or `--no-name`; None as []."""
    dashed = name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    return [f"--{dashed}", str(value)]


def scheduler_flags(scheduler: Mapping[str, Any]) -> list[str]:
    given = [name for name in SCHEDULER_FLAGS if name in scheduler]
    return [word for name in given for word in flag(name, scheduler[name])]


def python_path(first: Path) -> dict[str, str]:
    """The environment of a process that imports from `first`, too."""
    paths = [str(first), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def server_command(port: int, model_flags: Sequence[str], more: Sequence[str]) -> list[str]:
    return [
        sys.executable,
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--host", "127.0.0.1", "--port", str(port)),
        "--disable-uvicorn-access-log",
        *model_flags,
        *more,
    ]


def model_flags(spec: ModelSpec, served_name: str, models_dir: Path, load_format: str) -> list[str]:
    """Serves `spec.path` as it is, or random weights of `spec`'s shape without a tokenizer."""
    flags = ["--served-model-name", served_name, "--dtype", spec.dtype]
    flags += ["--tensor-parallel-size", str(spec.tp), "--seed", str(spec.seed)]
    if spec.path is not None:
        return [*flags, "--model", spec.path]
    require_family(spec, "without a model.path engine=vllm makes")
    directory = models_dir / spec.name
    directory.mkdir(parents=True, exist_ok=True)
    write_text(directory / "config.json", json.dumps(hf_config(spec, None, None), indent=2))
    flags += ["--model", str(directory), "--load-format", load_format]
    return [*flags, "--skip-tokenizer-init"]


def placements(
    num_servers: int, tp: int, environ: Mapping[str, str], beside: int = 0
) -> list[dict[str, str]]:
    """Per server, the variables that give it `tp` devices of its own. Behind them it sees `beside`
    GPUs of nobody, or as many as there are.

    On a GPU machine that is CUDA_VISIBLE_DEVICES, on a CPU machine a share of the cores; the
    other variable is ignored there. One server on a CPU is left to vLLM's own choice of cores.
    """
    wanted = num_servers * tp
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(i) for i in range(wanted + beside)]
    if len(devices) < wanted:
        raise UsageError(
            f"hardware.num_devices asks for {wanted} devices, but CUDA_VISIBLE_DEVICES={visible} "
            f"shows {len(devices)}"
        )
    result = []
    for i in range(num_servers):
        own = devices[i * tp : (i + 1) * tp] + devices[wanted : wanted + beside]
        env = {"CUDA_VISIBLE_DEVICES": ",".join(own)}
        if num_servers > 1 and "VLLM_CPU_OMP_THREADS_BIND" not in environ:
            env |= _cores(i, num_servers, tp)
        result.append(env)
    return result


def _cores(index: int, num_servers: int, tp: int) -> dict[str, str]:
    """Core lists of one server's ranks; unbound threads where there are more ranks than cores.

    A share of two or more leaves its last core to the server's other processes, as vLLM does.
    """
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // (num_servers * tp)
    if share == 0:
        return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    lists = []
    for rank in range(index * tp, (index + 1) * tp):
        own = cores[rank * share : (rank + 1) * share]
        lists.append(",".join(map(str, own[:-1] or own)))
    return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(lists)}
