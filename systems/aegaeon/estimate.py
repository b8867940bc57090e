"""Latency estimates of appendix A.2: equations 4, 5 and 6.

C1 to C6 are fitted to profiled times by least squares, model by model, because the equations have
no term for the number of layers. The estimates are as wrong as the equations' form. While serving,
the scheduler uses these estimates only, never the true time of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from mypy_extensions import mypyc_attr
from scipy.optimize import nnls

from harness.model_spec import ModelSpec
from harness.placement import Profile

# The lengths and batch sizes of the authors' published profiles. Prefill batches have one prompt
# (§4.2).
LENGTHS_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
FLASH_BLOCK = 128  # b of eq. 5: query rows of a FlashAttention tile; C2 absorbs any other value

Floats = npt.NDArray[np.float64]
Terms = tuple[float, float, float]


@dataclass(slots=True, frozen=True)
class Fit:
    """Eq. 5 or 6 for one model: what its terms are multiplied by, in seconds."""

    constants: Terms  # C1, C2, C3, or C4, C5, C6
    r_squared: float

    def seconds(self, terms: Terms) -> float:
        """The sum of products, without NumPy: it is called often, and three numbers are few."""
        first, second, third = self.constants
        return terms[0] * first + terms[1] * second + terms[2] * third


@mypyc_attr(allow_interpreted_subclasses=True)
class Estimator:
    """Estimates in seconds for all `models`, fitted to `profile`.

    pcie_efficiency: β of eq. 4, a share of the nominal bandwidth (README.md says why).
    """

    def __init__(
        self, profile: Profile, models: Mapping[str, ModelSpec], pcie_efficiency: float
    ) -> None:
        kinds = {kind(spec): spec for spec in models.values()}
        fits = {
            key: (fit_prefill(profile, spec), fit_decode(profile, spec))
            for key, spec in kinds.items()
        }
        self._fits = {name: fits[kind(spec)] for name, spec in models.items()}
        self._models = models
        self._switch_s = {
            name: spec.weight_bytes / spec.tp / (profile.pcie_peak_bytes_per_s * pcie_efficiency)
            for name, spec in models.items()
        }

    def switch_s(self, model: str) -> float:
        """Eq. 4: weights / (nominal bandwidth x β). With tensor parallelism, devices load their
        shards side by side."""
        return self._switch_s[model]

    def prefill_s(self, model: str, prompt_tokens: int) -> float:
        """Eq. 5 for one prompt."""
        return self._fits[model][0].seconds(prefill_terms(self._models[model], prompt_tokens))

    def decode_s(self, model: str, batch_size: int, context_tokens: int) -> float:
        """Eq. 6: one step of a batch whose contexts add up to `context_tokens`."""
        terms = decode_terms(self._models[model], batch_size, context_tokens)
        return self._fits[model][1].seconds(terms)


def kind(spec: ModelSpec) -> tuple[str, int]:
    """What is profiled once: the architecture and the degree of tensor parallelism."""
    return spec.name, spec.tp


def prefill_terms(spec: ModelSpec, tokens: int) -> Terms:
    """What C1, C2 and C3 multiply in eq. 5, for one prompt of l tokens: t = l and t2 = l²."""
    h, m = spec.hidden_size, spec.intermediate_size
    products = 4.0 * tokens * h * h + 2.0 * tokens * h * m
    return products, 3.0 * h * tokens * tokens / FLASH_BLOCK, 1.0


def decode_terms(spec: ModelSpec, batch_size: int, context_tokens: int) -> Terms:
    """What C4 and C5 multiply in eq. 6, and the batch size, which C6 multiplies.

    The artifact appends this last term. As printed, only the sum of contexts depends on the batch
    size, and the equation explains little of the measured times.
    """
    h, m = spec.hidden_size, spec.intermediate_size
    return 4.0 * h * h + 2.0 * h * m, 3.0 * h * context_tokens, float(batch_size)


def fit_prefill(profile: Profile, spec: ModelSpec) -> Fit:
    """C1 to C3 of one model, fitted to the profile's times at `LENGTHS_TOKENS`."""
    lengths = lengths_of(spec)
    times_s = [profile.prefill_s(spec, n) for n in lengths]
    return fitted([prefill_terms(spec, n) for n in lengths], times_s)


def fit_decode(profile: Profile, spec: ModelSpec) -> Fit:
    """C4 to C6 of one model, fitted at `BATCH_SIZES` x `LENGTHS_TOKENS`."""
    cells = [(size, size * n) for size in BATCH_SIZES for n in lengths_of(spec)]
    times_s = [profile.decode_step_s(spec, *cell) for cell in cells]
    return fitted([decode_terms(spec, *cell) for cell in cells], times_s)


def fitted(of_cells: Sequence[Terms], times: Sequence[float]) -> Fit:
    """times: in seconds, one for each cell."""
    terms, times_s = np.array(of_cells), np.array(times)
    constants = least_squares(terms, times_s)
    first, second, third = constants.tolist()
    return Fit((first, second, third), r_squared(times_s, terms @ constants))


def lengths_of(spec: ModelSpec) -> Sequence[int]:
    """The profiled lengths that are within the model's context."""
    return [n for n in LENGTHS_TOKENS if n < spec.max_position]


def least_squares(terms: Floats, times_s: Floats) -> Floats:
    """Constants (3), at least 0, so that a longer job is never estimated as shorter.

    terms: (cells, 3); times_s: (cells,).
    """
    scale = terms.max(axis=0)  # the terms differ by ten orders of magnitude
    constants, _ = nnls(terms / scale, times_s)
    return np.asarray(constants / scale)


def r_squared(measured: Floats, fitted: Floats) -> float:
    residual = measured - fitted
    deviation = measured - measured.mean()
    return 1 - float(residual @ residual) / float(deviation @ deviation)
