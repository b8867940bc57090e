"""Pictures in a page: WebP without loss but of colours, for a third of the PNG's bytes."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from PIL import Image

from plots.figure import drawn
from plots.style import DPI

COLOURS = 64  # by octree: the median cut makes one orange of two
BESIDE_DPI = 90  # of what is drawn for the page alone
Embed = Callable[[Path], dict[str, str]]


def picture(path: Path) -> dict[str, str]:
    """`path`: a PNG, or a figure's CSV, which is drawn. `src` is its data URL, `of` the beginning
    of the file's sha256, by which the page tells what it was made of."""
    png = io.BytesIO(path.read_bytes())
    if path.suffix != ".png":
        png = io.BytesIO()
        drawn(path.stem, path.parent).savefig(png, dpi=BESIDE_DPI, format="png")
    with Image.open(png) as found:
        return _embedded(path, found.convert("RGB"))


def small(path: Path) -> dict[str, str]:
    """A PNG, as small as what is drawn for the page alone."""
    with Image.open(path) as found:
        size = [round(pixels * BESIDE_DPI / DPI) for pixels in found.size]
        return _embedded(path, found.convert("RGB").resize(size, Image.Resampling.LANCZOS))


def _embedded(path: Path, made: Image.Image) -> dict[str, str]:
    webp = io.BytesIO()
    made.quantize(COLOURS, Image.Quantize.FASTOCTREE).convert("RGB").save(
        webp, "WEBP", lossless=True, quality=80
    )
    return {"src": f"data:image/webp;base64,{b64encode(webp.getvalue()).decode()}", "of": of(path)}


def of(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:12]


def description(path: Path) -> str:
    """The first line of a PNG's Description: what its caption says."""
    with Image.open(path) as found:
        return str(found.info.get("Description", path.stem)).partition("\n")[0]
