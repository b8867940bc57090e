"""What servers say of themselves each second while a run lasts: engine_metrics.parquet.

A thread for each server fetches its page /metrics and keeps it compressed: both leave the client's
thread its turns. The pages are parsed after the run, histograms included. A page that did not come,
or is no page of Prometheus' text format, is counted, and the run goes on.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from itertools import chain, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from prometheus_client.parser import text_string_to_metric_families

from harness.clock import WallLoop
from harness.drivers.http_endpoint import HttpEndpoint
from harness.drivers.server import fetch
from harness.files import replaced, writing
from harness.records.record import Recorder

NAME = "engine_metrics.parquet"
INTERVAL_S = 1.0
TIMEOUT_S = 5.0
BATCH_ROWS = 100_000  # that are in memory as Python objects at a time
SCHEMA = pa.schema(
    [
        ("time_s", pa.float64()),  # since the schedule's start, when the page had come
        ("server", pa.string()),
        ("name", pa.string()),
        ("labels", pa.string()),  # JSON object
        ("value", pa.float64()),
    ]
)


class Scraper:
    """The pages of one server, from `with` to its end. Without a first page there is no more."""

    def __init__(self, root: str, headers: Mapping[str, str]) -> None:
        self.pages: list[tuple[float, bytes]] = []  # (time.monotonic(), compressed)
        self.failures: list[str] = []
        self._url, self._headers = f"{root}/metrics", headers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-metrics", daemon=True)

    def __enter__(self) -> Scraper:
        self._scrape()
        if self.pages:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self.pages:
            self._thread.join()

    def _run(self) -> None:
        next_s = time.monotonic()
        while not self._stop.wait(max(0.0, next_s - time.monotonic())):
            self._scrape()
            next_s = max(next_s + INTERVAL_S, time.monotonic())

    def _scrape(self) -> None:
        try:
            page = fetch(self._url, TIMEOUT_S, self._headers)
        except (OSError, HTTPException, ValueError) as error:
            self.failures.append(str(error))
        else:
            self.pages.append((time.monotonic(), zlib.compress(page, 1)))

    def rows(self, server: str, start_s: float) -> Iterator[dict[str, object]]:
        """The samples of the pages from `start_s` of time.monotonic() on."""
        for at_s, page in self.pages:
            text = zlib.decompress(page).decode(errors="replace")
            try:
                found = [one for family in text_string_to_metric_families(text)
                         for one in family.samples]  # fmt: skip
            except (ValueError, KeyError, IndexError) as error:
                self.failures.append(f"no page of metrics: {error}")
                continue
            for one in found if at_s >= start_s else ():
                labels = json.dumps(one.labels, sort_keys=True)
                yield {"time_s": at_s - start_s, "server": server, "name": one.name,
                       "labels": labels, "value": float(one.value)}  # fmt: skip


@contextmanager
def scraping(
    endpoints: Sequence[HttpEndpoint], loop: WallLoop, recorder: Recorder, run_dir: Path
) -> Iterator[None]:
    """Writes `run_dir`/NAME where a server has such a page, and an event of each such server."""
    with ExitStack() as held:
        scrapers = {
            one.name: held.enter_context(Scraper(one.target.root, one.target.headers))
            for one in endpoints
        }
        yield
    told = {name: scraper for name, scraper in scrapers.items() if scraper.pages}
    rows = chain.from_iterable(one.rows(name, loop.start_monotonic_s) for name, one in told.items())
    path, batch = run_dir / NAME, [*islice(rows, BATCH_ROWS)]
    if batch:
        with (
            writing(path), replaced(path) as temporary,
            pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as file,
        ):  # fmt: skip
            while batch:
                file.write_table(pa.Table.from_pylist(batch, SCHEMA))
                batch = [*islice(rows, BATCH_ROWS)]
    for name, one in told.items():  # behind the rows, whose reading counts failures too
        last = one.failures[-1] if one.failures else ""
        recorder.event(
            "scrapes", name, 0.0, loop.now,
            num_pages=len(one.pages), num_failed=len(one.failures), last_error=last,
        )  # fmt: skip
