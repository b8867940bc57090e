"""Live runs that are no figure's: the demo of the smoke tier, and a burst at vLLM's engine."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from harness.experiments.compose import composed, groups
from harness.experiments.figures import published
from harness.experiments.points import by_key, run_point
from harness.files import read_json
from harness.reproduce.asked import ON_VLLM, SMOKE_RUN
from harness.reproduce.holding import FAILED, SAME, UNTOLD, Row
from harness.running.prepare import announce

RUN_S = {SMOKE_RUN: 60.0} | dict.fromkeys(ON_VLLM.values(), 90.0)  # on two free cores


def run_name(experiment: str, overrides: Sequence[str]) -> str:
    """The experiment, and the options of its sweep."""
    return " ".join([experiment, *by_key(overrides).values()])


def live_run(experiment: str, overrides: Sequence[str] = (), profile: Sequence[str] = ()) -> Row:
    """A run of `experiment`, made unless there is a VALID one; `profile`: more overrides. An
    INVALID one says that something disturbed this machine, and not that a result is different; one
    whose requests failed has failed. Its mean TTFT is told beside that of the committed table of
    such runs, if there is one, and not compared."""
    name, words = run_name(experiment, overrides), [*overrides, *profile]
    announce(f"{name}: a live run, {RUN_S[experiment]:.0f} s on two free cores")
    made = composed([f"+experiment={experiment}", *groups(words)])
    point = run_point(experiment, made, words, again=False)
    if point.path is None:
        return Row("run", name, FAILED, point.refused)
    summary = read_json(point.path / "summary.json")
    told = f"{summary['num_completed']} of {summary['num_requests']} requests completed, "
    valid = summary["verdict"]["status"] == "VALID"
    told += "VALID" if valid else f"INVALID: {'; '.join(summary['verdict']['reasons'])}"
    if summary["num_completed"] < summary["num_requests"]:
        return Row("run", name, FAILED, told)
    kind = SAME if valid else UNTOLD
    committed = published(experiment) / "live" / f"{experiment}.csv"
    if committed.is_file():
        before = _of_run(pd.read_csv(committed), overrides)["ttft_s.mean"].item()
        kind = UNTOLD  # beside the committed one, and not compared
        told += f"; mean TTFT {summary['ttft_s']['mean']:.3g} s, committed {before:.3g} s"
    return Row("run", name, kind, told)


def _of_run(table: pd.DataFrame, overrides: Sequence[str]) -> pd.DataFrame:
    for key, value in by_key(overrides).items():
        table = table[table[key] == value]
    return table
