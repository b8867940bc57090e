"""The commands of `python -m harness fidelity` that serve nothing: they replay what others did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from harness.configuration.command_line import parser
from harness.errors import UsageError
from harness.fidelity import gpu, replay
from harness.fidelity.arguments import PUBLISHED


def replay_points(words: Sequence[str], console: Console) -> None:
    made = parser("fidelity replay", replay.__doc__)
    columns = f"CSV file with the columns {', '.join(replay.COLUMNS)}"
    made.add_argument("--points", type=Path, required=True, metavar="FILE", help=columns)
    written = "CSV file to write: the same rows with the simulated numbers"
    made.add_argument("--out", type=Path, required=True, metavar="FILE", help=written)
    profile = "the engine, of conf/engine/profile (vllm_v1)"
    made.add_argument("overrides", nargs="*", metavar="profile=NAME", help=profile)
    chosen = made.parse_args(words)
    result = replay.replay(chosen.points, chosen.out, _profile(chosen.overrides))
    simulated = int((result.reason == "").sum())
    console.print(f"{simulated} of {len(result)} points simulated: {chosen.out}", soft_wrap=True)


def _profile(overrides: Sequence[str]) -> str:
    """The last profile=NAME, or the default."""
    found = replay.PROFILE
    for word in overrides:
        key, equals, value = word.partition("=")
        if key != "profile" or not equals:
            raise UsageError(f"unknown override {word}; valid: profile=NAME")
        found = value
    return found


def gpu_report(words: Sequence[str], console: Console) -> None:
    made = parser("fidelity gpu", gpu.__doc__)
    data = "the published runs; default: $HARNESS_DATA_DIR/gpu_e2e"
    made.add_argument("--published", type=Path, metavar="DIR", help=data)
    out = PUBLISHED / "gpu"
    made.add_argument("--out", type=Path, default=out, metavar="DIR", help="%(default)s")
    chosen = made.parse_args(words)
    page = gpu.report(chosen.published, chosen.out)
    console.print(f"{page}", soft_wrap=True)
