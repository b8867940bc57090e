"""From a dataset to a schedule: read, window, scale or redraw arrivals, fit lengths, mix models.

Every step that changes anything leaves a label in the schedule's provenance, and what is not the
data's own (`Synthetic`: arrivals drawn, requests repeated, …) its kind. To leave requests out, to
stretch time and to cut lengths leave a label alone. Does not know which engine will replay it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from harness.configuration.checks import at_least, require
from harness.errors import UsageError
from harness.schedule import Provenance, Schedule, Synthetic, shown
from workloads import arrivals, formats, lengths, mix, scale, synthetic
from workloads.data import DataHome, FileConfig, Found, sha256_of
from workloads.dataset import GIVEN, DatasetConfig, read_file
from workloads.prefixes import DocumentConfig, PrefixesConfig, asked_about, shared
from workloads.text import TextConfig, read_texts
from workloads.trace import (
    Trace,
    WindowConfig,
    before,
    from_first_row,
    head,
    require_feasible,
    rows_window,
    seconds_window,
    stream,
    usable,
)

log = logging.getLogger(__name__)


class Workload:
    """`schedule()` is a function of the config, the seed and the dataset's bytes alone."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        name: str
        path: str | None  # read this file in place of the dataset's own
        text: TextConfig | None  # real prompts in place of a file's lengths
        read_until_s: float | None  # rows of a file that arrive then or later are left out
        num_requests: int | None  # null: all
        window: WindowConfig
        scale: scale.ScaleConfig
        arrivals: arrivals.ArrivalsConfig
        lengths: lengths.LengthsConfig
        models: mix.ModelsConfig
        prefixes: PrefixesConfig
        document: DocumentConfig | None  # null: there is none
        dataset: DatasetConfig
        synthetic: synthetic.SyntheticConfig | None  # null: nothing can stand in for the dataset

    def __init__(self, config: Config, data: DataHome, seed: int) -> None:
        for part in (getattr(config, each.name) for each in fields(config)):
            if hasattr(part, "check"):
                part.check()
        require(
            config.text is None or config.path is None,
            "a workload of texts reads workload.text.dataset, not its path",
        )
        self._one_rate(config)
        at_least(config, 1, "workload", "num_requests")
        require_feasible(config.num_requests or 0, f"workload.num_requests={config.num_requests}")
        require(seed >= 0, f"seed={seed} must be at least 0")
        dataset = config.dataset
        require(
            dataset.file is None or dataset.file in dataset.files,
            f"workload.dataset.file={dataset.file} is unknown; {config.name} has "
            f"{', '.join(dataset.files)}",
        )
        self.name = config.name
        self._config = config
        self._data = data
        self._seed = seed

    @staticmethod
    def _one_rate(config: Config) -> None:
        """Raises UsageError for arrivals drawn at one rate and stretched to another."""
        to_rate_per_s, process = config.scale.to_rate_per_s, config.arrivals
        if to_rate_per_s is None:
            return
        if process.rate_per_s is not None:
            own = f"rate_per_s={process.rate_per_s:g}"
        elif process.ramp is not None or process.stages is not None:
            own = "ramp" if process.stages is None else "stages"
        else:
            return
        raise UsageError(
            f"workload.arrivals.{own} and workload.scale.to_rate_per_s={to_rate_per_s:g} are two "
            "rates: give one, and null for the other"
        )

    def schedule(self) -> Schedule:
        """Makes the schedule. Raises UsageError where the data, as configured, make none."""
        try:
            with np.errstate(all="ignore"):  # a Schedule's numbers are checked to be finite
                return self._schedule()
        except MemoryError as error:
            raise UsageError(f"workload={self.name} does not fit into memory: {error}") from error
        except UsageError:
            raise
        except ValueError as error:
            raise UsageError(f"workload={self.name}: {error}") from error

    def _schedule(self) -> Schedule:
        config, seed = self._config, self._seed
        dataset = self._read()
        windowed = self._windowed(dataset)
        trace = self._arriving(windowed)
        pool = self._lengths_pool(dataset, windowed)
        if pool is not None:
            trace = lengths.replaced(trace, pool, config.lengths, stream(seed, "lengths"))
        trace = lengths.fitted(trace, config.lengths)
        trace = shared(trace, config.prefixes)
        if config.document is not None:
            trace = asked_about(trace, config.document)
        trace = mix.assign(trace, config.models, stream(seed, "models"))
        assert trace.model is not None
        return Schedule(
            arrival_s=trace.arrivals(), model=trace.model.tolist(),
            prompt_tokens=trace.prompt_tokens, output_tokens=trace.output_tokens,
            provenance=trace.provenance, priority=trace.priority,
            prompts=None if trace.prompts is None else trace.prompts.tolist(),
            shared=None if trace.shared is None else trace.shared.tolist(),
        )  # fmt: skip

    def _read(self) -> Trace:
        """Reads the file asked for, or the dataset's own, or the beginning of it that the
        repository carries where that is all that is asked for, or its synthetic trace."""
        config, dataset = self._config, self._config.dataset
        if config.text is not None:
            return read_texts(config.text, self._data)
        file = dataset.files[dataset.file] if dataset.file is not None else None
        if config.path is not None:
            return self._read_file(Found(Path(config.path), GIVEN), file)
        if file is None:
            raise UsageError(f"workload={self.name} needs workload.path=FILE")
        found = self._data.given(file)
        if found is not None:
            return self._read_file(found, file)
        beginning = self._beginning(file)
        if beginning is not None and self._covers(beginning):
            return beginning
        found = self._data.fetched(file)
        if found is not None:
            return self._read_file(found, file)
        if config.synthetic is None:
            raise UsageError(f"{file.path} cannot be had, and nothing can stand in for it")
        whole = config.synthetic.num_models * config.synthetic.num_requests_per_model
        require_feasible(whole, "workload.synthetic, for all of its models,")
        num_requests = max(whole, config.num_requests or 0)
        made = synthetic.trace(config.synthetic, self.name, num_requests, self._seed)
        kinds = shown(made.provenance.synthetic)
        log.warning("%s: a synthetic trace stands in for %s", kinds, dataset.title)
        if beginning is not None:
            log.warning("its first %d requests are carried in the repository", len(beginning))
        return made

    def _read_file(self, found: Found, published: FileConfig | None) -> Trace:
        until_s = self._config.read_until_s
        trace = read_file(self._config.dataset, self.name, found, published)
        return trace if until_s is None else before(trace, until_s)

    def _beginning(self, whole: FileConfig) -> Trace | None:
        """The first rows of `whole`, where the repository carries them."""
        found = self._data.beginning(whole)
        if found is None:
            return None
        trace = self._read_file(found, whole)
        return trace.labelled(f"the first {len(trace)} rows of {Path(whole.path).name}")

    def _covers(self, beginning: Trace) -> bool:
        """Whether all that is asked for lies within these rows: the whole file gives the same
        schedule."""
        config, window = self._config, self._config.window
        ends = [rows[1] for rows in (window.rows, config.lengths.rows) if rows is not None]
        if max(ends, default=0) > len(beginning):
            return False
        if window.seconds is not None and window.seconds[1] > beginning.arrivals()[-1]:
            return False
        if window.rows is not None or window.seconds is not None:
            return True
        drawn = config.arrivals.kind != "trace"
        asked = config.arrivals
        own_rate = drawn and asked.rate_per_s is None and asked.ramp is None and not asked.stages
        own_lengths = config.lengths.rows is not None or config.lengths.path is not None
        if own_rate or (config.lengths.order == "sample" and not own_lengths):
            return False  # a mean rate, or lengths, of all its rows
        wanted, windowed = config.num_requests, self._windowed(beginning)
        if wanted is None or len(windowed) < wanted:
            return False
        return drawn or len(self._rescaled(windowed)) >= wanted

    def _windowed(self, trace: Trace) -> Trace:
        window = self._config.window
        if window.rows is not None:
            trace = rows_window(trace, window.rows)
        if window.seconds is not None:
            trace = from_first_row(trace)  # failed or not
        num_rows = len(trace)
        trace = usable(trace)
        dropped = num_rows - len(trace)
        if window.seconds is not None and len(trace) > 0:
            trace = seconds_window(trace, window.seconds)
        if len(trace) == 0:
            why = f": {dropped} rows with 0 prompt or output tokens are left out" if dropped else ""
            raise UsageError(f"the window leaves no request of {trace.provenance.source}{why}")
        return trace

    def _arriving(self, trace: Trace) -> Trace:
        """The trace with the arrivals of the run: its own, scaled, or drawn ones."""
        if self._config.arrivals.kind != "trace":
            return self._redrawn(trace)
        trace = self._rescaled(trace)
        last = trace.provenance.steps[-1] if trace.provenance.steps else ""
        require(len(trace), f"no request left of {trace.provenance.source}: {last}")
        num_requests = self._config.num_requests
        return trace if num_requests is None else head(trace, num_requests)

    def _rescaled(self, trace: Trace) -> Trace:
        """The trace at the run's rate, by its own arrivals; thinning may leave none."""
        config, seed = self._config, self._seed
        trace.arrivals()  # a dataset without timestamps is told so before anything else
        to_rate_per_s, num_requests = config.scale.to_rate_per_s, config.num_requests
        if to_rate_per_s is not None:
            trace = scale.stretched_to(trace, to_rate_per_s, num_requests)
        trace = scale.scaled(trace, config.scale, seed)
        if config.arrivals.burst is not None and len(trace) > 0:
            first_s = trace.arrivals()[:num_requests]  # what comes before a burst stays as it is
            arrivals.require_within(config.arrivals.burst, float(first_s[-1]))
            jitter_s = config.scale.max_jitter_s
            trace = scale.with_burst(trace, config.arrivals.burst, jitter_s, seed)
        return trace

    def _redrawn(self, trace: Trace) -> Trace:
        process, factor = self._config.arrivals, self._config.scale.rate
        to_rate_per_s = self._config.scale.to_rate_per_s
        rate_per_s = process.rate_per_s or to_rate_per_s or 0.0
        if rate_per_s == 0 and process.ramp is None and process.stages is None:
            rate_per_s = trace.mean_rate_per_s()
        made = arrivals.profile(process, rate_per_s, factor)
        rng, cv = stream(self._seed, "arrivals"), process.cv or 1.0
        num_requests = self._config.num_requests or len(trace)
        if process.stages is None:
            unit = arrivals.unit_process(num_requests, cv, rng)
        else:
            unit = arrivals.staged_units(process.stages, made, cv, rng)
            num_requests = self._in_stages(len(unit))
        if self._config.lengths.order == "sample":  # only the model, if any, is the row's own
            trace = trace.take(np.arange(num_requests) % len(trace))
        else:
            require(
                num_requests <= len(trace),
                f"workload.num_requests={num_requests} is more than the {len(trace)} requests of "
                f"{trace.provenance.source}: ask for fewer, or draw their lengths with "
                "replacement (workload.lengths.order=sample)",
            )
            trace = head(trace, num_requests)
        times = made.times(unit)
        if process.burst is not None:
            arrivals.require_within(process.burst, float(times[-1]))
        step = arrivals.describe(process, rate_per_s, factor)
        drawn = replace(trace, arrival_s=times).labelled(step, Synthetic.ARRIVALS_DRAWN)
        if process.burst is not None and process.burst.redirected:
            return drawn.take(np.flatnonzero(arrivals.served(process.burst, times)))
        return drawn

    def _in_stages(self, number: int) -> int:
        """How many requests there are where so many arrive in the stages."""
        require(number, "no request arrives in workload.arrivals.stages: make them longer")
        most = self._config.num_requests
        require(
            most is None or number <= most,
            f"workload.arrivals.stages has {number} arrivals with this seed, more than "
            f"workload.num_requests={most}: later stages would not begin; set it to null",
        )
        return number

    def _lengths_pool(self, dataset: Trace, windowed: Trace) -> Trace | None:
        """The rows that lengths come from; None: each request keeps its own row's."""
        config = self._config.lengths
        if config.path is not None:
            path = Path(config.path)
            require(path.is_file(), f"workload.lengths.path={path} is not a file")
            sha256 = sha256_of(path)
            about = Provenance(path.stem, f"{path.name} (sha256 {sha256})", [], "", sha256)
            return formats.read(path, about)
        if config.rows is not None:
            return dataset
        return windowed if config.order == "sample" else None
