"""The commands of `python -m harness.fidelity` that serve nothing: they replay what others did."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from harness.errors import UsageError
from harness.fidelity import gpu, replay
from harness.fidelity.arguments import PUBLISHED


def replay_points(words: Sequence[str], console: Console) -> None:
    made = argparse.ArgumentParser(
        prog="python -m harness.fidelity replay",
        description=replay.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    columns = f"CSV with {', '.join(replay.COLUMNS)}"
    made.add_argument("--points", type=Path, required=True, help=columns)
    made.add_argument("--out", type=Path, required=True, help="the same with what was simulated")
    made.add_argument("overrides", nargs="*", metavar="profile=NAME", help="default: vllm_v1")
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
    made = argparse.ArgumentParser(
        prog="python -m harness.fidelity gpu", description=gpu.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("--published", type=Path, help="default: shared/data/gpu_e2e")
    made.add_argument("--out", type=Path, default=PUBLISHED / "gpu", help="default: %(default)s")
    chosen = made.parse_args(words)
    page = gpu.report(chosen.published, chosen.out)
    console.print(f"{page}", soft_wrap=True)
