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
from harness.sessions import previous_rows
from workloads.conversations import sessions
from workloads.data import DataHome, FileConfig, Found
from workloads.dataset import GIVEN, DatasetConfig, read_file
from workloads.json_traces import full_blocks
from workloads.mix import DEFAULT
from workloads.trace import Bools, Floats, Ints, Trace, require_feasible, stream, usable

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
        trace, turns = self._first(*sessions(trace))
        earlier, before = turns.earlier(), previous_rows(turns.session)
        arrival_s, trace = self._starts(trace, np.array([not rows for rows in earlier]))
        think_s, trace = self._thinking(trace, earlier)
        prompt, output = self._scaled(trace, before)
        for row, rows in enumerate(earlier):
            if rows:
                arrival_s[row] = arrival_s[list(rows)].max() + think_s[row]
        order = np.argsort(arrival_s, kind="stable")
        if self._config.scale_tokens != 1.0:
            trace = trace.labelled(f"what is said scaled by {self._config.scale_tokens:g}")
        session = np.unique(turns.session, return_inverse=True)[1]  # from 0, in the file's order
        segments = _segments(trace, session, before, prompt + output, self._config.scale_tokens)
        waits, at = turns.waits_for, np.argsort(order).tolist()
        if waits is not None:
            waits = [tuple(at[each] for each in waits[row]) for row in order]
        return Schedule(
            arrival_s=arrival_s[order], model=[DEFAULT] * len(trace), prompt_tokens=prompt[order],
            output_tokens=output[order], provenance=trace.provenance,
            shared=[segments[row] for row in order],
            sessions=Columns(session[order], think_s[order], waits),
        )  # fmt: skip

    def _first(self, trace: Trace, turns: Columns) -> tuple[Trace, Columns]:
        """The first `num_sessions`, with those that they begin, and of each the first
        `max_turns`."""
        config, before = self._config, previous_rows(turns.session).tolist()
        number, begun, there = list[int](), list[int](), 0
        for previous, rows in zip(before, turns.earlier(), strict=True):
            number.append(0 if previous < 0 else number[previous] + 1)
            begun.append(max((begun[each] for each in rows), default=there))
            there += not rows
        wanted = config.num_sessions
        if wanted is not None and wanted > there:
            log.warning("%s has %d sessions, fewer than asked for", trace.provenance.source, there)
        step = f"{min(there, wanted or there)} of {there} sessions"
        out = np.array(begun) >= (wanted or there)
        if config.max_turns is not None:
            out |= np.array(number) >= config.max_turns
            step += f", at most {config.max_turns} turns of each"
        keep, turns = turns.without(out)
        return trace.take(keep).labelled(step), turns

    def _starts(self, trace: Trace, first: Bools) -> tuple[Floats, Trace]:
        """When the rows arrive that wait for no other, which are `first`."""
        rate_per_s = self._config.rate_per_s
        if rate_per_s is None:
            require(
                trace.arrival_s is not None,
                f"{trace.provenance.source} has no timestamps: give workload.rate_per_s",
            )
            return trace.arrivals() - trace.arrivals().min(), trace
        gaps_s = stream(self._seed, "sessions").exponential(1 / rate_per_s, len(trace))
        starts_s = np.zeros(len(trace))
        starts_s[first] = np.append(0.0, np.cumsum(gaps_s[: int(first.sum()) - 1]))
        step = f"sessions begin by a Poisson process at {rate_per_s:g}/s"
        return starts_s, trace.labelled(step, Synthetic.ARRIVALS_DRAWN)

    def _thinking(self, trace: Trace, earlier: list[tuple[int, ...]]) -> tuple[Floats, Trace]:
        mean_s = self._config.think.mean_s
        if mean_s is not None:
            drawn_s = stream(self._seed, "think").exponential(mean_s, len(trace))
            step = f"users think for {mean_s:g} s on average, exponentially"
            later = np.array([bool(rows) for rows in earlier])
            return np.where(later, drawn_s, 0.0), trace.labelled(step, Synthetic.ARRIVALS_DRAWN)
        require(
            trace.arrival_s is not None,
            f"{trace.provenance.source} has no timestamps: give workload.think.mean_s",
        )
        at_s = trace.arrivals()
        ends = enumerate(earlier)
        ends_s = [max((at_s[each] for each in rows), default=at_s[row]) for row, rows in ends]
        step = "users think as long as the trace's turns are apart, its answers' time included"
        return np.maximum(at_s - ends_s, 0.0), trace.labelled(step)

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
            common = () if named is None else full_blocks(named[row], trace.prompt_tokens[row])
        own = total - sum(tokens for _, tokens in common)
        found.append((*common, (base + int(session[row]), own)))
    return found
