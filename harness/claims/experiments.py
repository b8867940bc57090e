"""results/claims/experiments.md: of each figure its claims, experiments, command, time and disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from harness.calibrate.tables import markdown_rows, page
from harness.claims.assess import Judged
from harness.claims.page import Papers
from harness.configuration.resolvers import CONF
from harness.files import YamlLoader, read_json
from harness.records.run_folder import RUN_BYTES

HEAD = ["figure", "claims", "experiments", "command", "runs", "minutes", "MB"]


def as_markdown(papers: Papers, published: Path) -> str:
    return page(
        Path(__file__).with_name("templates") / "experiments.md",
        papers=[
            (paper.short, markdown_rows(HEAD, _rows(published / name, rows)))
            for name, (paper, rows) in papers.items()
        ],
    )


def _rows(published: Path, rows: Sequence[Judged]) -> Iterator[list[str]]:
    """A row for each figure, and one for the claims that rest on none."""
    claims: dict[str | None, list[str]] = {}
    for row in rows:
        claims.setdefault(row.claim.figure, []).append(row.claim.id)
    for path in sorted(published.glob("*.json")):
        about = read_json(path)
        count, live = about["num_runs"], set(about["engines"]) - {"sim"}
        minutes = ceil(count * _run_s(about["run_s"]) / 60) if count else 0
        yield [
            path.stem, ", ".join(claims.pop(path.stem, ["none"])),
            ", ".join(about["experiments"]) or "none",
            f"`make reproduce FIGURE={path.stem} TIER=full`",
            f"{count}{', live' if live else ''}", str(minutes), str(ceil(count * RUN_BYTES / 1e6)),
        ]  # fmt: skip
    for figure, left in claims.items():
        yield [figure or "none", ", ".join(left), *["none"] * 5]


def _run_s(of_experiments: Mapping[str, float]) -> float:
    """Seconds of a run of a figure: the mean of its experiments, each by the runs of its sweep."""
    runs = {name: _num_runs(CONF / "experiment" / f"{name}.yaml") for name in of_experiments}
    return sum(runs[name] * each for name, each in of_experiments.items()) / sum(runs.values())


def _num_runs(experiment: Path) -> int:
    swept: Any = yaml.load(experiment.read_text(), YamlLoader)
    for key in ("hydra", "sweeper", "params"):
        swept = swept.get(key, {})
    words = [f"{key}={values}" for key, values in swept.items()]
    parsed = OverridesParser.create().parse_overrides(words)
    return len(BasicSweeper.split_arguments(parsed, None)[0])
