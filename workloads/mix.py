"""Which model each request asks for: one, the trace's own, or a drawn mix."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harness.configuration.checks import at_least, one_of, require
from harness.schedule import Synthetic
from workloads.trace import Floats, Strings, Trace

KINDS = ("single", "trace", "auto", "uniform", "zipf")
MAX_MODELS = 1_000_000  # more than any model set has; each has a name and a share
DEFAULT = "default"  # the harness maps this name to the experiment's model


@dataclass(kw_only=True, slots=True)
class ModelsConfig:
    kind: str  # one of KINDS; auto: the trace's own names where it has any, else single
    num_models: int | None  # uniform, zipf
    alpha: float | None  # zipf: the k-th model's share is proportional to k^-alpha

    def check(self) -> None:
        where = "workload.models"
        one_of(self.kind, KINDS, f"{where}.kind", "valid kinds:")
        for key, kinds in (("num_models", ("uniform", "zipf")), ("alpha", ("zipf",))):
            needed = self.kind in kinds
            verb = "needs" if needed else "takes no"
            given = getattr(self, key) is not None
            require(given == needed, f"{where}.kind={self.kind} {verb} {where}.{key}")
        at_least(self, 1, where, "num_models")
        require(
            (self.num_models or 0) <= MAX_MODELS,
            f"{where}.num_models={self.num_models} must be at most {MAX_MODELS:,}",
        )
        at_least(self, 0, where, "alpha")


def zipf_shares(num_models: int, alpha: float) -> Floats:
    weights = np.arange(1, num_models + 1, dtype=np.float64) ** -alpha
    shares: Floats = weights / weights.sum()
    return shares


def draw_models(num_requests: int, shares: Floats, rng: np.random.Generator) -> Strings:
    """Draws models independently: a Poisson stream split so is one Poisson stream per model."""
    digits = len(str(len(shares) - 1))
    names = np.array([f"model-{i:0{digits}d}" for i in range(len(shares))], dtype=object)
    chosen = np.searchsorted(np.cumsum(shares)[:-1], rng.random(num_requests), side="right")
    return names[chosen]


def assign(trace: Trace, config: ModelsConfig, rng: np.random.Generator) -> Trace:
    """The trace with every request's model set."""
    if config.num_models is not None:
        alpha = config.alpha or 0.0
        shares = zipf_shares(config.num_models, alpha)
        mixed = replace(trace, model=draw_models(len(trace), shares, rng))
        text = f"zipf({alpha:g})" if config.kind == "zipf" else "uniform"
        step = f"models drawn: {text} over {config.num_models}"
        return mixed.labelled(step, Synthetic.MODELS_DRAWN)
    require(
        config.kind != "trace" or trace.model is not None,
        f"workload.models.kind=trace: {trace.provenance.source} names no models; choose single, "
        "uniform or zipf",
    )
    if config.kind != "single" and trace.model is not None:
        return trace
    single = replace(trace, model=np.full(len(trace), DEFAULT, dtype=object))
    if trace.model is None:
        return single
    num_models = len(set(trace.model.tolist()))
    return single.labelled(f"one model in place of the trace's {num_models}")
