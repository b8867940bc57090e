"""`python -m harness +system=NAME +workload=NAME [key=value …]`: one experiment, or with -m many.

Exit status: 0 done, 1 the run broke, 2 a wrong command, 130 interrupted. Every error that a
user can cause is told in one sentence.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from harness.errors import RunError, UsageError
from harness.options import config_sentence, missing_groups

CONF = Path(__file__).resolve().parent.parent / "conf"
DIRECTORY_KEYS = ("hydra.run.dir=", "hydra.sweep.dir=", "runs_dir=")


def hydra_main(function: Callable[[DictConfig], None]) -> Callable[[], None]:
    """Hydra's decorator, typed: it parses sys.argv and calls `function` once per job."""
    decorated: Callable[[], None] = hydra.main(
        config_path=str(CONF), config_name="config", version_base="1.3"
    )(function)
    return decorated


@hydra_main
def run_one(config: DictConfig) -> None:
    try:
        missing_groups(config, CONF)
        from harness.run import run  # after the check, so that a mistyped command answers at once

        chosen = HydraConfig.get()
        shared = chosen.sweep.dir if chosen.mode == RunMode.MULTIRUN else config.runs_dir
        output_dir = Path(chosen.runtime.output_dir)
        run(
            config,
            output_dir=output_dir,
            named=output_dir.resolve() != Path(shared).resolve(),
            choices=dict(chosen.runtime.choices),
            overrides=list(chosen.overrides.task),
        )
    except Exception as error:
        tell_and_exit(error)


def tell_and_exit(error: Exception) -> NoReturn:
    """Exits with the error's status after one sentence; re-raises what is our own fault."""
    if isinstance(error, (UsageError, HydraException, OmegaConfBaseException)):
        print(f"error: {config_sentence(error, CONF)}", file=sys.stderr)
        sys.exit(2)
    if isinstance(error, RunError):
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    raise error


def main() -> None:
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions reach us instead of Hydra's own printer
    signal.signal(signal.SIGTERM, _interrupt)
    # Hydra reads a bare null as None, but it is a system's name.
    sys.argv = [re.sub(r"^(\+?system)=null$", r"\1='null'", word) for word in sys.argv]
    made = not_yet_there(sys.argv)
    try:
        run_one()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        if error.filename not in map(str, made):
            tell_and_exit(error)
        tell_and_exit(UsageError(f"cannot make the folder {error.filename}: {error.strerror}"))
    except Exception as error:
        tell_and_exit(error)
    finally:
        remove_empty(made)


def not_yet_there(arguments: Sequence[str]) -> list[Path]:
    """The folders that Hydra will make before our code runs, innermost first."""
    named = [a.split("=", 1)[1] for a in arguments if a.startswith(DIRECTORY_KEYS)]
    paths = [Path(name).absolute() for name in [*named, "results/runs"]]
    return [folder for p in paths for folder in [p, *p.parents] if not folder.exists()]


def remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
