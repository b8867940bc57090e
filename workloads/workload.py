"""From a dataset to a schedule: read, window, scale or redraw arrivals, fit lengths, mix models.

Every step that changes anything leaves a label in the schedule's provenance. Arrivals and lengths
drawn in the data's place, and every request that the data do not have, make it synthetic; to leave
requests out, stretch time or cut lengths does not, and models drawn are said by themselves. Does
not know which engine will replay it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import UsageError
from harness.schedule import Provenance, Schedule
from workloads import arrivals, formats, lengths, mix, scale, twin
from workloads.data import DataHome, FileConfig, sha256_of
from workloads.streams import stream
from workloads.trace import (
    Trace,
    WindowConfig,
    before,
    from_first_row,
    head,
    require_feasible,
    rows_window,
    seconds_window,
    usable,
)

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class DatasetConfig:
    title: str
    home: str  # its public home, for people
    licence: str
    parameters: dict[str, Any]  # what the names of its files are made of, if anything
    file: str | None  # which of `files`; null: `workload.path` must name one
    files: dict[str, FileConfig]
    beginnings: dict[str, list[str]]  # of a file: others that hold its first rows, best first

    def names(self) -> list[str]:
        """`file`, then its beginnings."""
        return [] if self.file is None else [self.file, *self.beginnings.get(self.file, [])]


class Workload:
    """`schedule()` is a function of the config, the seed and the dataset's bytes alone."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        name: str
        path: str | None  # read this file in place of the dataset's own
        read_until_s: float | None  # rows of a file that arrive then or later are left out
        num_requests: int | None  # null: all
        window: WindowConfig
        scale: scale.ScaleConfig
        arrivals: arrivals.ArrivalsConfig
        lengths: lengths.LengthsConfig
        models: mix.ModelsConfig
        dataset: DatasetConfig
        twin: twin.TwinConfig | None  # null: nothing can stand in for the dataset

    def __init__(self, config: Config, data: DataHome, seed: int) -> None:
        for part in (config.window, config.scale, config.arrivals, config.lengths, config.models):
            part.check()
        if config.twin is not None:
            config.twin.check()
        if config.num_requests is not None and config.num_requests < 1:
            raise UsageError(f"workload.num_requests={config.num_requests} must be at least 1")
        require_feasible(config.num_requests or 0, f"workload.num_requests={config.num_requests}")
        if seed < 0:
            raise UsageError(f"seed={seed} must be at least 0")
        dataset = config.dataset
        for name in dataset.names():
            if name not in dataset.files:
                raise UsageError(
                    f"workload.dataset.file={name} is unknown; {config.name} has "
                    f"{', '.join(dataset.files)}"
                )
        self.name = config.name
        self._config = config
        self._data = data
        self._seed = seed

    def schedule(self) -> Schedule:
        """Raises UsageError where the data, as configured, make none."""
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
        trace = mix.assign(trace, config.models, stream(seed, "models"))
        assert trace.model is not None
        return Schedule(
            arrival_s=trace.arrivals(),
            model=trace.model.tolist(),
            prompt_tokens=trace.prompt_tokens,
            output_tokens=trace.output_tokens,
            provenance=trace.provenance,
        )

    def _read(self) -> Trace:
        """The file asked for, or the dataset's own, or its beginning if that is enough, or its
        twin."""
        config, dataset = self._config, self._config.dataset
        file = dataset.files[dataset.file] if dataset.file is not None else None
        if config.path is not None:
            return self._read_file(Path(config.path), file)
        if file is None:
            raise UsageError(f"workload={self.name} needs workload.path=FILE")
        path = self._data.find(file)
        if path is not None:
            return self._read_file(path, file)
        beginning = self._beginning(file)
        if beginning is not None:
            return beginning
        if config.twin is None:
            raise UsageError(f"{file.path} cannot be had, and nothing can stand in for it")
        log.warning("SYNTHETIC: a statistical twin stands in for %s", dataset.title)
        whole = config.twin.num_models * config.twin.num_requests_per_model
        require_feasible(whole, "workload.twin, for all of its models,")
        num_requests = max(whole, config.num_requests or 0)
        return twin.twin(config.twin, self.name, num_requests, self._seed)

    def _read_file(self, path: Path, published: FileConfig | None) -> Trace:
        if not path.is_file():
            raise UsageError(f"workload.path={path} is not a file")
        dataset, sha256 = self._config.dataset, sha256_of(path)
        known = published is not None and published.sha256 == sha256
        own = self._config.path is None or known
        provenance = Provenance(
            source=self.name if own else path.stem,
            origin=f"{dataset.title}: {path.name}, {dataset.home}" if own else path.name,
            synthetic=False,
            licence=dataset.licence if own else "not known here",
            source_sha256=sha256,
        )
        trace = formats.read(path, provenance)
        if self._config.read_until_s is not None:
            trace = before(trace, self._config.read_until_s)
        if published is not None and published.sha256 is not None and not known:
            trace = trace.labelled("not the published file (sha256 differs)")
        return trace

    def _beginning(self, whole: FileConfig) -> Trace | None:
        """The first rows of `whole`, from a file that can be had and has all that are asked for."""
        dataset = self._config.dataset
        for name in dataset.names()[1:]:
            path = self._data.find(dataset.files[name])
            if path is None:
                continue
            trace = self._read_file(path, dataset.files[name])
            if self._covers(trace):
                step = f"real rows, the beginning of {Path(whole.path).name} that can be had"
                log.warning("%s: %s", path.name, step)
                return trace.labelled(f"{path.name}: {step}")
        return None

    def _covers(self, beginning: Trace) -> bool:
        """Whether all that is asked for lies within it: `num_requests`, windows, or both."""
        config, window, scaling = self._config, self._config.window, self._config.scale
        ends = [rows[1] for rows in (window.rows, config.lengths.rows) if rows is not None]
        if max(ends, default=0) > len(beginning):
            return False
        if window.seconds is not None and window.seconds[1] > beginning.arrivals()[-1]:
            return False
        if config.num_requests is None:
            return window.rows is not None or window.seconds is not None
        kept = min(scaling.rate, 1.0) if scaling.how == "preserve" else 1.0  # in the mean
        return len(self._windowed(beginning)) * kept >= config.num_requests

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
        """With the arrivals of the run: the trace's, scaled, or drawn ones."""
        config, seed = self._config, self._seed
        if config.arrivals.kind != "trace":
            return self._redrawn(trace)
        trace.arrivals()  # a dataset without timestamps is told so before anything else
        to_rate_per_s, num_requests = config.scale.to_rate_per_s, config.num_requests
        if to_rate_per_s is not None:
            trace = scale.stretched_to(trace, to_rate_per_s, num_requests)
        trace = some_left(scale.scaled(trace, config.scale, seed))
        if config.arrivals.burst is not None:
            first_s = trace.arrivals()[:num_requests]  # what comes before a burst stays as it is
            arrivals.require_within(config.arrivals.burst, float(first_s[-1]))
            jitter_s = config.scale.max_jitter_s
            trace = some_left(scale.with_burst(trace, config.arrivals.burst, jitter_s, seed))
        return trace if num_requests is None else head(trace, num_requests)

    def _redrawn(self, trace: Trace) -> Trace:
        process, factor = self._config.arrivals, self._config.scale.rate
        rate_per_s = process.rate_per_s or 0.0
        if process.rate_per_s is None and process.ramp is None:
            rate_per_s = trace.mean_rate_per_s()
        num_requests = self._config.num_requests or len(trace)
        if self._config.lengths.order == "sample":  # only the model, if any, is the row's own
            trace = trace.take(np.arange(num_requests) % len(trace))
        else:
            trace = head(trace, num_requests)
        unit = arrivals.unit_process(
            num_requests, process.cv or 1.0, stream(self._seed, "arrivals")
        )
        times = arrivals.profile(process, rate_per_s, factor).times(unit)
        if process.burst is not None:
            arrivals.require_within(process.burst, float(times[-1]))
        step = arrivals.describe(process, rate_per_s, factor)
        return replace(trace, arrival_s=times).labelled(step, synthetic=True)

    def _lengths_pool(self, dataset: Trace, windowed: Trace) -> Trace | None:
        """The rows that lengths come from; None: each request keeps its own row's."""
        config = self._config.lengths
        if config.path is not None:
            path = Path(config.path)
            if not path.is_file():
                raise UsageError(f"workload.lengths.path={path} is not a file")
            sha256 = sha256_of(path)
            about = Provenance(path.stem, f"{path.name} (sha256 {sha256})", False, "", sha256)
            return formats.read(path, about)
        if config.rows is not None:
            return dataset
        return windowed if config.order == "sample" else None


def some_left(trace: Trace) -> Trace:
    """`trace`; a UsageError names the step that left no request of it."""
    if len(trace) == 0:
        last = trace.provenance.steps[-1]
        raise UsageError(f"no request left of {trace.provenance.source}: {last}")
    return trace
