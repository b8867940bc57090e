"""Colours, lines and letters of every figure: Seaborn's "ticks" style in its "paper" size and its
"colorblind" palette, by their values. Importing Seaborn would cost each command a second, most of
it for scipy.stats, which no figure needs."""

from __future__ import annotations

from typing import Any

from cycler import cycler
from matplotlib.colors import to_rgb

PALETTE = [
    to_rgb(colour)
    for colour in (
        "#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc",
        "#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9",
    )
]  # fmt: skip
DARK, LIGHT = ".15", ".8"  # shares of white

THEME: dict[str, Any] = {
    "axes.axisbelow": True, "axes.edgecolor": DARK, "axes.facecolor": "white", "axes.grid": True,
    "axes.labelcolor": DARK, "axes.labelsize": 9.6, "axes.linewidth": 1.0,
    "axes.prop_cycle": cycler("color", PALETTE),
    "axes.spines.bottom": True, "axes.spines.left": True,
    "axes.spines.right": False, "axes.spines.top": False,
    "axes.titlesize": 9.6, "axes.titleweight": "bold",
    "figure.facecolor": "white",
    "font.family": ["sans-serif"],
    "font.sans-serif": [
        "Arial", "DejaVu Sans", "Liberation Sans", "Bitstream Vera Sans", "sans-serif",
    ],
    "font.size": 9.6,
    "grid.alpha": 0.25, "grid.color": LIGHT, "grid.linestyle": "-", "grid.linewidth": 0.6,
    "legend.fontsize": 8.8, "legend.frameon": False, "legend.title_fontsize": 9.6,
    "lines.linewidth": 1.2, "lines.markersize": 4.8, "lines.solid_capstyle": "round",
    "patch.edgecolor": "w", "patch.force_edgecolor": True, "patch.linewidth": 0.8,
    "text.color": DARK,
    "xtick.bottom": True, "xtick.color": DARK, "xtick.direction": "out", "xtick.labelsize": 8.8,
    "xtick.major.size": 4.8, "xtick.major.width": 1.0,
    "xtick.minor.size": 3.2, "xtick.minor.width": 0.8, "xtick.top": False,
    "ytick.color": DARK, "ytick.direction": "out", "ytick.labelsize": 8.8, "ytick.left": True,
    "ytick.major.size": 4.8, "ytick.major.width": 1.0,
    "ytick.minor.size": 3.2, "ytick.minor.width": 0.8, "ytick.right": False,
}  # fmt: skip
