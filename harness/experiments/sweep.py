"""After a Hydra multirun: one table of all its runs, in the order of the sweep.

A Hydra callback (conf/config.yaml, hydra.callbacks). It finds the sweep's runs by the marks that
`harness.running.sweep_points` leaves. The sweep's id is also the W&B group.
"""

from __future__ import annotations

import hashlib
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, read_write
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.configuration.config import build
from harness.errors import UsageError
from harness.files import read_json, write_text
from harness.records.interval import interval
from harness.records.run_folder import FinishedRun
from harness.records.run_table import captions, runs_table, sweep_table
from harness.running import sweep_points
from harness.running.prepare import announce

TRACKED = (  # columns of the table in W&B, beside what was swept
    "run", "config_hash", "verdict", "ttft_s.mean", "ttft_s.p50", "ttft_s.p99", "tpot_s.mean",
    "e2e_s.mean", "output_throughput_tokens_per_s", "goodput_per_s", "slo_attainment.request",
)  # fmt: skip
OVER_SEEDS = {  # as the table names them
    "ttft_s.mean": "TTFT s", "tpot_s.mean": "TPOT s",
    "output_throughput_tokens_per_s": "tok/s", "goodput_per_s": "good/s",
    "slo_attainment.request": "SLO",
}  # fmt: skip
REPEATS = ("seed=", "+repeat=")  # runs that differ in these are one setting
Runs = Sequence[tuple[Sequence[str], FinishedRun]]  # each with its overrides


class SweepTable(Callback):  # type: ignore[misc]
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Every point is composed with these words, wherever a launcher runs it: the environment
        and the working directory there are not ours."""
        self._sweep_id = uuid.uuid4().hex[:8]
        words = [
            f"+hydra.job.env_set.{sweep_points.SWEEP_ID_VARIABLE}='{self._sweep_id}'",
            sweep_points.sweep_dir_word(config.hydra.sweep.dir),
        ]
        with read_write(config.hydra.overrides):
            config.hydra.overrides.hydra.extend(words)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        sweep_id = self._sweep_id
        sweep_points.collect_failures(Path(config.hydra.sweep.dir), sweep_id)
        runs = sweep_runs(Path(config.hydra.sweep.dir), sweep_id)
        if runs:
            overridden = [overrides for overrides, _ in runs]
            heading, names = labels(overridden, config.hydra.overrides.task)
            rows = [(name, run.summary) for name, (_, run) in zip(names, runs, strict=True)]
            said = [*captions([run.manifest for _, run in runs]), *idle_seeds(runs)]
            Console().print(sweep_table(rows, heading, said))
            if (over_seeds := intervals_table(runs)) is not None:
                Console().print(over_seeds)
            path = write_csv(Path(config.hydra.sweep.dir), runs)
            print(path)
            track(runs, sweep_id, path)
        elif not sweep_points.failed:
            why = (
                f"no point left a run in {config.hydra.sweep.dir}: all hosts must share this folder"
            )
            print(f"error: {why}", file=sys.stderr)
            sweep_points.failed.append(1)


def intervals_table(runs: Runs) -> Table | None:
    """Mean and 95 % interval of each setting over its seeds and repeats, of VALID runs; None where
    no setting has two."""
    runs = [pair for pair in runs if pair[1].summary["verdict"]["status"] == "VALID"]
    of_setting = settings([overrides for overrides, _ in runs])
    if max(map(len, of_setting.values()), default=0) < 2:
        return None
    heading, names = labels([list(setting) for setting in of_setting])
    if len(names) == 1:
        heading, names = "", ["all"]
    keys = [each for each in ("seed", "repeat") if len({_pairs(o).get(each) for o, _ in runs}) > 1]
    title = f"mean and 95 % interval over {' and '.join(keys)}s, VALID runs"
    shown = (*OVER_SEEDS.values(), "runs")
    table = runs_table(title, heading, shown, min_width=6)
    found = [flattened(run.summary) for _, run in runs]
    for name, numbers in zip(names, of_setting.values(), strict=True):
        columns = ([found[i][key] for i in numbers if key in found[i]] for key in OVER_SEEDS)
        cells = [_plus_minus(each) if len(each) == len(numbers) else "none" for each in columns]
        table.add_row(escape(name), *cells, str(len(numbers)))
    return table


def _plus_minus(values: Sequence[float]) -> str:
    found = interval(values)
    return f"{found.mean:.3g}" + ("" if found.half is None else f" ± {found.half:.2g}")


def write_csv(folder: Path, runs: Runs) -> Path:
    """A row for each run: what was overridden, its folder, hashes, verdict, and every number of its
    summary by dotted name. `python -m harness plots sweep` draws it."""
    import pandas as pd  # each run imports this module, and no run pandas

    rows = [
        {
            **_pairs(overrides), "run": str(run.path),
            **{key: run.manifest[key] for key in ("config_hash", "schedule_sha256")},
            "verdict": run.summary["verdict"]["status"], **flattened(run.summary),
        }
        for overrides, run in runs
    ]  # fmt: skip
    digest = hashlib.sha256("\n".join(sorted(row["run"] for row in rows)).encode()).hexdigest()
    path = folder / f"sweep-{digest[:8]}.csv"
    write_text(path, pd.DataFrame(rows).to_csv(index=False))
    return path


def track(runs: Runs, sweep_id: str, csv: Path) -> None:
    """The sweep's table and plot where its runs are tracked, in their group."""
    import pandas as pd

    table = pd.read_csv(csv)
    swept = [key for key in _pairs(runs[0][0]) if table[key].nunique() > 1]
    swept.sort(key=lambda key: key == "seed")  # drawn over where nothing else was swept
    shown = [*swept, *TRACKED]
    rows = table[[key for key in shown if key in table]].to_dict("records")
    node = runs[0][1].config["tracking"]
    grouped = node | ({"group": sweep_id} if "group" in node else {})
    tracker = build(grouped, "tracking", announce=announce)
    tracker.sweep(rows, swept, csv.stem, csv.parent)


def _pairs(overrides: Sequence[str]) -> dict[str, str]:
    return dict(word.lstrip("+").split("=", 1) for word in overrides if "=" in word)


def sweep_runs(directory: Path, sweep_id: str) -> list[tuple[list[str], FinishedRun]]:
    """(overrides, run) of every complete run of the sweep under `directory`, in its order."""
    found = []
    for path in directory.glob(f"*/{sweep_points.MARK}"):
        with suppress(UsageError):  # of an earlier sweep: this one's marks were just made
            mark = read_json(path)
            if mark.get("sweep_id") == sweep_id:
                found.append((mark, path))
    found.sort(key=lambda pair: int(pair[0]["number"]))
    return [(mark["overrides"], FinishedRun.load(path.parent)) for mark, path in found]


def idle_seeds(runs: Runs) -> list[str]:
    """A sentence where runs that differ in their seed alone replayed one schedule: nothing of it
    was drawn, so that they are repeats and not samples of the workload. Else nothing."""
    swept = [
        {runs[i][1].manifest["seeds"]["seed"]: runs[i][1].manifest["schedule_sha256"] for i in same}
        for same in settings([overrides for overrides, _ in runs]).values()
    ]
    swept = [hashes for hashes in swept if len(hashes) > 1]
    idle = [hashes for hashes in swept if len(set(hashes.values())) == 1]
    if not idle:
        return []
    where = "" if len(idle) == len(swept) else f" in {len(idle)} of {len(swept)} settings"
    seeds = ", ".join(map(str, sorted({seed for hashes in idle for seed in hashes})))
    return [
        f"the seed draws nothing of the workload{where}: seeds {seeds} replay one schedule and are "
        "repeats, not samples"
    ]


def settings(runs: Iterable[Sequence[str]]) -> dict[tuple[str, ...], list[int]]:
    """The numbers of the runs of each setting: what is overridden but for seed and repeat."""
    found: dict[tuple[str, ...], list[int]] = {}
    for number, overrides in enumerate(runs):
        setting = tuple(word for word in overrides if not word.startswith(REPEATS))
        found.setdefault(setting, []).append(number)
    return found


def flattened(summary: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Every number of a summary by its dotted name; None and words are left out."""
    found: dict[str, float] = {}
    for key, value in summary.items():
        if isinstance(value, Mapping):
            found |= flattened(value, f"{prefix}{key}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"{prefix}{key}"] = float(value)
    return found


def labels(overrides: Sequence[Sequence[str]], given: Sequence[str] = ()) -> tuple[str, list[str]]:
    """A heading, and what sets each run apart: the overrides that not all of them share.

    Where they share all, as one run that is left of a sweep does, it is what was swept: those
    that are not among the `given`, the sweep's own, in which a swept key has all its values.
    Where that is one key throughout, the key is the heading and its values are the labels.
    """
    shared = set.intersection(*(set(of_run) for of_run in overrides))
    apart = [[o for o in of_run if o not in shared] for of_run in overrides]
    if not any(apart):
        apart = [[o for o in of_run if o not in given] for of_run in overrides]
    keys = {override.partition("=")[0] for of_run in apart for override in of_run}
    if len(keys) == 1 and all(len(of_run) == 1 for of_run in apart):
        return keys.pop().lstrip("+"), [of_run[0].partition("=")[2] for of_run in apart]
    return "run", [" ".join(of_run) for of_run in apart]
