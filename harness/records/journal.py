"""What a live run has recorded so far, on disk each half second: also kill -9 loses no more.

A recorder that notes each stamp for a thread, which adds them to a file in the run's folder. The
file goes when requests.parquet is there; of a run that was killed `python -m harness recover` makes
requests.parquet from it. A simulation can be repeated, and has none.

The file is a sequence of lists in Python's marshal format: JSON takes eight times as long, which
the client would wait for.
"""

from __future__ import annotations

import json
import marshal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

from harness.records.record import Chunk, Recorder, Reported, Segment, Status
from harness.request import Request

JOURNAL = "journal.marshal"
INTERVAL_S = 0.5
BATCH = 100  # stamps that are encoded at once: 0.1 ms, for which the client may wait


class Journal(Recorder):
    """`path` is written from `start` to `close`. Where that fails, `announce` is told and the run
    goes on."""

    def __init__(
        self, requests: Iterable[Request], path: Path, announce: Callable[[str], None]
    ) -> None:
        super().__init__(requests)
        self._path, self._announce = path, announce
        self._noted: deque[tuple[Any, ...]] = deque()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """What was recorded until here is in the file."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def sent(self, request: Request, time_s: float) -> None:
        super().sent(request, time_s)
        self._noted.append(("sent", request.request_id, time_s))

    def segment(self, requests: list[Request], segment: Segment, instance: str) -> None:
        super().segment(requests, segment, instance)
        ids = [request.request_id for request in requests]
        self._noted.append(("segment", ids, segment, instance))

    def preempted(self, request: Request, instance: str, time_s: float) -> None:
        super().preempted(request, instance, time_s)
        self._noted.append(("preempted", request.request_id))

    def reported(self, request: Request, reported: Reported) -> None:
        super().reported(request, reported)
        self._noted.append(("reported", request.request_id, reported))

    def event(self, kind: str, instance: str, start_s: float, end_s: float, **fields: Any) -> None:
        super().event(kind, instance, start_s, end_s, **fields)
        self._noted.append(("event", kind, instance, start_s, end_s, fields))

    def _end(self, request: Request, status: Status, error: str) -> None:
        super()._end(request, status, error)
        self._noted.append(("end", request.request_id, status, error))

    def _write(self) -> None:
        try:
            with self._path.open("wb", buffering=0) as file:
                while not self._over.wait(INTERVAL_S):
                    self._drain(file.write)
                self._drain(file.write)
        except OSError as error:
            self._announce(f"no journal of this run any more: {self._path}: {error.strerror}")

    def _drain(self, write: Callable[[bytes], object]) -> None:
        while self._noted:
            batch = [_plain(self._noted.popleft()) for _ in range(min(BATCH, len(self._noted)))]
            write(marshal.dumps(batch))


def replay(path: Path, recorder: Recorder) -> None:
    """Tells `recorder`, which has the run's requests, what the journal at `path` has."""
    for what, *values in entries(path):
        if what == "segment":
            ids, chunk, (start_s, num_tokens, *steps), instance = values
            made = Chunk(start_s, num_tokens) if chunk else Segment(start_s, num_tokens, *steps)
            recorder.segment([recorder.records[i].request for i in ids], made, instance)
        elif what == "event":
            kind, instance, start_s, end_s, fields = values
            recorder.event(kind, instance, start_s, end_s, **json.loads(fields))
        else:
            record = recorder.records[values[0]]
            if what == "sent":
                recorder.sent(record.request, values[1])
            elif what == "preempted":
                record.num_preemptions += 1
            elif what == "reported":
                recorder.reported(record.request, Reported(*values[1:]))
            else:
                record.status, record.error = values[1:]


def entries(path: Path) -> Iterator[tuple[Any, ...]]:
    """Yields the entries up to the last whole batch."""
    with path.open("rb") as file:
        while True:
            try:
                yield from marshal.load(file)
            except (EOFError, ValueError, TypeError):  # the end, or a half batch there
                return


def _plain(noted: tuple[Any, ...]) -> tuple[Any, ...]:
    """Makes `noted` plain: as marshal can write it, and `replay` expects it."""
    if noted[0] == "segment":
        _, ids, made, instance = noted
        start_s, num_tokens = float(made.start_s), int(made.num_tokens)
        values = start_s, num_tokens, float(made.step_s), float(made.growth_s)
        return "segment", ids, isinstance(made, Chunk), values, instance
    if noted[0] == "event":
        _, kind, instance, start_s, end_s, fields = noted
        text = json.dumps(fields, default=lambda number: number.item())  # of numpy
        return "event", kind, instance, float(start_s), float(end_s), text
    if noted[0] == "sent":
        return "sent", noted[1], float(noted[2])
    if noted[0] == "reported":
        return "reported", noted[1], *astuple(noted[2])
    return noted
