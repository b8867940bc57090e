"""What a live run has recorded so far, on disk each half second: also kill -9 loses no more.

A recorder that notes each stamp for a thread, which adds them to a file in the run's folder. The
file goes when requests.parquet is there; of a run that was killed `python -m harness recover` makes
requests.parquet from it. A simulation can be repeated, and has none.

The file is a line that names the format, then batches: length and CRC-32 of a payload (uint32
each), and the payload, which is a sequence of entries. An entry is its kind (a byte) and what
follows: of tokens, which are nearly all, a packed struct; of all else, a length (uint32) and a JSON
list. Everything is little-endian. JSON alone takes nearly twice as long (165 against 93 µs for 100
tokens), for which the client may wait.
"""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.records.record import Chunk, Recorder, Reported, Segment, Status
from harness.request import Request

JOURNAL = "journal.bin"
FORMAT = b"elastic serving harness, journal 1\n"
BATCH_HEAD = struct.Struct("<II")  # length and CRC-32 of the payload
# kind, whether in one chunk, start_s, num_tokens, step_s, growth_s, length of the name, number of
# ids; then the ids (int64) and the name
TOKENS = "<BBdqddHI"
OTHER = struct.Struct("<BI")  # kind, length of the JSON
OF_TOKENS, OF_OTHER = 1, 0
INTERVAL_S = 0.5
BATCH = 100  # stamps that are encoded at once: 0.1 ms, for which the client may wait
PAUSE_S = 1e-3  # then the client catches up: without it each read of half a second's stamps waits


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
                file.write(FORMAT)
                while not self._over.wait(INTERVAL_S):
                    self._drain(file.write)
                self._drain(file.write)
        except OSError as error:
            self._announce(f"no journal of this run any more: {self._path}: {error.strerror}")

    def _drain(self, write: Callable[[bytes], object]) -> None:
        while self._noted:
            count = min(BATCH, len(self._noted))
            payload = b"".join(_packed(self._noted.popleft()) for _ in range(count))
            write(BATCH_HEAD.pack(len(payload), zlib.crc32(payload)) + payload)
            self._over.wait(PAUSE_S)


def replay(path: Path, recorder: Recorder) -> None:
    """Tells `recorder`, which has the run's requests, what the journal at `path` has. Raises
    UsageError for a file of another format."""
    for what, *values in entries(path):
        if what == "segment":
            ids, made, instance = values
            recorder.segment([recorder.records[i].request for i in ids], made, instance)
        elif what == "event":
            kind, instance, start_s, end_s, fields = values
            recorder.event(kind, instance, start_s, end_s, **fields)
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
    """Yields the entries up to the last whole batch. Raises UsageError for a file of another
    format."""
    with path.open("rb") as file:
        begins = file.read(len(FORMAT))
        if not FORMAT.startswith(begins):
            raise UsageError(f"{path} is no journal of this version: it begins with {begins!r}")
        while len(head := file.read(BATCH_HEAD.size)) == BATCH_HEAD.size:
            length, crc = BATCH_HEAD.unpack(head)
            payload = file.read(length)
            if len(payload) < length or zlib.crc32(payload) != crc:
                return  # a half batch at the end
            yield from _unpacked(payload)


def _packed(noted: tuple[Any, ...]) -> bytes:
    """One entry."""
    if noted[0] == "segment":
        _, ids, made, instance = noted
        name, num_ids = instance.encode(), len(ids)
        packed = struct.pack(
            TOKENS + "q" * num_ids, OF_TOKENS, isinstance(made, Chunk), made.start_s,
            made.num_tokens, made.step_s, made.growth_s, len(name), num_ids, *ids,
        )  # fmt: skip
        return bytes(packed + name)
    if noted[0] == "reported":
        noted = "reported", noted[1], *astuple(noted[2])
    text = json.dumps(noted, default=lambda number: number.item()).encode()  # of numpy
    return OTHER.pack(OF_OTHER, len(text)) + text


def _unpacked(payload: bytes) -> Iterator[tuple[Any, ...]]:
    at = 0
    while at < len(payload):
        if payload[at] == OF_TOKENS:
            found = struct.unpack_from(TOKENS, payload, at)
            _, chunk, start_s, num_tokens, *steps, of_name, num_ids = found
            at += struct.calcsize(TOKENS)
            ids = struct.unpack_from(f"<{num_ids}q", payload, at)
            at += 8 * num_ids
            made = Chunk(start_s, num_tokens) if chunk else Segment(start_s, num_tokens, *steps)
            yield "segment", ids, made, payload[at : at + of_name].decode()
            at += of_name
        else:
            _, length = OTHER.unpack_from(payload, at)
            at += OTHER.size
            yield tuple(json.loads(payload[at : at + length]))
            at += length
