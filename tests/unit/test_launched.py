"""Runs that one of Hydra's launchers makes; `basic`, which every Hydra has, makes them here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from operator import floordiv, neg
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn, JobStatus

from harness.errors import RunError, UsageError
from harness.experiments import launched
from harness.experiments.figures import main as figures
from harness.experiments.launched import Launched, Tasks, launcher_words
from harness.experiments.points import RUNS
from harness.reproduce.__main__ import main as reproduce

BASIC = ["hydra/launcher=basic"]


@pytest.fixture(autouse=True)
def hydra_as_it_was() -> Iterator[None]:
    """A command starts Hydra once for its process; other tests of this one start it anew."""
    GlobalHydra.instance().clear()
    yield
    GlobalHydra.instance().clear()


def refused() -> None:
    raise UsageError("no such model")


@pytest.mark.parametrize("num_tasks", [1, 3, 20])
def test_each_call_returns_what_it_would_here(num_tasks: int) -> None:
    pool = Launched(BASIC, num_tasks)
    futures = [pool.submit(neg, i) for i in range(7)]
    assert not any(future.done() for future in futures)
    pool.launch()
    assert [future.result(0) for future in futures] == [0, -1, -2, -3, -4, -5, -6]


def test_a_launch_has_what_was_asked_for_since_the_last_one() -> None:
    pool = Launched(BASIC, 2)
    pool.launch()
    first = pool.submit(neg, 1)
    pool.launch()
    second = pool.submit(neg, 2)
    pool.launch()
    assert (first.result(0), second.result(0)) == (-1, -2)


def test_a_run_that_is_refused_leaves_the_others_of_its_task() -> None:
    pool = Launched(BASIC, 1)
    futures: list[Future[Any]] = [pool.submit(refused), pool.submit(neg, 1)]
    pool.launch()
    with pytest.raises(UsageError, match="no such model"):
        futures[0].result(0)
    assert futures[1].result(0) == -1


def test_what_breaks_a_task_is_told_in_a_sentence() -> None:
    pool = Launched(BASIC, 1)
    pool.submit(floordiv, 1, 0)
    with pytest.raises(RunError, match="a task of the launcher failed: ZeroDivisionError: "):
        pool.launch()


def test_a_cluster_that_cannot_be_reached_is_a_wrong_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Launcher:
        def launch(self, overrides: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
            raise ConnectionError("Could not find any running Ray instance")

    monkeypatch.setattr(launched, "_launcher", lambda config, tasks: Launcher())
    pool = Launched(BASIC, 1)
    pool.submit(neg, 1)
    with pytest.raises(UsageError, match=r"could begin no task: Conn.*Could not"):
        pool.launch()


@pytest.mark.parametrize("command", [figures, reproduce])
def test_a_launchers_keys_may_follow_the_options(
    command: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """As in docs/cluster.md."""
    words = ["aegaeon_fig16", "--jobs", "2", "--launcher", "nonesuch", "hydra.launcher.a=1"]
    assert command(words) == 2
    assert "nonesuch" in capsys.readouterr().err
    assert command(["aegaeon_fig16", "--jobs", "0"]) == 2
    assert "--jobs 0 must be at least 1" in capsys.readouterr().err


def lost() -> None:
    raise ConnectionError("the proxy of a data set does not answer")


def test_a_connection_that_is_lost_after_the_first_task_began_is_no_wrong_command() -> None:
    pool = Launched(BASIC, 1)
    pool.submit(lost)
    with pytest.raises(RunError, match="a task of the launcher failed: ConnectionError: the proxy"):
        pool.launch()
    assert not list(RUNS.glob(".*.begun"))


def test_runs_are_dealt_to_tasks_like_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    dealt: list[list[int]] = []

    class Launcher:
        def __init__(self, tasks: Tasks) -> None:
            self.tasks = tasks

        def launch(self, overrides: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
            dealt.extend([[args[0] for _, args, _ in calls] for calls in self.tasks.calls])
            done = JobStatus.COMPLETED
            calls = self.tasks.calls
            return [JobReturn(_return_value=[0] * len(each), status=done) for each in calls]

    monkeypatch.setattr(launched, "_launcher", lambda config, tasks: Launcher(tasks))
    pool = Launched(BASIC, 3)
    for i in range(7):
        pool.submit(neg, i)
    pool.launch()
    assert dealt == [[0, 3, 6], [1, 4], [2, 5]]


def test_a_launcher_that_there_is_not_is_told_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert figures(["aegaeon_fig06", "--launcher", "slurp"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: hydra/launcher=slurp does not exist; choose one of: basic")


def test_a_launchers_key_needs_a_launcher_that_has_it() -> None:
    assert launcher_words(None, ["aegaeon_fig06", "engine.device=cpu"]) == []
    with pytest.raises(UsageError, match=r"hydra.launcher.n_jobs=2: name the launcher"):
        launcher_words(None, ["hydra.launcher.n_jobs=2"])
    for name in ("null", "true", "2"):
        with pytest.raises(UsageError, match=f"--launcher {name} is no launcher's name|Could not"):
            launcher_words(name, [])
    with pytest.raises(UsageError, match="n_jobs"):
        launcher_words("basic", ["hydra.launcher.n_jobs=2"])
