"""A claim's value from the table of a figure, by a small set of named, pure functions.

An expression is a mapping of one function to what it takes:

    crossing: {x: COLUMN, y: COLUMN, where: {…}}   the largest x up to which y stays at 0.9
    cell: {column: COLUMN, where: {…}}             the value of the one row there is
    mean, highest, lowest: {column, where}         of the rows that there are
    constant: NUMBER
    ratio: [EXPRESSION, EXPRESSION]                the first over the second
    most, least: [EXPRESSION, …]                   of several setups

Each gives one value for each seed. Undefined values are nan, and stay so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from harness.errors import UsageError

GOOD = 0.9  # "the 90 % overall SLO requirement"

Value = dict[int, float]  # by seed


def evaluate(expression: Mapping[str, Any], table: pd.DataFrame) -> Value:
    """Raises UsageError for an expression that says what there is not."""
    if len(expression) != 1:
        raise UsageError(f"an expression has one function, not {', '.join(expression) or 'none'}")
    ((name, argument),) = expression.items()
    if name == "constant":
        return {0: float(argument)}
    if name in PAIRS:
        values = [evaluate(each, table) for each in argument]
        return _together(values, PAIRS[name])
    if name not in OF_ROWS:
        known = ", ".join(sorted(["constant", *PAIRS, *OF_ROWS]))
        raise UsageError(f"there is no function {name} for a claim's value; there are {known}")
    arguments = dict(argument)
    rows = chosen(table, arguments.pop("where", {}))
    if "seed" not in rows:
        return {0: OF_ROWS[name](rows, **arguments)}
    seeds = sorted({int(seed) for seed in rows["seed"].dropna()})
    return {seed: OF_ROWS[name](rows[rows["seed"] == seed], **arguments) for seed in seeds}


def chosen(table: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """The rows whose columns have the values of `where`: at least one."""
    rows = table
    for column, value in where.items():
        if column not in table:
            known = ", ".join(map(str, table.columns))
            raise UsageError(f"the figure has no column {column}; it has {known}")
        rows = rows[rows[column] == value]
    return rows


def crossing(rows: pd.DataFrame, x: str, y: str) -> float:
    """The largest `x` up to which `y` is at GOOD or above, by a straight line between points, or
    the last `x` before one that was refused (`y` is nan). Undefined, nan, where it is below from
    the start; inf where it is above all the way: the end was not found."""
    every = rows.groupby(x)[y].mean().sort_index()
    shown = every.dropna()
    xs, ys = shown.index.to_numpy(float), shown.to_numpy(float)
    if not len(xs) or ys[0] < GOOD:
        return float("nan")
    below = np.flatnonzero(ys < GOOD)
    if not len(below):
        return float(xs[-1]) if every.index.max() > xs[-1] else float("inf")
    k = int(below[0])
    return float(np.interp(GOOD, [ys[k], ys[k - 1]], [xs[k], xs[k - 1]]))


def cell(rows: pd.DataFrame, column: str) -> float:
    if len(rows) != 1:
        raise UsageError(f"a claim's cell must be one row, and {len(rows)} match")
    return float(rows[column].iloc[0])


def mean(rows: pd.DataFrame, column: str) -> float:
    return float(rows[column].mean())


def highest(rows: pd.DataFrame, column: str) -> float:
    return float(rows[column].max())


def lowest(rows: pd.DataFrame, column: str) -> float:
    return float(rows[column].min())


def _together(values: list[Value], combine: Callable[[list[float]], float]) -> Value:
    """Seed by seed where both have seeds; what has none goes with each."""
    seeds = sorted({seed for value in values if len(value) > 1 for seed in value}) or [0]
    return {
        seed: combine([_of_seed(value, seed) for value in values])
        for seed in seeds
        if all(len(value) == 1 or seed in value for value in values)
    }


def _of_seed(value: Value, seed: int) -> float:
    return value[seed] if seed in value else next(iter(value.values()))


OF_ROWS: dict[str, Callable[..., float]] = {
    "crossing": crossing,
    "cell": cell,
    "mean": mean,
    "highest": highest,
    "lowest": lowest,
}
PAIRS: dict[str, Callable[[list[float]], float]] = {
    "ratio": lambda values: values[0] / values[1] if values[1] else float("nan"),
    "most": lambda values: float(np.max(values)),
    "least": lambda values: float(np.min(values)),
}
