"""What an expression of a claim may be made of, checked before there is a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from harness.errors import UsageError

# The columns that each function takes, besides `where`.
OF_ROWS = {
    "crossing": ("x", "y"),
    "cell": ("column",),
    "mean": ("column",),
    "highest": ("column",),
    "lowest": ("column",),
}
OPTIONAL = {"highest": ("over",), "lowest": ("over",)}  # columns, by which one is chosen
PAIRS = {"ratio": 2, "most": None, "least": None}  # of how many expressions; None: any number
FUNCTIONS = sorted(["constant", "ratio_of_means", *PAIRS, *OF_ROWS])


def check(expression: Any) -> None:
    """Raises UsageError unless `expression` is what `harness.claims.expressions` can evaluate on a
    table that has its columns."""
    if not isinstance(expression, Mapping):
        raise UsageError(f"an expression is one function and its argument, not {expression!r}")
    if len(expression) != 1:
        raise UsageError(f"an expression has one function, not {', '.join(expression) or 'none'}")
    ((name, argument),) = expression.items()
    if name == "constant":
        if isinstance(argument, bool) or not isinstance(argument, int | float):
            raise UsageError(f"constant takes a number, not {argument!r}")
    elif name in PAIRS:
        _check_pair(name, argument)
    elif name == "ratio_of_means":
        _check_keys(name, argument, ("x", "column", "where"), ())
        if not isinstance(argument["where"], list) or len(argument["where"]) != 2:
            raise UsageError(f"ratio_of_means takes two of where, not {argument['where']!r}")
        for each in argument["where"]:
            _check_where(each)
    elif name in OF_ROWS:
        _check_keys(name, argument, OF_ROWS[name], ("where", *OPTIONAL.get(name, ())))
        _check_where(argument.get("where", {}))
    else:
        known = ", ".join(FUNCTIONS)
        raise UsageError(f"there is no function {name} for a claim's value; there are {known}")


def _check_pair(name: str, argument: Any) -> None:
    count = PAIRS[name]
    if not isinstance(argument, list) or len(argument) != (count or max(1, len(argument))):
        raise UsageError(f"{name} takes {count or 'some'} expressions, not {argument!r}")
    for each in argument:
        check(each)


def _check_keys(
    name: str, argument: Any, needed: Collection[str], optional: Collection[str]
) -> None:
    valid = {*needed, *optional}
    if not isinstance(argument, Mapping) or not set(needed) <= set(argument) <= valid:
        raise UsageError(f"{name} takes {', '.join([*needed, *optional])}, not {argument!r}")
    for key in set(argument) - {"where"}:
        named = argument[key] if key == "over" else [argument[key]]
        if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
            raise UsageError(f"{name}.{key} is the name of a column, not {argument[key]!r}")


def _check_where(where: Any) -> None:
    if not isinstance(where, Mapping) or any(isinstance(v, list | dict) for v in where.values()):
        raise UsageError(f"where takes columns and the value of each, not {where!r}")
