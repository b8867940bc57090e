"""A dataset as its YAML describes it, and one of its files as a trace that says which it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.configuration.checks import require
from harness.schedule import Provenance, Synthetic
from workloads import formats
from workloads.data import SLICE, FileConfig, Found, sha256_of
from workloads.trace import Trace

GIVEN = "file given"  # by workload.path, in place of the dataset's own


@dataclass(kw_only=True, slots=True)
class DatasetConfig:
    title: str
    home: str  # its public home, for people
    licence: str
    parameters: dict[str, Any]  # what the names of its files are made of, if anything
    generated_by_authors: bool  # it is no recording: those who published it generated it
    file: str | None  # which of `files`; null: `workload.path` must name one
    files: dict[str, FileConfig]


def read_file(
    dataset: DatasetConfig, name: str, found: Found, published: FileConfig | None
) -> Trace:
    """All rows of `found`. `name`: the workload's; `published`: what the file should be."""
    path = found.path
    require(path.is_file(), f"workload.path={path} is not a file")
    sha256 = sha256_of(path)
    known = published is not None and published.sha256 == sha256
    own = found.what != GIVEN or known
    provenance = Provenance(
        source=name if own else path.stem,
        origin=f"{dataset.title}: {path.name}, {dataset.home}" if own else path.name,
        synthetic=[str(Synthetic.BY_AUTHORS)] if dataset.generated_by_authors else [],
        licence=dataset.licence if own else "not known here",
        source_sha256=sha256,
        file=found.what,
    )
    trace = formats.read(path, provenance)
    changed = found.what != SLICE and not known
    if changed and published is not None and published.sha256 is not None:
        trace = trace.labelled("not the published file (sha256 differs)")
    return trace
