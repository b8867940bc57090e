"""The tables that calibration prints and commits: Markdown, CSV, and the terminal's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from harness.calibrate.scores import (
    DECODE_BAR_PCT,
    LEFT_OUT_DECODE_BAR_PCT,
    LEFT_OUT_PREFILL_BAR_PCT,
    PREFILL_BAR_PCT,
    R2_BAR,
    missed,
)
from harness.files import replaced, write_text

FIT_COLUMNS = [
    "model", "device", "tp", "cells", "prefill_mape_pct", "prefill_r2", "decode_mape_pct",
    "decode_r2", "batch_alone_pct", "misses",
]  # fmt: skip
LEFT_OUT_COLUMNS = [
    "model", "device", "tp", "prefill_mape_pct", "prefill_bias_pct", "decode_mape_pct",
    "decode_bias_pct",
]  # fmt: skip
DATA = (
    "Medians of 12 runs per cell, clean cells of the public profiles of Aegaeon's artifact "
    "(Zenodo 10.5281/zenodo.16673199; vLLM, eager mode, fp16)."
)


def text(value: object) -> str:
    if isinstance(value, float):
        return "–" if pd.isna(value) else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
    return str(value)


def show(console: Console, frame: pd.DataFrame, title: str) -> None:
    table = Table(title=title)
    for column in frame:
        words = not pd.api.types.is_numeric_dtype(frame[column])
        table.add_column(
            str(column).replace("_", " ").replace(" pct", " %"),
            justify="left" if words else "right",
            no_wrap=words,
            overflow="fold",
        )
    for row in frame.itertuples(index=False):
        table.add_row(*map(text, row))
    console.print(table)


def markdown(frame: pd.DataFrame) -> str:
    rows = [list(map(str, frame.columns)), ["---"] * frame.shape[1]]
    rows += [list(map(text, row)) for row in frame.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def save_csv(frame: pd.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.6g")


def fit_report(
    fitted: pd.DataFrame, law: pd.DataFrame, sources: pd.DataFrame, limited: Mapping[str, list[str]]
) -> str:
    """results/published/calibration/fit.md. `limited`: the constants on a limit, by device."""
    fitted = fitted.assign(misses=[", ".join(missed(row)) for row in fitted.itertuples()])
    parts = {
        "prefill MAPE": (fitted.prefill_mape_pct <= PREFILL_BAR_PCT).sum(),
        "decode MAPE": (fitted.decode_mape_pct <= DECODE_BAR_PCT).sum(),
        "prefill R²": (fitted.prefill_r2 > R2_BAR).sum(),
        "decode R²": (fitted.decode_r2 > R2_BAR).sum(),
    }
    late = fitted[fitted.decode_mape_pct > DECODE_BAR_PCT]
    tighter = late[late.batch_alone_pct <= DECODE_BAR_PCT]
    met = "; ".join(f"{name}: {count} of {len(fitted)}" for name, count in parts.items())
    return f"""# How well the cost model fits its measurements

{DATA}
Bars for every pair: prefill MAPE ≤ {PREFILL_BAR_PCT:g} %, decode MAPE ≤ {DECODE_BAR_PCT:g} %,
R² > {R2_BAR}. Met: {met}.

`batch_alone_pct` is the decode error with a free value (the median step) for each batch size. If
even this error misses the bar, the measurements scatter by more than the bar. This is so for
{len(late) - len(tighter)} of the {len(late)} pairs that miss the bar for decode; not for
{pairs(tighter)}. For a pair with little more than one cell per batch size, this column tells
nothing.

{markdown(fitted[FIT_COLUMNS])}

## The law on the same cells: one set of constants per device

{markdown(law[LEFT_OUT_COLUMNS])}

Constants that ended on a limit of the search: {limits(limited)}. An efficiency of 1 is the
datasheet's peak, which kernels do not reach. It means that the cells say little about this
constant. If a decode takes longer to launch its kernels than to read the weights, the speed of
memory hardly shows.

## Three independent sources on A100

None of these sources was fitted. DistServe has coefficients of two engines. MuxServe has profiles
of LLaMA, and Splitwise has profiles of Llama-2-70B, at 576 tokens of context. `outside_pct` is
how far the model lies outside the range of the sources, in percent of the nearest source. Prefill
is in µs per token, from 512 to 2048 tokens. Decode is in ms per step, of 1 and of 32 requests at
128 tokens. MuxServe's LLaMA-13B is compared with OPT-13B, which has nearly the same size.

{markdown(sources)}
"""


def limits(limited: Mapping[str, list[str]]) -> str:
    """The constants of `limited` and whose they are."""
    told = [f"{', '.join(names)} of {device}" for device, names in limited.items() if names]
    return "; ".join(told) or "none"


def pairs(rows: pd.DataFrame) -> str:
    names = [f"{row.model} on {row.device} tp{row.tp}" for row in rows.itertuples()]
    return " and ".join(names) or "none"


def crossval_report(left_out: dict[str, pd.DataFrame]) -> str:
    """results/published/calibration/crossval.md."""
    summary = medians(left_out)
    device = left_out["device"]
    wide = ", ".join(sorted(device[device.tp > 1].device.unique())) or "no device"
    tables = "\n\n".join(
        f"## Each {what} left out\n\n{markdown(frame[LEFT_OUT_COLUMNS])}"
        for what, frame in left_out.items()
    )
    return f"""# How well the cost model predicts what it was not shown

{DATA}

The law is fitted without one model and its twins, and predicts the pairs that were left
out. Twins have the same number of layers, hidden size and KV heads. The same is done without one
device and all devices of the same chip (the same FLOP/s). Bars, median over pairs:
{LEFT_OUT_PREFILL_BAR_PCT:g} % for prefill, {LEFT_OUT_DECODE_BAR_PCT:g} % for decode. Tensor
parallelism was measured on {wide}. If no other chip has it, what it adds to kernel launches is
the start value in harness/calibrate/fit.py, which was chosen with these data in sight. The
medians over single GPUs do not depend on it.

{markdown(summary)}

{tables}
"""


def medians(left_out: dict[str, pd.DataFrame]) -> pd.DataFrame:
    rows = []
    for what, frame in left_out.items():
        for pairs, part in {"all": frame, "single GPU": frame[frame.tp == 1]}.items():
            rows.append(
                {
                    "left out": what,
                    "pairs": pairs,
                    "prefill_mape_pct": part.prefill_mape_pct.median(),
                    "decode_mape_pct": part.decode_mape_pct.median(),
                    "worst_prefill_pct": part.prefill_mape_pct.max(),
                    "worst_decode_pct": part.decode_mape_pct.max(),
                }
            )
    return pd.DataFrame(rows)


def write_markdown(path: Path, report: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, report)


def written(console: Console, paths: Sequence[Path]) -> None:
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True)
