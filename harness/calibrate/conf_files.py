"""Writes calibrations as YAML that Hydra composes into `hardware.calibration`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from harness.calibrate.fit import Law
from harness.calibrate.profiles import Cells
from harness.calibrate.tables import page
from harness.cost.hardware import Calibration, StepCoefficients, pair_key
from harness.files import write_text

TEMPLATES = Path(__file__).with_name("templates")
# Devices that are another's chip: its shares of the peaks hold, its pairs only where the memory
# is the same too.
SAME_CHIP = {"a800_sxm": "a100_sxm", "a100_pcie": "a100_sxm"}
SAME_MEMORY = ("a800_sxm",)
UNMEASURED = "unmeasured"


def calibrations(
    law: Law, pairs: Sequence[tuple[Cells, StepCoefficients]]
) -> dict[str, Calibration]:
    """What each file of conf/hardware/calibration holds."""
    found = {UNMEASURED: law.mean}
    for device, calibration in law.devices.items():
        own = {pair_key(c.model, c.tp): terms for c, terms in pairs if c.device == device}
        found[device] = replace(calibration, measured=own)
    for device, chip in SAME_CHIP.items():
        if chip in found:
            kept = found[chip].measured if device in SAME_MEMORY else {}
            found[device] = replace(found[chip], measured=kept)
    return found


def write_calibrations(directory: Path, found: Mapping[str, Calibration]) -> list[Path]:
    return [
        write_yaml(
            directory / f"{device}.yaml",
            asdict(calibration),
            "calibration.yaml",
            device=device,
            chip=SAME_CHIP.get(device),
            is_mean=device == UNMEASURED,
        )
        for device, calibration in found.items()
    ]


def write_yaml(path: Path, node: Mapping[str, Any], template: str, **told: Any) -> Path:
    """`told`: what the comments of `template` say. Returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page(TEMPLATES / template, values=yaml_text(node), **told))
    return path


class Plain(yaml.SafeDumper):
    """Four significant digits, and lists on one line."""


def _number(plain: Plain, value: float) -> yaml.Node:
    """YAML reads 1e-05 as a string: an exponent needs a point before it."""
    short = f"{value:.4g}"
    if "e" in short and "." not in short:
        short = short.replace("e", ".0e")
    kind = "int" if short.lstrip("-").isdigit() else "float"
    return plain.represent_scalar(f"tag:yaml.org,2002:{kind}", short)


Plain.add_representer(float, _number)
Plain.add_representer(
    list, lambda plain, value: plain.represent_sequence("tag:yaml.org,2002:seq", value, True)
)


def yaml_text(node: Mapping[str, Any]) -> str:
    return yaml.dump(node, Dumper=Plain, sort_keys=False, allow_unicode=True, width=10**6)
