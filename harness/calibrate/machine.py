"""What a profile of this machine holds besides the iteration times of one model.

Of a CPU the peaks are measured here. Of a GPU they are its datasheet's, as are its links: they come
from a profile that the user names, for numpy measures the host. The models of one GPU are measured
one after the other into one file; a CPU's file is written anew, as nothing in it says which CPU.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from timeit import repeat

import numpy as np
import pandas as pd
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from harness.calibrate import zoo
from harness.calibrate.conf_files import TEMPLATES, yaml_text
from harness.calibrate.profiles import Cells
from harness.calibrate.tables import page
from harness.configuration.config import typed
from harness.cost.hardware import Hardware, StepCoefficients
from harness.cost.terms import decode_s, prefill_s
from harness.errors import UsageError
from harness.model_spec import ModelSpec

CPU = "cpu"
MODEL_LINE = "# engine=torch ("  # the first of a measured model's comment lines


def base(name: str | None) -> Hardware:
    """The profile that lends what is not measured: hardware=`name`, or without one this CPU's."""
    if name is None:
        return zoo.hardware("local")
    profiles = zoo.names("hardware")
    if name in profiles and (found := zoo.hardware(name)).device != CPU:
        return found
    gpus = ", ".join(known for known in profiles if zoo.hardware(known).device != CPU)
    raise UsageError(f"--hardware {name} is not a GPU's profile; valid: {gpus}")


def check_device(profile: Hardware, device: str) -> None:
    """UsageError where the constants of `profile` are not those of `device`, as an engine names it:
    cpu, or e.g. NVIDIA H100 80GB HBM3."""
    chip = profile.device.split("-")[0]
    if device == CPU and profile.device != CPU:
        raise UsageError(
            f"--hardware {profile.name} is {profile.device}, but the engine runs on this machine's "
            "cpu: leave --hardware out"
        )
    if device != CPU and profile.device == CPU:
        raise UsageError(
            f"the engine runs on {device}, whose peaks and links cannot be measured here: name its "
            "profile with --hardware, e.g. --hardware h100x1"
        )
    if chip not in re.findall(r"\w+", device):
        raise UsageError(
            f"--hardware {profile.name} is {profile.device}, but the engine runs on {device}"
        )


def kept(out: Path, profile: Hardware) -> Mapping[str, StepCoefficients]:
    """The measured pairs of the same GPU in `out`; of a CPU none, as nothing says which it was."""
    if profile.device == CPU or not out.exists():
        return {}
    try:
        found = typed(zoo.node(out.absolute()), Hardware, str(out))
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise UsageError(f"--out {out} is there and is no measured profile of a GPU") from error
    if found.device != profile.device:
        raise UsageError(
            f"--out {out} holds measurements of {found.device}, not of {profile.device}: name "
            "another file"
        )
    return found.calibration.measured


def peaks() -> tuple[float, float]:
    """(float32 FLOP/s, bytes/s copied) of this machine's CPU, best of several."""
    side, copied = 1024, np.ones(1 << 26, np.uint8)
    square, target = np.ones((side, side), np.float32), np.empty_like(copied)
    product_s = min(repeat(lambda: square @ square, number=1, repeat=10))
    copy_s = min(repeat(lambda: np.copyto(target, copied), number=1, repeat=10))
    return 2 * side**3 / product_s, 2 * copied.nbytes / copy_s


def as_cells(spec: ModelSpec, terms: StepCoefficients, grid: list[tuple[int, int]]) -> Cells:
    """What `terms` say of a grid of (length, batch), for the law to learn from."""
    length, batch = np.array(grid, float).T
    empty = Cells(spec.name, "local", spec.tp, length, batch, length, length)
    return replace(
        empty,
        prefill_s=prefill_s(terms, empty.tokens, empty.query_key_pairs, batch),
        decode_s=decode_s(terms, batch, empty.context_tokens),
    )


def profile_yaml(measured: Hardware, origin: Hardware, models: Sequence[str]) -> str:
    """The file's text; `origin` lent what was not measured, `models` are comments on those that
    were."""
    own = measured.device == CPU
    source = "measured" if own else f"{origin.source}; calibration measured"
    return page(
        TEMPLATES / "local.yaml",
        device=measured.device,
        origin=origin,
        models=models,
        values=yaml_text(asdict(replace(measured, source=source))),
    )


def earlier_comments(out: Path, spec: ModelSpec) -> list[str]:
    """The lines of `out` on the models that were measured into it before, but `spec`."""
    lines, keep = [], False
    for line in out.read_text().splitlines():
        if line.startswith(MODEL_LINE):
            keep = f" with {spec.name}, " not in line
        keep = keep and line.startswith("#")
        lines += [line] if keep else []
    return lines


def measured_on(device: str = CPU) -> str:
    processor = platform.processor() or platform.machine()
    cores = f"{len(os.sched_getaffinity(0))} cores of {processor}"
    where = cores if device == CPU else f"{device} beside {cores}"
    return f"{where}, {datetime.now(UTC):%Y-%m-%d}"


def score_lines(score: pd.DataFrame, what: str) -> list[str]:
    """How well `what` were fitted, as comments."""
    return [
        f"# {row.number} {what} of serving {row.executes}: R² {row.r2:.3f}, MAPE "
        f"{row.mape_pct:.1f} %, total time {row.total_pct:+.1f} %."
        for row in score.itertuples(index=False)
    ]
