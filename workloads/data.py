"""Where datasets are: a directory, the repository, the cache, or their public home.

What the repository carries is checked against workloads/bundled/SHA256SUMS when it is read. A
download goes to a temporary name, is checked for size and sha256, and only then gets its real
name: no reader ever sees a half or a wrong file, and two processes may fetch at once.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RunError, UsageError
from harness.files import replaced

log = logging.getLogger(__name__)

BUNDLED = Path(__file__).resolve().parent / "bundled"
FULL, WHOLE, SLICE = "full file", "bundled file", "bundled slice"  # what a file is of its dataset
CHUNK_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 30


@dataclass(kw_only=True, slots=True)
class FileConfig:
    """One file of a dataset as it is published."""

    path: str  # inside data.dir, inside the cache, and in workloads/bundled if carried whole
    url: str | None  # its public home; null: it cannot be downloaded as it is
    bytes: int | None
    sha256: str | None
    beginning: str | None = None  # its first rows, in workloads/bundled


@dataclass(slots=True)
class Found:
    path: Path
    what: str  # FULL, WHOLE or SLICE


class DataHome:
    """Finds files: in `dir`, then among those that the repository carries, then in `cache_dir`,
    then, if allowed, by downloading."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        dir: str | None
        cache_dir: str
        download: bool

    def __init__(self, config: Config) -> None:
        if config.dir is not None and not Path(config.dir).is_dir():
            raise UsageError(f"data.dir={config.dir} is not a directory")
        self.config = config
        self.cache_dir = Path(config.cache_dir).expanduser()

    def given(self, file: FileConfig) -> Found | None:
        """The whole file, from `dir` or the repository."""
        if self.config.dir is not None:
            path = Path(self.config.dir) / file.path
            if path.is_file():
                return Found(path, FULL)
        whole = bundled(file.path)
        return None if whole is None else Found(whole, WHOLE)

    def beginning(self, file: FileConfig) -> Found | None:
        """Its first rows, from the repository."""
        path = None if file.beginning is None else bundled(file.beginning)
        return None if path is None else Found(path, SLICE)

    def fetched(self, file: FileConfig) -> Found | None:
        """The whole file, from the cache or from its public home; None where it can be had from
        neither: the reason is logged."""
        cached = self.cache_dir / file.path
        if cached.is_file():
            if file.sha256 is not None and sha256_of(cached) != file.sha256:
                raise UsageError(
                    f"{cached} is not the published file: its sha256 is {sha256_of(cached)}, "
                    f"not {file.sha256}; delete it"
                )
            return Found(cached, FULL)
        if file.url is None:
            log.warning("%s is in no data directory and cannot be downloaded", file.path)
            return None
        if not self.config.download:
            log.warning("%s is not here and data.download is false", file.path)
            return None
        try:
            download(file, cached)
        except (OSError, http.client.HTTPException) as error:
            log.warning("%s cannot be downloaded from %s: %s", file.path, file.url, error)
            return None
        return Found(cached, FULL)


def bundled(name: str) -> Path | None:
    """A file that the repository carries; None: it carries none of that name. Raises UsageError
    where it is not the one in SHA256SUMS."""
    lines = (BUNDLED / "SHA256SUMS").read_text().splitlines()
    sums = {path: sha256 for sha256, path in (line.split("  ", 1) for line in lines)}
    if name not in sums:
        return None
    path = BUNDLED / name
    if not path.is_file() or sha256_of(path) != sums[name]:
        raise UsageError(f"{path} is not the file of SHA256SUMS beside it: git checkout {path}")
    return path


def download(file: FileConfig, target: Path) -> None:
    """Fetches `file.url` to `target`. RunError, and nothing left behind, if it is not the
    published file or cannot be written; network errors pass through."""
    assert file.url is not None
    log.info("downloading %s", file.url)
    digest, num_bytes = hashlib.sha256(), 0
    with urllib.request.urlopen(file.url, timeout=CONNECT_TIMEOUT_S) as response:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with replaced(target) as temporary:
                with temporary.open("wb") as out:
                    while chunk := response.read(CHUNK_BYTES):
                        digest.update(chunk)
                        num_bytes += len(chunk)
                        out.write(chunk)
                sha256 = digest.hexdigest()
                if file.bytes not in (None, num_bytes):
                    what = f"{num_bytes} bytes where {file.bytes} were expected"
                    raise RunError(f"{file.url} gave {what}")
                if file.sha256 not in (None, sha256):
                    what = f"sha256 {sha256} where {file.sha256} was expected"
                    raise RunError(f"{file.url} has {what}")
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:
            raise RunError(f"downloading {file.url} to {target} failed: {error}") from error


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
