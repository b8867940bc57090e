"""Fig. 13: end to end, 90B, as Fig. 12."""

from __future__ import annotations

from plots.kunserve_fig12 import plot, table

__all__ = ["EXPERIMENTS", "plot", "table"]

EXPERIMENTS = ("kunserve_fig13",)
