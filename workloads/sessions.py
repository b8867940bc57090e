"""Sessions: conversations whose later turns wait for the answers before, and begin with them.

When sessions begin and how long users think is drawn, or the file's own; which requests are turns
of one session, and how long they are, is the file's (`workloads.conversations`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from harness.configuration.checks import at_least, positive, require
from harness.configuration.options import CONF
from harness.errors import UsageError
from harness.request import Segments
from harness.schedule import Schedule, Synthetic
from harness.sessions import Sessions as Columns
from workloads import formats
from workloads.conversations import previous_turns
from workloads.data import DataHome, FileConfig, Found
from workloads.dataset import GIVEN, DatasetConfig, read_file
from workloads.mix import DEFAULT
from workloads.trace import Floats, Ints, Trace, require_feasible, stream, usable

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class ThinkConfig:
    mean_s: float | None  # exponential; null: the gaps between the file's turns

    def check(self) -> None:
        at_least(self, 0, "workload.think", "mean_s")


class Sessions:
    """`schedule()` is a function of the config, the seed and the file's bytes alone."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        name: str
        path: str | None  # read this file in place of the dataset's own
        num_sessions: int | None  # null: all
        max_turns: int | None  # of a session; null: all
        rate_per_s: float | None  # of sessions, Poisson; null: they begin as in the file
        scale_tokens: float  # factor on what users and models say
        think: ThinkConfig
        dataset: DatasetConfig

    def __init__(self, config: Config, data: DataHome, seed: int) -> None:
        config.think.check()
        at_least(config, 1, "workload", "num_sessions", "max_turns")
        positive(config, "workload", "rate_per_s", "scale_tokens")
        require_feasible(config.num_sessions or 0, f"workload.num_sessions={config.num_sessions}")
        require(seed >= 0, f"seed={seed} must be at least 0")
        self.name = config.name
        self._config, self._data, self._seed = config, data, seed

    def schedule(self) -> Schedule:
        """Raises UsageError where the file, as configured, makes no sessions."""
        try:
            found, published = self._file()
            if found.path.suffix == ".parquet":
                return self._replayed(found.path)
            trace = usable(read_file(self._config.dataset, self.name, found, published))
            return self._of(trace)
        except UsageError:
            raise
        except ValueError as error:
            raise UsageError(f"workload={self.name}: {error}") from error

    def _file(self) -> tuple[Found, FileConfig]:
        dataset, path = self._config.dataset, self._config.path
        assert dataset.file is not None, "conf/workload/sessions.yaml names one"
        published = dataset.files[dataset.file]
        if path is not None:
            return Found(Path(path), GIVEN), published
        found = self._data.given(published) or self._data.fetched(published)
        require(found, f"{published.path} cannot be had: give workload.path=FILE or data.dir=DIR")
        assert found is not None
        return found, published

    def _replayed(self, path: Path) -> Schedule:
        """A run's own schedule, exactly as it is: no key may ask for something else."""
        require(path.is_file(), f"workload.path={path} is not a file")
        config, usual = self._config, OmegaConf.load(CONF / "workload" / "sessions.yaml")
        for key in ("num_sessions", "max_turns", "rate_per_s", "scale_tokens", "think.mean_s"):
            value = attrgetter(key)(config)
            as_it_is = f"workload.{key}={value} would change {path}, which is replayed as it is"
            require(value == OmegaConf.select(usual, key), f"{as_it_is}: leave the key out")
        schedule = Schedule.load(path)
        require(schedule.sessions, f"{path} has no sessions: replay it with +workload=trace")
        return schedule

    def _of(self, trace: Trace) -> Schedule:
        trace, before = self._first(*previous_turns(trace))
        root = np.arange(len(trace))  # the row that begins each row's session
        for row in np.flatnonzero(before >= 0):  # in order: the turn before has its own already
            root[row] = root[before[row]]
        starts_s, trace = self._starts(trace, root)
        think_s, trace = self._thinking(trace, before)
        prompt, output = self._scaled(trace, before)
        arrival_s = starts_s.copy()
        for row in np.flatnonzero(before >= 0):
            arrival_s[row] = arrival_s[before[row]] + think_s[row]
        order = np.argsort(arrival_s, kind="stable")
        if self._config.scale_tokens != 1.0:
            trace = trace.labelled(f"what is said scaled by {self._config.scale_tokens:g}")
        session = np.unique(root, return_inverse=True)[1]  # from 0, in the file's order
        segments = _segments(trace, session, before, prompt + output, self._config.scale_tokens)
        return Schedule(
            arrival_s=arrival_s[order], model=[DEFAULT] * len(trace), prompt_tokens=prompt[order],
            output_tokens=output[order], provenance=trace.provenance,
            shared=[segments[row] for row in order],
            sessions=Columns(session[order], think_s[order]),
        )  # fmt: skip

    def _first(self, trace: Trace, before: Ints) -> tuple[Trace, Ints]:
        """The first `num_sessions`, and of each the first `max_turns`."""
        config = self._config
        number, first = np.zeros(len(before), np.int64), np.zeros(len(before), np.int64)
        begun = np.cumsum(before < 0) - 1
        for row, previous in enumerate(before.tolist()):
            number[row] = 0 if previous < 0 else number[previous] + 1
            first[row] = begun[row] if previous < 0 else first[previous]
        there = int((before < 0).sum())
        wanted = config.num_sessions
        if wanted is not None and wanted > there:
            log.warning("%s has %d sessions, fewer than asked for", trace.provenance.source, there)
        keep = np.ones(len(before), np.bool_) if wanted is None else first < wanted
        step = f"{min(there, wanted or there)} of {there} sessions"
        if config.max_turns is not None:
            keep &= number < config.max_turns
            step += f", at most {config.max_turns} turns of each"
        at = np.cumsum(keep) - 1
        left = np.where(before[keep] < 0, -1, at[before[keep]])
        return trace.take(keep).labelled(step), left

    def _starts(self, trace: Trace, root: Ints) -> tuple[Floats, Trace]:
        """When each row's session begins, with the row `root`."""
        rate_per_s = self._config.rate_per_s
        if rate_per_s is None:
            require(
                trace.arrival_s is not None,
                f"{trace.provenance.source} has no timestamps: give workload.rate_per_s",
            )
            return trace.arrivals()[root] - trace.arrivals()[0], trace
        gaps_s = stream(self._seed, "sessions").exponential(1 / rate_per_s, len(trace))
        starts_s = np.zeros(len(trace))
        first = root == np.arange(len(trace))
        starts_s[first] = np.append(0.0, np.cumsum(gaps_s[: int(first.sum()) - 1]))
        step = f"sessions begin by a Poisson process at {rate_per_s:g}/s"
        return starts_s[root], trace.labelled(step, Synthetic.ARRIVALS_DRAWN)

    def _thinking(self, trace: Trace, before: Ints) -> tuple[Floats, Trace]:
        mean_s, later = self._config.think.mean_s, before >= 0
        if mean_s is not None:
            drawn_s = stream(self._seed, "think").exponential(mean_s, len(trace))
            step = f"users think for {mean_s:g} s on average, exponentially"
            return np.where(later, drawn_s, 0.0), trace.labelled(step, Synthetic.ARRIVALS_DRAWN)
        require(
            trace.arrival_s is not None,
            f"{trace.provenance.source} has no timestamps: give workload.think.mean_s",
        )
        gap_s = trace.arrivals() - trace.arrivals()[before]
        step = "users think as long as the trace's turns are apart, its answers' time included"
        return np.where(later, gap_s, 0.0), trace.labelled(step)

    def _scaled(self, trace: Trace, before: Ints) -> tuple[Ints, Ints]:
        """Prompt and output tokens, by `scale_tokens` of what is new in each turn."""
        factor, there = self._config.scale_tokens, trace.prompt_tokens + trace.output_tokens
        new = trace.prompt_tokens - np.where(before < 0, 0, there[before])
        new, output = (
            np.maximum(1, np.rint(tokens * factor)).astype(np.int64)
            for tokens in (new, trace.output_tokens)
        )
        prompt = new.copy()
        for row in np.flatnonzero(before >= 0):
            prompt[row] += prompt[before[row]] + output[before[row]]
        return prompt, output


def _segments(
    trace: Trace, session: Ints, before: Ints, totals: Ints, factor: float
) -> list[Segments]:
    """What prompts begin with: the full blocks that the file names of a session's first prompt,
    which other sessions may have, and then the session's own stream to the end of the answer. Of
    scaled lengths no block is full."""
    named = trace.shared if factor == 1.0 else None
    ids = [] if named is None else [stream for row in named for stream, _ in row]
    base, found = max(ids, default=-1) + 1, list[Segments]()
    for row, total in enumerate(totals.tolist()):
        if before[row] >= 0:
            common = found[int(before[row])][:-1]
        else:
            common = () if named is None else formats.full_blocks(named[row], trace, row)
        own = total - sum(tokens for _, tokens in common)
        found.append((*common, (base + int(session[row]), own)))
    return found
