"""Fig. 6: who has the GPU when three prompts of five fit, FCFS and AQUA's fair slices: the pure
scheduler, iteration by iteration; no device and no copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.style import PALETTE, figure
from systems.aqua.prompt import Limits, Prompt
from systems.aqua.turn import Turn

EXPERIMENTS: tuple[str, ...] = ()
TITLES = {"fcfs": "FCFS", "aqua": "AQUA"}
ARRIVALS = {"A": 0, "B": 0, "C": 4, "D": 4, "E": 8}  # iterations; "C, D arrive at the same time"
PROMPT, OUTPUT, SLICE = 64, 24, 4  # tokens, and k
LIMITS = Limits(
    batch_tokens=64, slice_iterations=SLICE, num_blocks=3 * 6, block_tokens=16, max_prompts=16
)


def schedule(*, fcfs: bool) -> pd.DataFrame:
    """A row per prompt and iteration in which it got tokens."""
    turn, rows = Turn(LIMITS, artifact=False), []
    computed, generated, resident = dict.fromkeys(ARRIVALS, 0), dict.fromkeys(ARRIVALS, 0), set()
    for iteration in range(1000):
        live = [n for n, at in ARRIVALS.items() if at <= iteration and generated[n] < OUTPUT]
        if not live and iteration > max(ARRIVALS.values()):
            break
        turn.arrived = turn.arrived or iteration in ARRIVALS.values()
        prompts = [
            Prompt(
                name, list(ARRIVALS).index(name), PROMPT + generated[name], computed[name],
                generated[name], OUTPUT - generated[name], resident=name in resident,
            )
            for name in live
        ]  # fmt: skip
        if turn.due(prompts):
            resident = set(turn.choose(prompts, fcfs=fcfs).members)
        batch = turn.batch({prompt.request_id: prompt for prompt in prompts})
        done = prefilled = False
        for name, tokens in batch:
            assert isinstance(name, str), "of the prompts above"
            was = generated[name]
            computed[name] += tokens
            if computed[name] == PROMPT + generated[name]:
                generated[name] += 1
                prefilled |= was == 0
            done |= generated[name] == OUTPUT
            rows.append({"prompt": name, "iteration": iteration, "prefill": was == 0})
        turn.ran(1, completed=done, prefilled=prefilled)
    return pd.DataFrame(rows).assign(row="iteration", system="fcfs" if fcfs else "aqua")


def table(points: Sequence[Point]) -> pd.DataFrame:
    every = pd.concat([schedule(fcfs=True), schedule(fcfs=False)])
    return pd.concat([every, starts(every)]).assign(seed=0, inputs="ours")


def starts(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each system: D's first iteration and A's last."""
    return pd.DataFrame(
        {
            "system": system, "row": "run",
            "d_starts": int(of[of.prompt == "D"].iteration.min()),
            "a_ends": int(of[of.prompt == "A"].iteration.max()),
        }
        for system, of in rows.groupby("system")
    )  # fmt: skip


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, 2, width=9, height=2.9)
    for panel, (system, title) in zip(axes, TITLES.items(), strict=True):
        for k, (name, arrival) in enumerate(ARRIVALS.items()):
            of = rows[(rows.system == system) & (rows.prompt == name)]
            spans = [(at, 1) for at in of.iteration]
            colours = ["0.3" if prefill else PALETTE[k] for prefill in of.prefill]
            panel.broken_barh(spans, (k - 0.35, 0.7), facecolors=colours, lw=0)
            panel.plot([arrival], [k], "k|", ms=12)
        panel.set_yticks(range(len(ARRIVALS)), list(ARRIVALS))
        panel.invert_yaxis()
        panel.set(title=title, xlabel="iteration", ylabel="prompt", xlim=(-1, 53))
    return made, "The pure scheduler, no device. Dark: prefill; bar: arrival; k = 4."
