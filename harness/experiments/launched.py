"""Runs of figures and searches on one of Hydra's launchers, as joblib, submitit_slurm or ray.

The runs are dealt to a few tasks, so that a short run does not pay for a process or a place in a
queue of its own. A task makes its runs one after another. Every host sees the checkout, at the same
path: results travel through run folders.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig

from harness.configuration.ray_address import check_launcher
from harness.errors import RunError, UsageError, first_line
from harness.experiments.compose import ROOT, composing
from harness.experiments.points import RUNS
from harness.files import make_folder
from harness.running.sweep_points import sweep_dir_word

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]  # with its arguments
PREFIX = "hydra.launcher."  # of words that set a launcher's own keys


@dataclass(frozen=True, slots=True)
class Tasks:
    """What each task calls, by its number: Hydra's task function. Can be sent to any process."""

    calls: Sequence[Sequence[Call]]
    mark: Path  # the file that says that a task has begun

    def __call__(self, config: DictConfig) -> list[Any]:
        """What each call of this task returned, or the error that it raised."""
        os.chdir(ROOT)  # a launcher's host may have begun elsewhere
        make_folder(self.mark.parent)
        self.mark.touch()
        outcomes: list[Any] = []
        for call, args, kwargs in self.calls[HydraConfig.get().job.num]:
            try:
                outcomes.append(call(*args, **kwargs))
            except (UsageError, RunError) as error:
                outcomes.append(error)
        return outcomes


class Launched(Executor):
    """Calls wait until `launch`, which blocks until all of them have ended, on at most `num_tasks`
    tasks of the launcher that `words` name: `hydra/launcher=NAME` and its own keys."""

    def __init__(self, words: Sequence[str], num_tasks: int) -> None:
        self._num_tasks = num_tasks
        self._waiting: list[tuple[Call, Future[Any]]] = []
        self._config = _config(words)

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append(((call, args, kwargs), future))
        return future

    def launch(self) -> None:
        """Raises RunError where the launcher fails, as where a task was killed; UsageError where it
        reaches no cluster."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        # Neighbours take alike long: dealt like cards, they end in different tasks.
        dealt = [waiting[i :: self._num_tasks] for i in range(min(self._num_tasks, len(waiting)))]
        mark = RUNS / f".{uuid4().hex}.begun"
        tasks = Tasks([[call for call, _ in of_task] for of_task in dealt], mark)
        try:
            returned = _launcher(self._config, tasks).launch([[] for _ in dealt], 0)
            outcomes = [each.return_value for each in returned]
        except (UsageError, RunError):
            raise
        except Exception as error:  # each launcher has errors of its own
            said = f"{type(error).__name__}: {first_line(error)}"
            if not mark.exists():
                raise UsageError(f"the launcher could begin no task: {said}") from error
            raise RunError(
                f"a task of the launcher failed: {said}; the same command "
                "goes on with the runs that are left"
            ) from error
        finally:
            mark.unlink(missing_ok=True)
        for of_task, found in zip(dealt, outcomes, strict=True):
            for (_, future), outcome in zip(of_task, found, strict=True):
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)


def add_launcher(about: ArgumentParser, runs: str) -> None:
    """The option --launcher. `runs`: which it makes."""
    what = f"one of Hydra's launchers makes {runs}, e.g. joblib, submitit_slurm, ray"
    about.add_argument("--launcher", metavar="NAME", help=what)


def launcher_words(name: str | None, words: Sequence[str]) -> list[str]:
    """What names the launcher `name` with its own keys among `words`; [] where there is none.
    Raises UsageError for keys without a launcher, for a launcher or a key that there is not, and
    where nobody answers at the address of a Ray cluster."""
    own = [word for word in words if word.lstrip("+").startswith(PREFIX)]
    if name is None:
        if own:
            raise UsageError(f"{own[0]}: name the launcher, with --launcher NAME")
        return []
    found = [f"hydra/launcher={name}", *own]
    try:
        _config(found)
    except UsageError:
        raise
    except ValueError as error:  # Hydra's, of null, true or a number
        raise UsageError(f"--launcher {name} is no launcher's name") from error
    check_launcher(found)
    return found


def _config(words: Sequence[str]) -> DictConfig:
    return composing(["hydra.mode=MULTIRUN", sweep_dir_word(str(RUNS)), *words])


def _launcher(config: DictConfig, tasks: Tasks) -> Launcher:
    hydra = GlobalHydra.instance().hydra
    assert hydra is not None, "_config made it"
    context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks())
    launcher: Launcher = Plugins.instance().instantiate_launcher(
        hydra_context=context, task_function=tasks, config=config
    )
    return launcher
