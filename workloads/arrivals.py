"""Arrival processes, exact: Poisson, gamma, ramps, stages and bursts.

A renewal process of rate 1 is drawn in operational time and carried to seconds by inverting the
cumulative rate. So a burst or a ramp needs no grid and no rejection, nothing is rescaled to hit
a last arrival, and the same seed gives the same pattern at every rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.configuration.checks import at_least, one_of, positive, require
from workloads.trace import Floats, require_feasible

KINDS = ("trace", "poisson", "gamma", "ramp")


@dataclass(kw_only=True, slots=True)
class BurstConfig:
    factor: float  # the rate is multiplied by it …
    start_s: float  # … from here …
    duration_s: float  # … for so long
    # After it as many requests as came in it go elsewhere, as to instances that were started
    # meanwhile (AQUA section 9.1, after Llumnix); of drawn arrivals alone
    redirected: bool = False

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s

    def has(self, times_s: Floats) -> npt.NDArray[np.bool_]:
        """Whether each of `times_s` lies in the burst."""
        return (times_s >= self.start_s) & (times_s < self.end_s)


@dataclass(kw_only=True, slots=True)
class RampConfig:
    """A linear change of the rate; the end rate holds afterwards."""

    start_rate_per_s: float
    end_rate_per_s: float
    duration_s: float


@dataclass(kw_only=True, slots=True)
class StageConfig:
    seconds: float  # how long it lasts
    rate: float  # requests/s; 0: a pause


@dataclass(kw_only=True, slots=True)
class ArrivalsConfig:
    kind: str  # one of KINDS
    rate_per_s: float | None  # poisson, gamma; null: the trace's own mean rate
    cv: float | None  # gamma: standard deviation / mean of the gaps; gamma shape = 1 / cv²
    burst: BurstConfig | None
    ramp: RampConfig | None
    stages: list[StageConfig] | None  # poisson, gamma; no request arrives after the last

    def check(self) -> None:
        where, burst = "workload.arrivals", self.burst
        one_of(self.kind, KINDS, f"{where}.kind", "valid kinds:")
        require(
            self.rate_per_s is None or self.kind in ("poisson", "gamma"),
            f"{where}.rate_per_s is for kind=poisson or gamma, not {self.kind}; "
            "a trace is sped up by workload.scale.rate",
        )
        self._check_own("cv", "gamma", self.cv)
        self._check_own("ramp", "ramp", self.ramp)
        positive(self, where, "rate_per_s", "cv")
        if self.stages is not None:
            self._check_stages(self.stages)
        if self.ramp is not None:
            positive(self.ramp, f"{where}.ramp", "end_rate_per_s", "duration_s")
            at_least(self.ramp, 0, f"{where}.ramp", "start_rate_per_s")
        if burst is not None:
            at_least(burst, 0, f"{where}.burst", "factor", "start_s")
            positive(burst, f"{where}.burst", "duration_s")
            require(
                not (burst.redirected and self.kind == "trace"),
                f"{where}.burst.redirected=true is for drawn arrivals, not kind=trace; valid "
                "kinds: poisson, gamma, ramp",
            )

    def _check_stages(self, stages: Sequence[StageConfig]) -> None:
        where = "workload.arrivals.stages"
        drawn = self.kind in ("poisson", "gamma")
        require(drawn, f"{where} is for kind=poisson or gamma, not {self.kind}")
        require(
            self.rate_per_s is None,
            f"{where} and workload.arrivals.rate_per_s are two rates: give one, and null for the "
            "other",
        )
        for number, stage in enumerate(stages):
            positive(stage, f"{where}[{number}]", "seconds")
            at_least(stage, 0, f"{where}[{number}]", "rate")
        some = any(stage.rate > 0 for stage in stages)
        require(some, f"{where} has no stage with a rate above 0: no request would arrive")

    def _check_own(self, key: str, kind: str, value: object) -> None:
        key, given = f"workload.arrivals.{key}", value is not None
        require(self.kind != kind or given, f"workload.arrivals.kind={kind} needs {key}")
        require(self.kind == kind or not given, f"{key} is for kind={kind}, not {self.kind}")


def require_within(burst: BurstConfig, last_s: float) -> None:
    """Raises UsageError for a burst after the last arrival, which would change nothing."""
    require(
        burst.start_s <= last_s,
        f"workload.arrivals.burst.start_s={burst.start_s:g} is after the last request, which "
        f"arrives at {last_s:.3f} s",
    )


def served(burst: BurstConfig, times: Floats) -> npt.NDArray[np.bool_]:
    """Whether each of the requests at `times` is served here, i.e. not redirected."""
    end = int(np.searchsorted(times, burst.end_s))
    kept = np.ones(len(times), dtype=bool)
    kept[end : end + int(burst.has(times).sum())] = False
    return kept


@dataclass(slots=True)
class RateProfile:
    """A rate over time, linear between knots: `left[i]` just after knot i, `right[i]` just
    before the next. The last piece is constant and has no end."""

    knots_s: Floats
    left_per_s: Floats
    right_per_s: Floats

    def integral(self, time_s: float) -> float:
        """The integral of the rate from 0 to `time_s`."""
        ends = np.append(self.knots_s[1:], np.inf)
        inside = np.clip(time_s - self.knots_s, 0.0, ends - self.knots_s)
        slopes = np.append((self.right_per_s - self.left_per_s)[:-1] / np.diff(self.knots_s), 0.0)
        return float((self.left_per_s * inside + slopes * inside**2 / 2).sum())

    def times(self, unit: Floats) -> Floats:
        """Seconds at which the integral of the rate reaches each of `unit` (increasing)."""
        widths = np.diff(self.knots_s)
        areas = (self.left_per_s + self.right_per_s)[:-1] / 2 * widths
        reached = np.concatenate([[0.0], np.cumsum(areas)])
        piece = np.searchsorted(reached, unit, side="right") - 1
        slopes = np.append((self.right_per_s - self.left_per_s)[:-1] / widths, 0.0)
        area, left, slope = unit - reached[piece], self.left_per_s[piece], slopes[piece]
        # area = left·x + slope·x²/2, solved in the form that is stable as slope → 0
        root = np.sqrt(np.maximum(left**2 + 2 * slope * area, 0))
        x = np.divide(2 * area, left + root, out=np.zeros_like(area), where=area > 0)
        times: Floats = self.knots_s[piece] + x
        return times


def profile(config: ArrivalsConfig, rate_per_s: float, factor: float) -> RateProfile:
    """The rate of a drawn process: `rate_per_s`, or the configured ramp or stages, times `factor`,
    with the burst."""
    base_s, base = np.array([0.0]), np.array([rate_per_s])
    if config.ramp is not None:
        base_s = np.array([0.0, config.ramp.duration_s])
        base = np.array([config.ramp.start_rate_per_s, config.ramp.end_rate_per_s])
    if config.stages is not None:
        lengths_s = [stage.seconds for stage in config.stages]
        base_s = np.concatenate([[0.0], np.cumsum(lengths_s)[:-1]])
        base = np.array([stage.rate for stage in config.stages])
    cuts, burst = base_s, config.burst
    if burst is not None:
        cuts = np.union1d(base_s, [burst.start_s, burst.end_s])
    gain = np.full(len(cuts), factor)
    if burst is not None:
        gain[burst.has(cuts)] *= burst.factor
    if config.stages is None:
        left = np.interp(cuts, base_s, base)
        right = np.append(left[1:], left[-1])
    else:
        left = right = base[np.searchsorted(base_s, cuts, side="right") - 1]
    return RateProfile(cuts, left * gain, right * gain)


def staged_units(
    stages: Sequence[StageConfig], made: RateProfile, cv: float, rng: np.random.Generator
) -> Floats:
    """A unit process as far as it arrives within the stages, in `made`, their profile."""
    end_s = sum(stage.seconds for stage in stages)
    area = made.integral(end_s)
    require_feasible(area, "workload.arrivals.stages")
    unit, last = np.empty(0), 0.0
    while last <= area:  # one stream, however it is cut into draws
        more = last + unit_process(int(area - last) + 100, cv, rng)
        unit, last = np.concatenate([unit, more]), float(more[-1])
    return unit[unit <= area]


def unit_process(num_arrivals: int, cv: float, rng: np.random.Generator) -> Floats:
    """Arrival times of a renewal process of rate 1 with gamma gaps; cv = 1 is Poisson."""
    if cv == 1:
        gaps = rng.standard_exponential(num_arrivals)
    else:
        gaps = rng.gamma(1 / cv**2, cv**2, num_arrivals)
    return np.cumsum(gaps)


def describe(config: ArrivalsConfig, rate_per_s: float, factor: float) -> str:
    """The label of a drawn process."""
    if config.ramp is not None:
        start, end = config.ramp.start_rate_per_s * factor, config.ramp.end_rate_per_s * factor
        text = f"ramp from {start:g} to {end:g} req/s in {config.ramp.duration_s:g} s"
    elif config.stages is not None:
        parts = (f"{each.seconds:g} s at {each.rate * factor:g} req/s" for each in config.stages)
        text = f"{config.kind}, {', '.join(parts)}"
    else:
        text = f"{config.kind} at {rate_per_s * factor:g} req/s"
    if config.cv is not None:
        text += f", cv {config.cv:g}"
    return f"arrivals drawn: {text}{describe_burst(config.burst)}"


def describe_burst(burst: BurstConfig | None) -> str:
    if burst is None:
        return ""
    then = ", as many redirected after it" if burst.redirected else ""
    return f", rate x{burst.factor:g} in seconds [{burst.start_s:g}, {burst.end_s:g}){then}"
