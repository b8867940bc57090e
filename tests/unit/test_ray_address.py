"""A cluster that cannot be reached is told before Ray asks for it: in a second, not in minutes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence

import pytest

from harness.configuration.ray_address import (
    FEW_TRIES,
    KEY,
    LAUNCHER,
    VARIABLE,
    check_address,
    check_launcher,
)
from harness.errors import UsageError
from harness.experiments.capacity import main as capacity
from harness.experiments.figures import main as figures
from harness.reproduce.__main__ import main as reproduce
from tests.running import run_command

NOBODY = "127.0.0.1:1"
RUN = ("+system=vllm", "+workload=burstgpt", "engine=sim")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VARIABLE, *FEW_TRIES):
        monkeypatch.setenv(name, "")  # so that it is taken back after the test
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "address", [NOBODY, f"ray://{NOBODY}", "127.0.0.1:", "127.0.0.1:99999", "[::1]:1"]
)
def test_an_address_at_which_nobody_is_is_one_sentence(address: str) -> None:
    with pytest.raises(UsageError, match=r"no Ray cluster at RAY_ADDRESS=.*: \S"):
        check_address(address, VARIABLE)


def test_who_answers_is_left_to_ray_which_gives_up_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_address(f"127.0.0.1:{server.getsockname()[1]}", VARIABLE)
    assert FEW_TRIES.items() <= os.environ.items()


@pytest.mark.parametrize(
    ("words", "variable", "named"),
    [
        ([f"{KEY}={NOBODY}"], "", KEY),
        ([f"++{KEY}='{NOBODY}'"], "", KEY),
        ([], NOBODY, VARIABLE),
        ([f"{KEY}=null"], NOBODY, VARIABLE),
    ],
)
def test_the_launchers_cluster_is_the_one_that_ray_would_take(
    words: Sequence[str], variable: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, variable)
    with pytest.raises(UsageError, match=f"no Ray cluster at {named}={NOBODY}: "):
        check_launcher([LAUNCHER, *words])


@pytest.mark.parametrize("words", [[], ["hydra/launcher=joblib"], [LAUNCHER, f"{KEY}=local"]])
def test_there_is_nothing_to_look_at_without_a_cluster(
    words: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a Ray that starts beside other work may take its time."""
    monkeypatch.setenv(VARIABLE, NOBODY)
    check_launcher(words)
    assert not FEW_TRIES.keys() & os.environ.keys()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (figures, ["aegaeon_fig16"]),
        (reproduce, ["aegaeon_fig16"]),
        (capacity, ["seed=1..2", "until", "num_completed>0", *RUN]),
    ],
)
def test_commands_end_before_they_make_a_run(
    command: Callable[[Sequence[str]], int],
    words: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As where Ray's launcher is installed."""
    monkeypatch.setattr("harness.experiments.launched._config", lambda words: None)
    assert command([*words, "--launcher", "ray", f"{KEY}={NOBODY}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: no Ray cluster at {KEY}={NOBODY}: ")
    assert said.count("\n") == 1


def test_a_sweep_ends_before_its_first_point() -> None:
    """Though its launcher may not be installed."""
    ended = run_command(*RUN, "-m", LAUNCHER, f"{KEY}={NOBODY}", "seed=1,2", env={})
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: no Ray cluster at {KEY}={NOBODY}: ")
    assert ended.stderr.count("\n") == 1
