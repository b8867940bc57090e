"""Finding and downloading, against a server on this machine."""

from __future__ import annotations

import functools
import hashlib
import http.server
import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import RunError, UsageError
from workloads.data import BUNDLED, DataHome, FileConfig, Found, download

CONTENT = b"TIMESTAMP,ContextTokens,GeneratedTokens\nXXX,5,6\n" * 50_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    public = tmp_path / "public"
    public.mkdir()
    (public / "lengths.csv").write_bytes(CONTENT)
    handler = functools.partial(Quiet, directory=str(public))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def published(server: str, **changes: object) -> FileConfig:
    values = {
        "path": "set/lengths.csv",
        "url": f"{server}/lengths.csv",
        "bytes": len(CONTENT),
        "sha256": SHA256,
    }
    return FileConfig(**{**values, **changes})


def home(cache: Path, folder: Path | None = None, allowed: bool = True) -> DataHome:
    directory = None if folder is None else str(folder)
    return DataHome(DataHome.Config(dir=directory, cache_dir=str(cache), download=allowed))


def test_a_download_is_kept_and_used_again(server: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    found = home(cache).fetched(published(server))
    assert found == Found(cache / "set/lengths.csv", "full file")
    assert found.path.read_bytes() == CONTENT
    assert home(cache, allowed=False).fetched(published(server)) == found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": "0" * 64}, f"{SHA256} where {'0' * 64}"),
        ({"bytes": 7}, f"{len(CONTENT)} bytes where 7"),
    ],
)
def test_a_wrong_file_leaves_nothing(
    server: str, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(RunError, match=message):
        home(cache).fetched(published(server, **changes))
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_what_cannot_be_had_is_none(server: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert home(cache).fetched(published(server, url=f"{server}/gone.csv")) is None
    assert home(cache).fetched(published(server, url="http://127.0.0.1:9/x")) is None
    assert home(cache).fetched(published(server, url=None)) is None
    assert home(cache, allowed=False).fetched(published(server)) is None
    assert home(cache).given(published(server)) is None
    assert home(cache).beginning(published(server)) is None


def test_the_data_directory_comes_before_what_the_repository_carries(tmp_path: Path) -> None:
    name = "aegaeon_workloads/synth-8-0.1-1.0-1.0.csv"
    file = FileConfig(path=name, url=None, bytes=None, sha256=None)
    carried = home(tmp_path / "cache").given(file)
    assert carried == Found(BUNDLED / name, "bundled file")
    mine = tmp_path / "data" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    found = home(tmp_path / "cache", tmp_path / "data").given(file)
    assert found == Found(mine, "full file")


def test_a_damaged_cache_is_refused(server: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    found = home(cache).fetched(published(server))
    assert found is not None
    found.path.write_text("damaged")
    with pytest.raises(UsageError, match=r"is not the published file.*delete it"):
        home(cache).fetched(published(server))


def test_a_data_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a directory"):
        home(tmp_path, tmp_path / "none")


def test_two_processes_may_fetch_at_once(server: str, tmp_path: Path) -> None:
    target = tmp_path / "cache" / "lengths.csv"
    context = multiprocessing.get_context("spawn")
    racers = [context.Process(target=download, args=(published(server), target)) for _ in range(2)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0, 0]
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["lengths.csv"]
