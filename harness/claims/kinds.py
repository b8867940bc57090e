"""What a value rests on, and whether it could have come out otherwise: both told by its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from harness.claims.expressions import Value
from harness.claims.ledger import Claim

# In the order of tables.
ARITHMETIC = ("arithmetic on the paper's numbers", "arithmetic on ours")
KINDS = (*ARITHMETIC, "simulated", "live, CPU", "live, GPU")
CPU_PROFILES = "local"  # how hardware profiles of a CPU are called, to begin with


def kind(rows: pd.DataFrame, about: Mapping[str, Any]) -> str:
    """The kind of the value of `rows`. Rows of no run say in `inputs` whose numbers they
    are made of ("paper", "ours"), that they are drawn at random ("drawn"), or were measured on this
    CPU when the figure was drawn ("measured"). `about`: the provenance, narrowed to the rows."""
    if not has_runs(rows):
        inputs = set(rows["inputs"].dropna()) if "inputs" in rows else set()
        if "measured" in inputs:
            return "live, CPU"
        if "drawn" in inputs:
            return "simulated"
        return ARITHMETIC[0] if inputs == {"paper"} else ARITHMETIC[1]
    if set(about["engines"]) <= {"sim"}:
        return "simulated"
    machines = [name for name in about["hardware"] if name]
    on_cpu = any(name.startswith(CPU_PROFILES) for name in machines)
    return "live, CPU" if on_cpu else "live, GPU"


def has_runs(rows: pd.DataFrame) -> bool:
    return "config_hash" in rows and bool(rows["config_hash"].notna().any())


def not_exercised(claim: Claim, values: Sequence[Value], rows: pd.DataFrame) -> str:
    """Why the comparison could not have come out otherwise; empty: it could. A claim about a
    mechanism at rest (`at_rest`) needs none to have run."""
    if not has_runs(rows):
        return ""
    neutral = 0.0 if claim.effect == "saving" else 1.0
    compares = claim.effect is not None or claim.unit == "x"
    if compares and all(value == neutral for each in values for value in each.values()):
        return "both sides are equal to the last digit"
    if len(values) == 2 and values[0] == values[1]:
        return "both ends are equal to the last digit"
    idle = [name for name, ran in _ran(claim, rows).items() if not any(ran)]
    return f"the mechanism of {', '.join(idle)} never ran" if idle else ""


def seldom(claim: Claim, rows: pd.DataFrame) -> str:
    """Which systems' mechanisms ran in some seeds only; empty: none."""
    found = {name: ran for name, ran in _ran(claim, rows).items() if any(ran) and not all(ran)}
    told = [f"that of {name} in {sum(ran)} of {len(ran)} seeds" for name, ran in found.items()]
    return f"the mechanism did not always run: {', '.join(told)}" if told else ""


def _ran(claim: Claim, rows: pd.DataFrame) -> dict[str, list[bool]]:
    """In which seeds each system's mechanism ran."""
    if claim.at_rest or "mechanism" not in rows:
        return {}
    found: dict[str, dict[int, bool]] = {}
    rows = rows.dropna(subset=["mechanism"])
    systems, seeds = (
        rows[name] if name in rows else [default] * len(rows)
        for name, default in (("system", "it"), ("seed", 0))
    )
    for system, seed, amount in zip(systems, seeds, rows["mechanism"], strict=True):
        of_system = found.setdefault(str(system), {})
        of_system[int(seed)] = of_system.get(int(seed), False) or float(amount) > 0
    return {name: list(ran.values()) for name, ran in sorted(found.items())}
