"""How every figure looks, and what every figure says of where its numbers came from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from matplotlib.transforms import Bbox

from harness.files import replaced, writing
from harness.records.run_folder import FinishedRun
from plots.caption import caption, origins

# Not by pyplot, whose import takes as long as a small run, nor by a style library.
LOOK = matplotlib.rc_params_from_file(
    Path(__file__).with_name("look.mplstyle"), use_default_template=False
)
PALETTE: list[Any] = [to_rgb(colour) for colour in LOOK["axes.prop_cycle"].by_key()["color"]]
MAX_POINTS = 2000  # points of a CDF or scatter: more cannot be told apart on paper
DPI = 160


def figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of `width` x `height` inches and its axes, row by row."""
    matplotlib.rcParams.update(LOOK)
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made, list(made.subplots(rows, columns, squeeze=False).flat)


def cdf(axes: Axes, values: npt.NDArray[np.float64], **line: Any) -> None:
    """Draws the empirical CDF of `values` (seconds), thinned evenly in probability."""
    shown = thinned(len(values))
    share = (shown + 1) / max(len(values), 1)
    axes.plot(np.sort(values)[shown], share, drawstyle="steps-post", **line)
    axes.set(ylim=(0, 1.02), ylabel="share", xlabel="seconds")
    log_scale(axes, "x")


def thinned(count: int) -> npt.NDArray[np.int64]:
    """Returns at most MAX_POINTS indices, evenly spread over 0 … count − 1."""
    return np.unique(np.linspace(0, count - 1, min(count, MAX_POINTS)).astype(np.int64))


def log_scale(axes: Axes, which: Literal["x", "y"]) -> None:
    """Makes the axis logarithmic, labelled 0.1, 1, 10, with 2 and 5 where short, and 3; linear with
    nothing above 0."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if not np.isfinite(axis.get_minpos()):
        return

    def between_decades(value: float, position: int | None) -> str:
        low, high = axis.get_view_interval()
        digits = "235" if high < 4 * low else "25"
        return f"{value:g}" if high < 50 * low and f"{value:e}"[0] in digits else ""

    axes.set(**{f"{which}scale": "log"})
    axis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
    axis.set_minor_formatter(FuncFormatter(between_decades))


def text_table(cells: Sequence[Sequence[str]], head: Sequence[str], title: str = "") -> Figure:
    """A table as a figure, as wide and as high as its texts: `cells` row by row below `head`."""
    widths = [max(len(str(row[i])) for row in [head, *cells]) for i in range(len(head))]
    inches = [0.2 + 0.062 * width for width in widths]
    lines = len(cells) + 1
    height = 0.2 * lines + (0.35 if title else 0.1)
    made, (axes,) = figure(1, 1, width=max(4.0, sum(inches) + 0.3), height=height)
    axes.axis("off")
    if title:
        axes.set_title(title)
    shares = [each / sum(inches) for each in inches]
    drawn = axes.table(
        [list(row) for row in cells], colLabels=list(head), colWidths=shares, cellLoc="left",
        colLoc="left", bbox=Bbox.unit(), edges="horizontal",
    )  # fmt: skip
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(8)
    for column in range(len(head)):
        drawn[0, column].get_text().set_fontweight("bold")
    return made


def interval_s(duration_s: float) -> float:
    """About a hundredth of `duration_s`, rounded up to 1, 2 or 5 times a power of ten."""
    wanted = max(duration_s, 1e-3) / 100
    decade = 10.0 ** np.floor(np.log10(wanted))
    return float(next(step * decade for step in (1, 2, 5, 10) if step * decade >= wanted))


def stamp_runs(made: Figure, runs: Sequence[FinishedRun], *notes: str) -> None:
    """Writes the caption of pictures of a few runs: which are INVALID, and `notes`; origins with
    the runs' hashes."""
    invalid = [run.path.name for run in runs if run.summary["verdict"]["status"] != "VALID"]
    said = [f"INVALID: {', '.join(invalid)}."] if invalid else []
    manifests = [run.manifest for run in runs]
    hashes = dict.fromkeys(str(manifest["config_hash"]) for manifest in manifests)
    caption(made, " ".join([*said, *notes]), [*origins(manifests), ", ".join(hashes)])


def save(made: Figure, path: Path) -> Path:
    """Writes the figure in the format of `path`. Raises RunError with the path and the operating
    system's words where that fails."""
    with writing(path), replaced(path) as temporary:
        if path.suffix == ".png" and (layout := made.get_layout_engine()):
            made.set_dpi(DPI)
            layout.execute(made)  # savefig does it by drawing all of the figure once more
            made.set_layout_engine(None)
        # A PDF would else differ by its date at every drawing.
        said = str(made.get_label())
        about = {"CreationDate": None} if path.suffix == ".pdf" else {"Description": said}
        made.savefig(temporary, dpi=DPI, metadata=about)
    return path
