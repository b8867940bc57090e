"""`python -m harness +system=NAME +workload=NAME [key=value …]`: one experiment, or with -m many,
or with repeat=N the same N times.

Exit status: 0 done, 1 the run broke, 2 a wrong command, 3 INVALID with strict=true, 130
interrupted. Every error that a user can cause is told in one sentence.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import fields
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from harness.configuration import key_help, options
from harness.configuration.checkpoint import take_checkpoint
from harness.configuration.command_line import COMMANDS, run_command
from harness.configuration.credentials import hold, without_credentials
from harness.configuration.options import CONF
from harness.configuration.ray_address import check_launcher
from harness.errors import InvalidRun, RunError, UsageError, first_line, told
from harness.running import interrupts, sweep_points

HYDRA_KEYS = (*(field.name for field in fields(HydraConf)), "env")  # env is in its YAML alone
LEFT_OUT = ("slo.goodput=", "engine.cluster=", "engine.transport=", "hardware.nodes=")
RUN_DIR, SWEEP_DIR, SWEEPER = "hydra.run.dir=", "hydra.sweep.dir=", "hydra/sweeper="
MOST_REPEATS = 10_000  # Hydra writes out every run of a sweep before the first
IN_A_RUN = "raised in a run"  # a note of errors that are ours, not of Hydra and its plugins


# It parses sys.argv and calls the function once per job.
@hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")  # type: ignore[untyped-decorator]
def run_one(config: DictConfig) -> float | None:
    """Returns the run's `objective`, which sweepers such as Optuna's look at."""
    sys.argv = without_credentials(sys.argv)  # which W&B takes down
    try:
        os.chdir(HydraConfig.get().runtime.cwd)  # a launcher's host may have begun elsewhere
        options.missing_groups(config, CONF)
        options.known_groups(config)
        sources = HydraConfig.get().runtime.config_sources
        options.known_device(config, [Path(each.path) for each in sources if each.schema == "file"])
        options.known_keys(HydraConfig.get(), HYDRA_KEYS, "hydra.")
        # after the check, so that a mistyped command answers at once
        from harness.running.run import Command, run

        chosen = HydraConfig.get()
        swept = chosen.mode == RunMode.MULTIRUN
        options.refuse_ignored(config.engine, config.system, chosen.overrides.task)
        take_checkpoint(config, str(chosen.runtime.choices["model"]), chosen.overrides.task)
        shared = chosen.sweep.dir if swept else config.runs_dir
        output_dir = Path(chosen.runtime.output_dir)
        named = output_dir.resolve() != Path(str(shared)).resolve()
        choices, overrides = dict(chosen.runtime.choices), list(chosen.overrides.task)
        return run(config, Command(output_dir, named, choices, overrides, swept))
    except Exception as error:
        error.add_note(IN_A_RUN)
        if HydraConfig.get().mode != RunMode.MULTIRUN:
            sys.exit(tell(error))
        # A launcher raises it in the process that began the sweep, without its traceback.
        error.add_note(traceback.format_exc())
        chosen = [o for o in HydraConfig.get().overrides.task if o not in sys.argv]
        # The other points are run, and then we exit with its status.
        status = tell(error, f"error at {' '.join(chosen)}" if chosen else "error")
        sweep_points.note_failure(Path(HydraConfig.get().sweep.dir), status)
        return None


def tell(error: Exception, heading: str = "error") -> int:
    """Prints one sentence and returns the exit status; re-raises what is our own fault."""
    if isinstance(error, (UsageError, HydraException, OmegaConfBaseException)):
        print(told(f"{heading}: {options.config_sentence(error, CONF)}"), file=sys.stderr)
        return 2
    if isinstance(error, RunError):
        print(told(f"{heading}: {error}"), file=sys.stderr)
        return 3 if isinstance(error, InvalidRun) else 1
    raise error


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:
        run_command(sys.argv[1])
        return
    if {"--help", "-h"} & set(sys.argv):
        sys.exit(show_help(sys.argv[1:]))
    gc.set_threshold(50_000, 20, 20)  # most of what a small run makes are modules, which stay
    atexit.register(gc.freeze)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions reach us instead of Hydra's own printer
    interrupts.listen()
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal may lack letters of the tables
        sys.stdout.reconfigure(errors="replace")
    made: list[Path] = []
    try:
        sys.argv = in_order(repeated([hold(added(null_quoted(word))) for word in sys.argv]))
        made = not_yet_there(sys.argv)
        known_options(sys.argv[1:])
        options.named_options(sys.argv[1:])
        if {"-m", "--multirun"} & set(sys.argv) and any(a.startswith(RUN_DIR) for a in sys.argv):
            raise UsageError(f"with -m each run has its own folder: give {SWEEP_DIR}DIR instead")
        known_objective(sys.argv)
        check_launcher(sys.argv)
        if all(map(says_no_mode, sys.argv[1:])):
            with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
                words = [*sys.argv[1:], "hydra.mode=RUN"]
                GlobalHydra.instance().hydra.run("config", run_one.__wrapped__, words)
        else:
            run_one()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if isinstance(error, OSError) and error.filename in map(str, made):
            why = f"cannot make the folder {error.filename}: {error.strerror}"
            sys.exit(tell(UsageError(why)))
        # Hydra raises ValueError and others for words that it cannot make sense of, and so do
        # launchers and sweepers.
        known = isinstance(error, (HydraException, OmegaConfBaseException))
        known = known or IN_A_RUN in getattr(error, "__notes__", ())
        sys.exit(tell(error if known else UsageError(first_line(error))))
    finally:
        remove_leftovers(made)
    sys.exit(max(sweep_points.failed, default=0))


def known_objective(words: Sequence[str]) -> None:
    """Raises UsageError where a sweeper is to look for the best of nothing: all its trials would be
    run first."""
    (sweeper,) = [w for w in words if w.startswith(SWEEPER)][-1:] or [f"{SWEEPER}basic"]
    named = any(word.startswith(("objective=", "+experiment=", "experiment=")) for word in words)
    if sweeper != f"{SWEEPER}basic" and not named:
        raise UsageError(
            f"{sweeper} looks for the best of a number of summary.json: give objective=NAME, such "
            "as objective=ttft_s.mean"
        )


def show_help(words: Sequence[str]) -> int:
    """`--help` alone, or `--help keys [PREFIX]`; whatever else is given is not looked at."""
    after = words[words.index("--help" if "--help" in words else "-h") + 1 :]
    if after[:1] != ["keys"]:
        print(key_help.overview(CONF))
        return 0
    try:
        print(key_help.told(CONF, after[1] if len(after) > 1 else ""))
    except UsageError as error:
        return tell(error)
    return 0


def known_options(arguments: Sequence[str]) -> None:
    """Raises UsageError for an option that Hydra does not have; its parser prints many lines."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise UsageError(f"{message}; --help lists what can be given")

    parser.error = refuse
    parser.parse_args(arguments)


def says_no_mode(word: str) -> bool:
    """Whether `word` cannot make a sweep of a run. With others Hydra composes all of it once more,
    to see its `hydra.mode`, which experiments may set."""
    key = word.lstrip("+~").partition("=")[0]
    one_run = not key.startswith(("-", "experiment", "hydra")) and "@" not in key
    return one_run or word.startswith(RUN_DIR)


def null_quoted(word: str) -> str:
    """Hydra reads a bare null as None, but it is a system's name."""
    key, equals, values = word.partition("=")
    if key not in ("system", "+system"):
        return word
    return key + equals + ",".join("'null'" if v == "null" else v for v in values.split(","))


def added(word: str) -> str:
    """A key that options of conf/ leave out is set like any other, without Hydra's plus signs."""
    return f"++{word}" if word.startswith(LEFT_OUT) else word


def repeated(words: Sequence[str]) -> list[str]:
    """`repeat=N` as a sweep of N runs that differ in their number alone, `+repeat=K`."""
    given = [word for word in words if word.startswith("repeat=")]
    if not given:
        return [*words]
    count = given[-1].partition("=")[2]
    if not (count.isdecimal() and 1 < int(count) <= MOST_REPEATS):
        told = f"of at least 2, and at most {MOST_REPEATS:,}"
        raise UsageError(f"repeat={count} must be a whole number {told}")
    others = [word for word in words if word not in given and word not in ("-m", "--multirun")]
    return [*others, "-m", f"+repeat=range(1,{int(count) + 1})"]


def in_order(words: Sequence[str]) -> list[str]:
    """The system before the workload: where both choose a model set, Hydra lets the later one win,
    and a trace that names the models it was made for knows better. And Hydra's options before
    both: it takes no override behind an option that comes behind another override."""

    def place(word: str) -> int:
        if word.startswith("~") or ("=" in word and not word.startswith("-")):
            return 1 if word.startswith("+system=") else 2
        return 0

    return [*words[:1], *sorted(words[1:], key=place)]


def not_yet_there(arguments: Sequence[str]) -> list[Path]:
    """What Hydra will make beside our code: folders, innermost first, and its record of a sweep,
    which the runs' own configurations make superfluous."""
    named = [
        sweep_points.named_folder(word)
        for word in arguments
        if word.startswith((RUN_DIR, SWEEP_DIR, "runs_dir="))
    ]
    paths = [Path(name).absolute() for name in [*named, "results/runs"]]
    made = [path for p in paths for path in [p / "multirun.yaml", p, *p.parents]]
    try:
        return [path for path in made if not path.exists()]
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be a folder: {error.strerror}") from error


def remove_leftovers(made: Sequence[Path]) -> None:
    for path in made:
        if path.is_file():
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


if __name__ == "__main__":
    main()
