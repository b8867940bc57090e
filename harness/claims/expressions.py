"""A claim's value from the table of a figure, by a small set of named, pure functions.

An expression is a mapping of one function to what it takes:

    crossing: {x: COLUMN, y: COLUMN, where: {…}}   the largest x up to which y stays at 0.9
    cell: {column: COLUMN, where: {…}}             the value of the one row there is
    mean: {column, where}                          of the rows that there are
    highest, lowest: {column, over: [COLUMN, …]}   the mean of the rows at one choice of `over`:
                                                   the one whose mean over all seeds is highest;
                                                   without `over` of the rows of each seed.
                                                   at_least: COLUMN with the bound of a value whose
                                                   end was not found; without it such a choice is
                                                   left out
    constant: NUMBER
    ratio_of_means: {x, column, where: [{…}, {…}]} of the first rows over the second's, both over
                                                   the values of x that both have, by trapezoids:
                                                   where points lie close does not count more
    ratio: [EXPRESSION, EXPRESSION]                the first over the second
    most, least: [EXPRESSION, …]                   the one of them with the highest (lowest) mean
                                                   over seeds

Each gives one value for each seed. Undefined values are nan, and stay so; of a value that lies
beyond what was tried the bound is known, and stays known where it is one (`Beyond`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from harness.configuration.checks import require
from harness.errors import UsageError

GOOD = 0.9  # "the 90 % overall SLO requirement"

Value = dict[int, float]  # by seed


class Beyond(float):
    """A lower bound: the end was not found."""


@dataclass(frozen=True, slots=True)
class Found:
    """An expression's values by seed, and the rows of the table that they are computed from."""

    values: Value
    rows: frozenset[Any]  # of the table's index


def evaluate(expression: Mapping[str, Any], table: pd.DataFrame) -> Found:
    """Finds one value or more. Raises UsageError for an expression of what is not there."""
    check(expression)
    found = _evaluate(expression, table)
    if not found.values:
        raise UsageError("no seed has a row for each part of the claim's value")
    return found


def check(expression: Any) -> None:
    """Raises UsageError unless `expression` is what `evaluate` takes, on a table that has its
    columns: told before there is one."""
    if not isinstance(expression, Mapping):
        raise UsageError(f"an expression is one function and its argument, not {expression!r}")
    if len(expression) != 1:
        raise UsageError(f"an expression has one function, not {', '.join(expression) or 'none'}")
    ((name, argument),) = expression.items()
    if name == "constant":
        number = isinstance(argument, int | float) and not isinstance(argument, bool)
        require(number, f"constant takes a number, not {argument!r}")
    elif name in PAIRS:
        count = 2 if name == "ratio" else None
        fitting = isinstance(argument, list) and len(argument) == (count or max(1, len(argument)))
        require(fitting, f"{name} takes {count or 'some'} expressions, not {argument!r}")
        for each in argument:
            check(each)
    elif name == "ratio_of_means":
        _check_keys(name, argument, ("x", "column", "where"), ())
        where = argument["where"]
        two = isinstance(where, list) and len(where) == 2
        require(two, f"ratio_of_means takes two of where, not {where!r}")
        for each in where:
            _check_where(each)
    elif name in OF_ROWS:
        columns = ("x", "y") if name == "crossing" else ("column",)
        over = ("over", "at_least") if name in ("highest", "lowest") else ()
        _check_keys(name, argument, columns, ("where", *over))
        _check_where(argument.get("where", {}))
    else:
        known = ", ".join(sorted(["constant", "ratio_of_means", *PAIRS, *OF_ROWS]))
        raise UsageError(f"there is no function {name} for a claim's value; there are {known}")


def _check_keys(
    name: str, argument: Any, needed: Collection[str], optional: Collection[str]
) -> None:
    given = set(argument) if isinstance(argument, Mapping) else set[str]()
    right = set(needed) <= given <= {*needed, *optional}
    require(right, f"{name} takes {', '.join([*needed, *optional])}, not {argument!r}")
    for key in given - {"where"}:
        if key == "at_least":
            require("over" in given, f"{name}.at_least goes with {name}.over")
        named = argument[key] if key == "over" else [argument[key]]
        texts = isinstance(named, list) and all(isinstance(each, str) for each in named)
        require(texts, f"{name}.{key} is the name of a column, not {argument[key]!r}")


def _check_where(where: Any) -> None:
    plain = isinstance(where, Mapping) and not any(
        isinstance(value, list | dict) for value in where.values()
    )
    require(plain, f"where takes columns and the value of each, not {where!r}")


def _evaluate(expression: Mapping[str, Any], table: pd.DataFrame) -> Found:
    ((name, argument),) = expression.items()
    if name == "constant":
        return Found({0: float(argument)}, frozenset())
    if name in PAIRS:
        return PAIRS[name]([_evaluate(each, table) for each in argument])
    for key in ("x", "y", "column"):
        if key in argument:
            _check_numeric(table, argument[key])
    if name == "ratio_of_means":
        rows = [frozenset(chosen(table, each).index) for each in argument["where"]]
        return Found(ratio_of_means(table, **argument), rows[0] | rows[1])
    arguments = dict(argument)
    shown = chosen(table, arguments.pop("where", {}))
    beyond = False
    if "over" in arguments:
        shown, beyond = _at_extreme(shown, name, **arguments)
        name, arguments = "mean", {"column": arguments["column"]}
    values = {
        seed: OF_ROWS[name](of_seed, **arguments) for seed, of_seed in _by_seed(shown).items()
    }
    if beyond:
        values = {seed: Beyond(value) for seed, value in values.items()}
    return Found(values, frozenset(shown.index))


def _at_extreme(
    rows: pd.DataFrame, name: str, column: str, over: Sequence[str], at_least: str | None = None
) -> tuple[pd.DataFrame, bool]:
    """The rows at the choice of `over` whose mean over all seeds is highest, or lowest; all of them
    where no choice has a value in every row. And whether that is a bound: a value whose end was not
    found is its bound here, and the highest of all may be any such one."""
    for each in over:
        _check_column(rows, each)
    beyond = pd.Series(False, rows.index)
    if at_least is not None:
        _check_numeric(rows, at_least)
        beyond = rows[column].isna() & rows[at_least].notna()
        rows = rows.assign(**{column: rows[column].fillna(rows[at_least])})
    means = rows.groupby(list(over))[column].agg(lambda values: values.mean(skipna=False)).dropna()
    if means.empty:
        return rows, False
    at = means.idxmax() if name == "highest" else means.idxmin()
    values = at if isinstance(at, tuple) else (at,)
    found = chosen(rows, dict(zip(over, values, strict=True)))
    return found, bool((beyond if name == "highest" else beyond[found.index]).any())


def chosen(table: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """The rows whose columns have the values of `where`. Raises UsageError where there is none."""
    fitting = pd.Series(True, table.index)
    for column, value in where.items():
        _check_column(table, column)
        fitting &= table[column] == value
    if not fitting.any():
        raise UsageError(f"no row of the figure has {dict(where)}")
    return table[fitting]


def _check_column(table: pd.DataFrame, column: str) -> None:
    if column not in table:
        known = ", ".join(map(str, table.columns))
        raise UsageError(f"the figure has no column {column}; it has {known}")


def _check_numeric(table: pd.DataFrame, column: str) -> None:
    _check_column(table, column)
    if not is_numeric_dtype(table[column]):
        raise UsageError(f"the figure's column {column} has no numbers: {table[column].iloc[0]!r}")


def crossing(rows: pd.DataFrame, x: str, y: str) -> float:
    """The largest `x` up to which `y` is at GOOD or above, by a straight line between points, or
    the last `x` before one that was refused (`y` is nan). Undefined, nan, where it is below from
    the start; Beyond where it is above all the way."""
    every = rows.groupby(x)[y].mean().sort_index()
    shown = every.dropna()
    xs, ys = shown.index.to_numpy(float), shown.to_numpy(float)
    if not len(xs) or ys[0] < GOOD:
        return float("nan")
    below = np.flatnonzero(ys < GOOD)
    if not len(below):
        return float(xs[-1]) if every.index.max() > xs[-1] else Beyond(xs[-1])
    k = int(below[0])
    return float(np.interp(GOOD, [ys[k], ys[k - 1]], [xs[k], xs[k - 1]]))


def cell(rows: pd.DataFrame, column: str) -> float:
    if len(rows) != 1:
        raise UsageError(f"a claim's cell must be one row, and {len(rows)} match")
    return float(rows[column].iloc[0])


def ratio_of_means(
    table: pd.DataFrame, x: str, column: str, where: Sequence[Mapping[str, Any]]
) -> Value:
    """Raises UsageError where no seed of both has a value of `x` in common."""
    first, second = (_by_seed(chosen(table, each).dropna(subset=[column])) for each in where)
    found = {}
    for seed in sorted(first.keys() & second.keys()):
        ours, theirs = (rows[seed].groupby(x)[column].mean() for rows in (first, second))
        common = ours.index.intersection(theirs.index)
        if len(common):
            found[seed] = ratio([_area(ours[common]), _area(theirs[common])])
    if not found:
        raise UsageError(f"a claim's two means have no {x} in common")
    return found


def _area(curve: pd.Series) -> float:
    """The area under `curve`, by its index; of one point its value."""
    if len(curve) == 1:
        return float(curve.iloc[0])
    return float(np.trapezoid(curve.to_numpy(), curve.index.to_numpy(float)))


def _by_seed(rows: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """All of them as seed 0's where no column says."""
    if "seed" not in rows:
        return {0: rows}
    _check_numeric(rows, "seed")
    seeds = sorted({int(seed) for seed in rows["seed"].dropna()})
    return {seed: rows[rows["seed"] == seed] for seed in seeds}


def _together(values: Sequence[Value], combine: Callable[[list[float]], float]) -> Value:
    """Seed by seed where both have seeds; what has none goes with each."""
    seeds = sorted({seed for value in values if len(value) > 1 for seed in value}) or [0]
    return {
        seed: combine([_of_seed(value, seed) for value in values])
        for seed in seeds
        if all(len(value) == 1 or seed in value for value in values)
    }


def _of_seed(value: Value, seed: int) -> float:
    return value[seed] if seed in value else next(iter(value.values()))


def ratio(values: Sequence[float]) -> float:
    """Undefined over nothing, and over what is beyond what was tried: it may be any smaller."""
    first, second = values
    if not second or isinstance(second, Beyond):
        return float("nan")
    return type(first)(first / second)


def _ratio(parts: Sequence[Found]) -> Found:
    rows = frozenset[Any]().union(*(part.rows for part in parts))
    return Found(_together([part.values for part in parts], ratio), rows)


def most(parts: Sequence[Found]) -> Found:
    """The part with the highest mean over seeds. It is Beyond where one part is."""
    found = _extreme(parts, max)
    if not any(isinstance(value, Beyond) for part in parts for value in part.values.values()):
        return found
    return Found({seed: Beyond(value) for seed, value in found.values.items()}, found.rows)


def least(parts: Sequence[Found]) -> Found:
    return _extreme(parts, min)


def _extreme(parts: Sequence[Found], pick: Callable[..., Found]) -> Found:
    """Undefined where one of them is."""
    for part in parts:
        if np.isnan(list(part.values.values())).any():
            return part
    return pick(parts, key=lambda part: float(np.mean(list(part.values.values()))))


OF_ROWS: dict[str, Callable[..., float]] = {
    "crossing": crossing,
    "cell": cell,
    "mean": lambda rows, column: float(rows[column].mean()),
    "highest": lambda rows, column: float(rows[column].max()),
    "lowest": lambda rows, column: float(rows[column].min()),
}
PAIRS: dict[str, Callable[[Sequence[Found]], Found]] = {
    "ratio": _ratio,
    "most": most,
    "least": least,
}
