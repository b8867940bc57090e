"""What a conformance test is and finds, and where it runs: golden servers, and runs of the harness,
in processes of their own.

Both end with the test, also with one that is interrupted: a server ends with its standard input.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any
from urllib.request import urlopen

import numpy as np
import numpy.typing as npt

from harness.errors import RunError, UsageError
from harness.files import read_json, write_text
from harness.records.run_folder import FinishedRun
from harness.selftest.golden_server import SEEN
from harness.selftest.script import Play

Floats = npt.NDArray[np.float64]
Row = tuple[float, str, int, int]  # arrival_s, model, prompt_tokens, output_tokens
QUIET = ("tracking=none", "figure=null", "progress=false")
PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"
MAX_RUN_S = 600.0  # a run that lasts longer hangs; on a busy machine vLLM takes minutes to start
MAX_END_S = 30.0  # in which a server writes what it saw


@dataclass(eq=False)
class Seen:
    """One answer, as the server has it; times of time.monotonic()."""

    model: str
    prompt: str  # its hash
    received_s: float
    writes_s: Floats  # an event each, or as many as its script has in a write
    lags_s: Floats  # of each write, behind the script
    blocked_s: float  # for which the client did not take what was written

    def __post_init__(self) -> None:
        self.writes_s, self.lags_s = np.array(self.writes_s), np.array(self.lags_s)


class Server:
    """A golden server in a process of its own. After `stop` it has what it saw."""

    def __init__(self, play: Play, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._log = folder / "server.json"
        write_text(folder / "play.json", play.to_json())
        module = "harness.selftest.golden_server"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(folder / "play.json"), str(self._log)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        port = _pipe(self._process.stdout).readline().strip()
        if not port:
            raise RunError("the golden server did not start")
        self.url = f"http://127.0.0.1:{port}/v1"
        self.most_open = 0  # answers under way at once
        self.answers: list[Seen] = []

    def num_requests(self) -> int:
        """How many have come so far."""
        with urlopen(self.url.removesuffix("/v1") + SEEN, timeout=10) as answer:
            return int(json.load(answer)["num_requests"])

    def stop(self) -> None:
        _pipe(self._process.stdin).close()
        try:
            self._process.wait(MAX_END_S)
        finally:
            self._process.kill()
            self._process.wait()
            _pipe(self._process.stdout).close()
        log = read_json(self._log)
        self.most_open = log["most_open"]
        self.answers = [Seen(**each) for each in log["answers"]]

    def of(self, model: str) -> Seen:
        """The one answer of `model`. RunError where there is another number of them."""
        found = [each for each in self.answers if each.model == model]
        if len(found) != 1:
            raise RunError(f"the server got {len(found)} requests for {model}, not 1")
        return found[0]


class Bench:
    """Starts servers and runs, each in a new folder within `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = count(1)

    def new_folder(self) -> Path:
        """A path where nothing is yet."""
        return self.folder / str(next(self._numbers))

    @contextmanager
    def serving(self, play: Play) -> Iterator[Server]:
        """A server to the end of the block, after which it has what it saw."""
        server = Server(play, self.new_folder())
        try:
            yield server
        finally:
            server.stop()

    def served(self, play: Play, rows: Sequence[Row], *words: str) -> tuple[FinishedRun, Server]:
        """A run of `rows` against a server of its own."""
        with self.serving(play) as server:
            run = self.run(server, rows, *words)
        return run, server

    def run(self, server: Server | None, rows: Sequence[Row], *words: str) -> FinishedRun:
        """A run of `rows` as a user starts it, by `words` against `server`."""
        folder = self.new_folder()
        self.command(*self.words(server, rows), *words, f"hydra.run.dir={folder}")
        return FinishedRun.load(folder)

    def words(self, server: Server | None, rows: Sequence[Row]) -> list[str]:
        """The words of a command that runs `rows` against `server`."""
        trace = self.new_folder().with_suffix(".csv")
        lines = (f"{at:.9f},{model},{prompt},{output}\n" for at, model, prompt, output in rows)
        write_text(trace, "arrival_s,model,prompt_tokens,output_tokens\n" + "".join(lines))
        instances = f"hardware.num_devices={len({row[1] for row in rows})}"  # one for each model
        words = ["+system=vllm", "+workload=trace", f"workload.path={trace}", instances, *QUIET]
        return [*words, *(["engine=openai", f"engine.url={server.url}"] if server else [])]

    def command(self, *words: str, expect: int = 0) -> str:
        """`python -m harness WORDS`; its last line on standard error. RunError where its exit
        status is not `expect`."""
        command = [sys.executable, "-m", "harness", *words]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=MAX_RUN_S
            )
        except subprocess.TimeoutExpired as error:
            raise RunError(f"a run did not end within {MAX_RUN_S:g} s") from error
        last = (ended.stderr.strip().splitlines() or [""])[-1]
        if ended.returncode != expect:
            raise RunError(f"a run ended with exit status {ended.returncode}: {last}")
        return last


def _pipe(end: IO[str] | None) -> IO[Any]:
    assert end is not None
    return end


class Skipped(Exception):
    """The test cannot be made here; says why."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured, and a sentence for each way in which that is wrong."""

    text: str
    wrong: tuple[str, ...] = ()


def found(text: str, checks: Mapping[str, bool]) -> Found:
    """`checks`: what must hold, each with whether it does."""
    return Found(text, tuple(f"not true: {what}" for what, holds in checks.items() if not holds))


@dataclass(frozen=True, slots=True)
class Conformance:
    """One of the tests that an honest harness passes."""

    number: int
    name: str
    test: Callable[..., Found]  # of a Bench
    alone: bool = False  # depends on time: beside no other test

    @property
    def asks(self) -> str:
        """What the test's docstring begins with."""
        return " ".join((self.test.__doc__ or "").partition("\n\n")[0].split())

    def result(self, bench: Bench) -> dict[str, Any]:
        """Its row in what the self-test writes; a run that breaks is a failure."""
        began_s = time.monotonic()
        try:
            made = self.test(bench)
            result, text = (FAILED if made.wrong else PASSED), "; ".join([made.text, *made.wrong])
        except Skipped as why:
            result, text = SKIPPED, str(why)
        except (RunError, UsageError) as error:
            result, text = FAILED, str(error)
        return {
            "number": self.number, "name": self.name, "asks": self.asks, "result": result,
            "found": text, "seconds": round(time.monotonic() - began_s, 2),
        }  # fmt: skip


def conformance(
    number: int, name: str, *, alone: bool = False
) -> Callable[[Callable[[Bench], Found]], Conformance]:
    return lambda test: Conformance(number, name, test, alone)
