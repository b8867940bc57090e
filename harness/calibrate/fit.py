"""From cells to constants: one law for all devices, then each measured pair by itself.

Both minimise relative errors, robustly (soft L1), over the logarithms of positive constants, so
that a constant can be any size but not negative. What a device's cells do not settle stays near
the mean of all devices; what a pair's cells do not settle stays near the law.

Iterations of serving scatter by tens of percent, the slow ones further than the fast. There errors
are logarithms, since relative ones favour what is too fast: of 1 s and 2 s, equally often, they
make 1 s. And as a server's capacity lies in the mean and not in what is usual, all constants are
then scaled until the fitted times add up to the measured ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import lru_cache

import numpy as np
from scipy.optimize import least_squares

from harness.calibrate import zoo
from harness.calibrate.profiles import Cells, Floats
from harness.calibrate.serving import Iterations
from harness.cost.hardware import Calibration, Hardware, StepCoefficients
from harness.cost.law import law
from harness.cost.terms import decode_s, mixed_s, prefill_s

NOISE = 0.03  # relative errors below this count squared, above it linearly
PAIR_WEIGHT = 10  # independent cells that a pair counts for in the law, however many it has
# How far, in logarithms, at the cost of one error of NOISE:
MEAN_SPREAD = 1.0  # the mean of a constant may lie from START
DEVICE_SPREAD = 0.5  # a device from the mean
PAIR_SPREAD = 0.7  # a pair's terms from the law's
# Where the search for the law's constants starts, and what they may be.
START = {
    "memory_efficiency": (0.75, 0.3, 1.0), "compute_efficiency": (0.6, 0.1, 1.0),
    "attention_efficiency": (0.3, 0.05, 1.0), "kv_efficiency": (0.8, 0.1, 1.0),
    "decode_attention_efficiency": (0.04, 1e-3, 1.0),
    "launch_layer_s": (2e-4, 1e-6, 1e-2), "launch_layer_tp_s": (1.5e-4, 1e-6, 1e-2),
    "prefill_s": (1e-3, 1e-5, 1e-1), "decode_s": (1e-3, 1e-5, 1e-1),
    "chunk_s": (2e-5, 1e-7, 1e-2), "request_s": (6e-5, 1e-7, 1e-2),
    "request_context_tokens": (50.0, 1.0, 500.0), "wide_share": (0.2, 1e-3, 2.0),
}  # fmt: skip
LIMIT = 1e-3  # a constant this near to its least or greatest value, relatively, ended there
START_TURNAROUND_S = 5e-4
LAW = tuple(START)
TERMS = tuple(field.name for field in fields(StepCoefficients))


@dataclass(frozen=True)
class Law:
    """Constants learned together: per device, and the mean for a device that nobody measured."""

    devices: dict[str, Calibration]
    mean: Calibration
    hardware: Mapping[str, Hardware]  # of devices that the zoo does not have

    def terms(self, cells: Cells) -> StepCoefficients:
        calibration = self.devices.get(cells.device, self.mean)
        hardware = self.hardware.get(cells.device) or zoo.device(cells.device)
        return law(zoo.sharded(cells.model, cells.tp), hardware, calibration)


def errors(terms: StepCoefficients, cells: Cells) -> tuple[Floats, Floats]:
    """Relative errors of prefill and decode, cell by cell."""
    prefill = prefill_s(terms, cells.tokens, cells.query_key_pairs, cells.batch)
    decode = decode_s(terms, cells.batch, cells.context_tokens)
    return prefill / cells.prefill_s - 1, decode / cells.decode_s - 1


def fit_law(cells: Sequence[Cells], hardware: Mapping[str, Hardware] | None = None) -> Law:
    """The constants that predict all `cells`, each pair weighing the same.

    `hardware`: devices that the zoo does not have, by name.
    """
    devices = sorted({c.device for c in cells})
    start, low, high = np.log(list(START.values())).T
    weights = [np.sqrt(PAIR_WEIGHT / (2 * len(c.batch))) / NOISE for c in cells]

    def by_device(x: Floats) -> dict[str, Floats]:
        offsets = x[len(LAW) :].reshape(len(devices), len(LAW))
        return dict(zip(devices, x[: len(LAW)] + offsets, strict=True))

    def unpack(x: Floats) -> Law:
        found = {d: constants(each, "device law") for d, each in by_device(x).items()}
        return Law(found, constants(x[: len(LAW)], "datasheet"), hardware or {})

    @lru_cache(maxsize=16 * len(cells))  # most steps leave a pair's device as it was
    def part(pair: int, logarithms: bytes) -> Floats:
        c, own = cells[pair], constants(np.frombuffer(logarithms), "device law")
        terms = Law({c.device: own}, own, hardware or {}).terms(c)
        weighted: Floats = weights[pair] * robust(np.concatenate(errors(terms, c)))
        return weighted

    def residuals(x: Floats) -> Floats:
        of = by_device(x)
        parts = [part(pair, of[c.device].tobytes()) for pair, c in enumerate(cells)]
        priors = (x[: len(LAW)] - start) / MEAN_SPREAD, x[len(LAW) :] / DEVICE_SPREAD
        return np.concatenate([*parts, *priors])

    offset = np.full(len(devices) * len(LAW), 1.5)
    bounds = np.concatenate([low, -offset]), np.concatenate([high, offset])
    first = np.concatenate([start, 0 * offset])
    return unpack(least_squares(residuals, first, bounds=bounds, x_scale=0.3).x)


def constants(logarithms: Floats, basis: str) -> Calibration:
    values = np.exp(np.minimum(logarithms, np.log([START[name][2] for name in LAW])))
    found = dict(zip(LAW, map(float, values), strict=True))
    return Calibration(basis=basis, turnaround_s=0.0, measured={}, **found)


def on_limits(found: Calibration) -> list[str]:
    """Constants of a law that are as small or as large as they may be: the cells would have them
    beyond, so that they say how far the search went and not what the device does."""
    return [
        f"{name} {getattr(found, name):.3g}"
        for name, (_, low, high) in START.items()
        if not low * (1 + LIMIT) < getattr(found, name) < high * (1 - LIMIT)
    ]


def robust(error: Floats) -> Floats:
    """Residuals in the unit of `error`, most of which is below NOISE."""
    return soft_l1(error / NOISE) * NOISE


def soft_l1(scaled: Floats) -> Floats:
    """Residuals whose squares are soft L1: a straggler counts by its size, not more."""
    found: Floats = np.sign(scaled) * np.sqrt(2 * (np.sqrt(1 + scaled**2) - 1))
    return found


def fit_pair(cells: Cells, prior: StepCoefficients) -> StepCoefficients:
    """The terms of this pair alone, near `prior` where its cells say nothing."""
    return _terms(_nearby(astuple(prior), lambda x: np.concatenate(errors(_terms(x), cells))))


def served_errors(terms: StepCoefficients, turnaround_s: float, seen: Iterations) -> Floats:
    """Relative errors, execute by execute."""
    work = seen.tokens, seen.pairs, seen.chunks, seen.decodes, seen.context_tokens
    step = decode_s(terms, seen.decodes, seen.context_tokens)
    growth = terms.context_s * seen.decodes  # from step to step: `steps_time_s`, of arrays
    decodes = seen.steps * step + growth * seen.steps * (seen.steps - 1) / 2
    iterations = np.where(seen.chunks > 0, mixed_s(terms, *work), decodes)
    relative: Floats = (turnaround_s + iterations) / seen.seconds - 1
    return relative


def fit_served(seen: Iterations, prior: StepCoefficients) -> tuple[StepCoefficients, float]:
    """The terms and the turnaround that serving showed, near `prior` where it says nothing."""

    def unpack(x: Floats) -> tuple[StepCoefficients, float]:
        return _terms(x[:-1]), float(np.exp(x[-1]))

    start = [*astuple(prior), START_TURNAROUND_S]
    found = _nearby(start, lambda x: np.log1p(served_errors(*unpack(x), seen)))
    return unpack(found + _shortfall(served_errors(*unpack(found), seen), seen))


def fit_iterations(seen: Iterations, prior: StepCoefficients) -> StepCoefficients:
    """The same of a server that schedules by itself, where nothing comes between iterations."""
    found = _nearby(astuple(prior), lambda x: np.log1p(served_errors(_terms(x), 0.0, seen)))
    return _terms(found + _shortfall(served_errors(_terms(found), 0.0, seen), seen))


def _shortfall(error: Floats, seen: Iterations) -> float:
    """The logarithm of the measured over the fitted time in all; `error`: relative ones."""
    return float(-np.log1p((error * seen.seconds).sum() / seen.seconds.sum()))


def _nearby(start: Sequence[float], error: Callable[[Floats], Floats]) -> Floats:
    """Logarithms of constants with a small `error` of them, near those of `start`."""
    first = np.log(start)

    def residuals(x: Floats) -> Floats:
        return np.concatenate([robust(error(x)) / NOISE, (x - first) / PAIR_SPREAD])

    found: Floats = least_squares(residuals, first, x_scale=0.3).x
    return found


def _terms(logarithms: Floats) -> StepCoefficients:
    return StepCoefficients(**dict(zip(TERMS, map(float, np.exp(logarithms)), strict=True)))
