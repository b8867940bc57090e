"""Scores finished runs under other SLOs, without running them again.

The SLO is said as a run takes it, an option of conf/slo or limits in seconds, or both: slo=chat
slo.ttft_s=0.5. --slo takes several: --slo chat --slo kunserve,baseline=RUN --slo ttft_s=0.5. A
limit that is not given is the run's own. What a good request meets can be said in milliseconds, of
a model too: slo.goodput="ttft:200 tbt_p99:100 llama2-7b/ttft:500" (kinds: ttft, tpot, e2e, tbt_p99,
tbt_max). Attainment, the fluidity index, QoE, smooth goodput (tokens/s) and goodput are computed
from the times of all tokens. A system that reads its SLO, as Aegaeon does, was run for its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from rich.console import Console
from rich.text import Text

from harness.configuration.checks import one_of
from harness.configuration.command_line import ends_in_order, parser
from harness.configuration.config import build
from harness.configuration.options import CONF, available
from harness.errors import UsageError
from harness.files import write_text
from harness.records.attainment import Attained
from harness.records.numbers import number, seconds
from harness.records.run_folder import FinishedRun
from harness.records.run_table import runs_table, share
from harness.records.slo import Slo
from harness.records.smoothness import fluidity_indices, qoe_of_requests, smooth_goodput

OF_SLO = re.compile(r"\+{0,2}slo[=.]")


def scored(run: FinishedRun, slo: Slo) -> dict[str, Any]:
    """One row: attainment by the three definitions; None as in summary.json, where the times of
    single tokens are not known."""
    log, known = run.log, run.times_known
    slo.require_models(log.models)
    attained = Attained.of(log, slo, times_known=known)
    return {
        "run": run.path.name,
        "slo": f"{slo.name} {slo.goodput or ''}".strip(),
        "ttft_s": slo.ttft_s,
        "tbt_s": slo.tbt_s,
        **attained.shares(times_known=known),
        "fluidity_index": float(fluidity_indices(log, slo).mean()) if known else None,
        "qoe": float(qoe_of_requests(log, slo).mean()) if known else None,
        "smooth_tokens_per_s": smooth_goodput(log, slo) if known else None,
        "goodput_per_s": attained.good.sum() / log.duration_s if log.duration_s > 0 else None,
    }


def slo_named(words: str, run: FinishedRun) -> Slo:
    """The SLO that `--slo` names. Raises UsageError for a name or a key that there is not."""
    name, *pairs = words.split(",")
    if "=" in name:
        name, pairs = "", [name, *pairs]
    if name:
        one_of(name, available(CONF, "slo"), "--slo", "choose one of")
        node: dict[str, Any] = yaml.safe_load((CONF / "slo" / f"{name}.yaml").read_text())
    else:
        own = {key: run.summary["slo"].get(key) for key in ("ttft_s", "tbt_s", "goodput")}
        node = {"_target_": f"{Slo.__module__}.{Slo.__name__}", "name": "limits", **own}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--slo {words}: {pair} has no value; give KEY=VALUE")
        node[key] = value
    found: Slo = build(node, "--slo")
    return found


def as_typed(words: Sequence[str]) -> list[str]:
    """The SLO that overrides such as slo=chat and slo.ttft_s=0.5 say, as `--slo` has it; none."""
    given = [OF_SLO.sub("", word) for word in words if OF_SLO.match(word)]
    given.sort(key=lambda word: "=" in word)  # the option, then its values
    return [",".join(given)] if given else []


@ends_in_order
def main(arguments: Sequence[str] | None = None) -> int:
    about = parser("score", __doc__)
    about.add_argument("words", nargs="+", metavar="RUN", help="a run's folder; slo=… slo.KEY=…")
    about.add_argument("--slo", action="append", default=[], metavar="SLO", help="see above")
    about.add_argument("--out", type=Path, metavar="FILE", help="write the rows as CSV")
    chosen = about.parse_intermixed_args(arguments)
    slos = [*as_typed(chosen.words), *chosen.slo]
    runs = [FinishedRun.load(Path(word)) for word in chosen.words if not OF_SLO.match(word)]
    if not runs or not slos:
        raise UsageError("score takes a run's folder and an SLO, e.g. slo=chat or slo.ttft_s=0.5")
    rows = [scored(run, slo_named(words, run)) for run in runs for words in slos]
    names = ("tokens", "time", "requests", "fluidity", "QoE", "smooth/s", "goodput/s")
    table = runs_table("", "run and SLO", names, min_width=14)
    shown: tuple[Callable[[Any], str], ...] = (share, share, share, number, number, number, number)
    for row in rows:
        name, slo, ttft_s, tbt_s, *values = row.values()
        limits = f"TTFT {seconds(ttft_s)}, TBT {seconds(tbt_s)}"
        judged = Text(f"{name}\n{slo}: {limits}")  # in which :100: is no emoji
        told = (show(value) for show, value in zip(shown, values, strict=True))
        table.add_row(judged, *told)
    Console().print(table)
    if chosen.out is not None:
        write_text(chosen.out, pd.DataFrame(rows).to_csv(index=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
