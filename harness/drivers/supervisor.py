"""Runs one command so that nothing it starts can outlive the harness. Linux; run as a script:

    python supervisor.py GRACE_S COMMAND [ARGUMENT ...]

When the command ends, or standard input closes (the harness holds the other end, so also when
it is killed), or SIGTERM comes, whatever the command started is ended: SIGTERM, a time of grace
(GRACE_S for the command itself), SIGKILL. Exits with the command's status, 128 + n where signal
n killed it.
Knows nothing of servers; imports nothing of the harness, so that it starts at once.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial

import psutil

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
TRACKER = "multiprocessing.resource_tracker"
BELOW_THE_CLIENT = 5  # niceness
ORPHAN_GRACE_S = 2.0  # for what outlives the command; it has had its time
LIBC = ctypes.CDLL(None)  # loaded before any fork: a forked child may only call it


def main(grace_s: float, command: list[str]) -> int:
    # As subreaper this process inherits every orphan below it, whatever group it moved to.
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, preexec_fn=partial(_die_with, os.getpid())
    )
    try:
        ended = os.pidfd_open(child.pid)
        select.select([sys.stdin.fileno(), ended], [], [])
    finally:
        status = _end(child, grace_s)
    return status if status >= 0 else 128 - status


def _die_with(supervisor: int) -> None:
    """Has the kernel tell the command to end where even the supervisor is killed, as it may have
    been already. Below the client's priority, as our workers are."""
    os.nice(BELOW_THE_CLIENT)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != supervisor:
        os._exit(1)


def _end(child: subprocess.Popen[bytes], grace_s: float) -> int:
    """Ends the command first, so that it can clean up after itself; then what it left."""
    child.terminate()
    try:
        status = child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()
        status = child.wait()
    # Python's resource trackers end by themselves, when they have freed the shared memory of the
    # processes that were killed.
    rounds = (signal.SIGTERM, None), (signal.SIGKILL, TRACKER), (signal.SIGKILL, None)
    for number, spared in rounds:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if spared is None or spared not in " ".join(process.cmdline()):
                    process.send_signal(number)
        if _all_reaped(min(grace_s, ORPHAN_GRACE_S)):
            break
    return status


def _all_reaped(timeout_s: float) -> bool:
    """Waits until no descendant is left: as subreaper, we are the parent of the last of them."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            time.sleep(0.01)
    return False


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
