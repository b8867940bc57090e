"""Workers start side by side, and one that hangs or dies is named for what it did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from harness.engine.host import Launch
from harness.engine.launcher import LocalLauncher
from harness.engine.transport import Header
from harness.engine.worker_process import WorkerProcess, side_by_side
from harness.errors import RunError

pytestmark = pytest.mark.live


@contextmanager
def workers(folder: Path, does: Sequence[str], hang_timeout_s: float) -> Iterator[list[Header]]:
    """What the workers answer that do this."""
    with ExitStack() as stack:
        made, launcher = [], LocalLauncher(stack, folder)
        for number, each in enumerate(does):
            name, log_path = f"torch-{number}", folder / f"{number}.log"
            process, sock = launcher.start(
                Launch(name, "tests.unit.engine.odd_worker", log_path, 1), 0
            )
            made.append(WorkerProcess(name, process, sock, log_path, hang_timeout_s, 60.0))
            stack.callback(made[-1].close)
            made[-1].send({"op": "setup", "does": each, "number": number})
        yield side_by_side(
            [partial(worker.handshake, 20.0) for worker in made],
            [worker.kill for worker in made],
        )


def test_answers_come_in_the_order_of_the_workers(tmp_path: Path) -> None:
    with workers(tmp_path, ["serve"] * 3, 10.0) as ready:
        assert [answer["number"] for answer in ready] == [0, 1, 2]


def test_a_worker_that_dies_is_told_while_others_still_load(tmp_path: Path) -> None:
    says = pytest.raises(RunError, match=r"torch-1 .* died: exit status 3")
    with says, workers(tmp_path, ["load", "die", "load"], 10.0):
        pass


def test_a_worker_that_hangs_at_its_start_is_told_by_its_silence(tmp_path: Path) -> None:
    says = pytest.raises(RunError, match=r"torch-2 .* hangs: no sign of life for 2 s")
    with says, workers(tmp_path, ["load", "serve", "hang"], 2.0):
        pass
