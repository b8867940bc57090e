"""Ctrl-C, SIGTERM and SIGHUP (a closed terminal) all end a command in order, with exit status 130.

Each raises KeyboardInterrupt where the main thread is. Python loses one that is raised in a
callback of a library or of the garbage collector ("Exception ignored in …"), so long work also asks
`check` now and then.
"""

from __future__ import annotations

import signal
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_heard: list[int] = []


def listen() -> None:
    """Listens for SIGNALS from here on, in the main thread. What is ignored stays so: nohup does
    that to SIGHUP."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)


def check() -> None:
    """Raises KeyboardInterrupt if one was asked for, be it once more."""
    if _heard:
        raise KeyboardInterrupt(signal.Signals(_heard[0]).name)


def heard() -> bool:
    return bool(_heard)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    _heard.append(signum)
    check()
