"""What every fuzzed input must leave: an answer within a limit, and nothing half-written."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

LIMIT_S = 60  # of CPU time, for others may use these cores: the slowest answers take a few
MAX_SENTENCE = 3000  # characters of a refusal, whatever it quotes


class Hang(BaseException):
    """Not an Exception: nothing of ours may catch it."""


@contextmanager
def no_hang() -> Iterator[None]:
    def ring(signum: int, frame: FrameType | None) -> None:
        raise Hang(f"no answer in {LIMIT_S} s")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def check_sentence(text: str) -> None:
    assert text.strip()
    assert len(text) <= MAX_SENTENCE
    assert "Traceback" not in text


def partial_files(folder: Path) -> list[Path]:
    return list(folder.rglob("*.partial*"))
