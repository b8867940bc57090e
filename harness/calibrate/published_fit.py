"""Fits silicon and engine costs to published measurements, writes conf/ and the page on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from harness.calibrate import kernel_profiles
from harness.calibrate.conf_files import write_yaml
from harness.calibrate.published import offline_batches, prefills, served_points
from harness.calibrate.silicon import CHIPS, EAGER, KNOTS, V1, Fitted, Rows, fit
from harness.cost.hardware import Silicon
from harness.cost.served import EngineCosts

# The part of the end-to-end points that is fitted: loads below saturation, of these sets.
FITTED_SETS = ("kubecon", "kubecon_prefix", "trainval13")
DATASHEET, LIKE = "datasheet", {"h200": "h100"}  # the same chip with other memory
UNMEASURED = "unmeasured"


@dataclass(frozen=True)
class Measurements:
    """What is fitted, by kind; `served` has all points, `fitted` says which of them are used."""

    offline: pd.DataFrame
    prefill: pd.DataFrame
    served: pd.DataFrame

    @property
    def fitted(self) -> pd.Series:
        below = self.served.capacity_per_s.isna()
        found: pd.Series = self.served.set.isin(FITTED_SETS) & below
        return found

    def only(self, column: str, value: str) -> Measurements:
        """The measurements of one model, on any device, or of one chip, of any model."""
        tables = self.offline, self.prefill, self.served
        return Measurements(*(table[table[column] == value] for table in tables))

    def without(self, column: str, value: str) -> Measurements:
        tables = self.offline, self.prefill, self.served
        return Measurements(*(table[table[column] != value] for table in tables))

    def rows(self) -> list[Rows]:
        """The measurements that are fitted, by kind, device and engine."""
        served = self.served[self.fitted]
        kinds = {"offline": self.offline, "prefill": self.prefill, "served": served}
        return [
            Rows(kind, table.chip.iloc[0], table.engine.iloc[0], table)
            for kind, tables in kinds.items()
            for _, table in tables.groupby(["device", "engine"])
        ]


def read(published: Path | None, profiles: Path | None) -> Measurements:
    prefill = prefills(profiles)
    prefill = prefill[prefill.device.isin(CHIPS)].assign(engine=EAGER)
    served = served_points(published)
    served = served.assign(device=served.gpu, engine=V1)
    tables = offline_batches(published), prefill, served
    return Measurements(*(table.assign(chip=table.device.map(CHIPS)) for table in tables))


def silicons(fitted: Fitted, published: Path | None) -> dict[str, Silicon]:
    """What each file of conf/hardware/silicon holds."""
    found = {chip: fitted.silicon(chip) for chip in fitted.chips}
    for device in kernel_profiles.BOARDS:
        found[device] = kernel_profiles.silicon(device, kernel_profiles.read(device, published))
    mean = mean_of(list(found.values()))
    found |= {name: replace(found[chip], basis=DATASHEET) for name, chip in LIKE.items()}
    return found | {UNMEASURED: mean}


def mean_of(parts: Sequence[Silicon]) -> Silicon:
    """Geometric means, for devices that nobody measured."""
    knots = np.log(KNOTS)
    shares = [
        np.interp(knots, np.log(one.products_tokens), np.log(one.products_efficiency))
        for one in parts
    ]
    single = pd.DataFrame(list(parts)).select_dtypes(float)
    return Silicon(
        basis=DATASHEET,
        products_tokens=list(KNOTS),
        products_efficiency=np.exp(np.mean(shares, axis=0)).tolist(),
        **np.exp(np.log(single).mean()).to_dict(),
    )


def path_s(fitted: Fitted, served: pd.DataFrame) -> float:
    """The API's and the client's part of TTFT, from one point: inference-perf's lone requests to
    Llama-3.1-8B on an H100, at 1 request/s without prefix caching. Beyond the prefill, and half an
    iteration where another request was running."""
    point = served[(served.set == "kubecon") & (served.stage == 0)]
    point = point.assign(input_len=point.prompt_tokens, batch=1, prefill_s=point.ttft_mean_s)
    prompt = Rows("prefill", CHIPS["h100_sxm"], V1, point)
    busy = float((point.rate_per_s * point.e2e_mean_s).iloc[0])
    waited_s = busy * float(point.tpot_mean_s.iloc[0]) / 2
    return float(point.ttft_mean_s.iloc[0] - prompt.predicted_s(fitted)[0] - waited_s)


def write_conf(
    silicon_folder: Path, engine_folder: Path, found: dict[str, Silicon], costs: EngineCosts
) -> list[Path]:
    written = [
        write_yaml(
            silicon_folder / f"{name}.yaml",
            asdict(silicon),
            "silicon.yaml",
            name=name,
            basis=silicon.basis,
            chip=LIKE.get(name),
        )
        for name, silicon in found.items()
    ]
    engine = {"costs": asdict(costs)}
    return [*written, write_yaml(engine_folder / f"{V1}.yaml", engine, "engine_profile.yaml")]


def score(fitted: Fitted, rows: Sequence[Rows]) -> pd.DataFrame:
    """Errors by kind, chip and engine, and of each model in it."""
    found = []
    for part in rows:
        errors = pd.Series(100 * np.expm1(part.errors(fitted)))
        for model, error in errors.groupby(part.table.model.to_numpy()):
            found.append(
                {
                    "measured": part.kind, "chip": part.chip, "engine": part.engine,
                    "model": model, "cells": len(error), "median_error_pct": error.abs().median(),
                    "mean_error_pct": error.abs().mean(), "bias_pct": error.mean(),
                }
            )  # fmt: skip
    return pd.DataFrame(found)


def left_out(seen: Measurements, what: Literal["model", "chip"]) -> pd.DataFrame:
    """Errors of each model, or chip, by constants fitted without it. A chip is predicted by the
    mean of the others, as a device that nobody measured."""
    models = {*seen.offline.model, *seen.served.model[seen.fitted]}
    frames = []
    for name in sorted(models if what == "model" else set(CHIPS.values())):
        fitted = fit(seen.without(what, name).rows())
        if what == "chip":
            (other,) = fitted.chips.values()
            fitted = Fitted({name: other}, fitted.engines)
        own = [r for r in seen.only(what, name).rows() if r.engine in fitted.engines]
        frames.append(score(fitted, own))
    return pd.concat(frames, ignore_index=True)
