"""Where datasets are: a directory, the cache, or their public home; always with their sha256.

A download goes to a temporary name, is checked for size and sha256, and only then gets its real
name: no reader ever sees a half or a wrong file, and two processes may fetch at once.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from harness.errors import RunError, UsageError
from harness.files import replaced

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 30


@dataclass(kw_only=True, slots=True)
class FileConfig:
    """One file of a dataset as it is published."""

    path: str  # inside data.dir and inside the cache
    url: str | None  # its public home; null: it cannot be downloaded as it is
    bytes: int | None
    sha256: str | None


class DataHome:
    """Finds files: first in `dir`, then in `cache_dir`, then, if allowed, by downloading."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        dir: str | None
        cache_dir: str
        download: bool

    def __init__(self, config: Config) -> None:
        if config.dir is not None and not Path(config.dir).is_dir():
            raise UsageError(f"data.dir={config.dir} is not a directory")
        self.config = config

    def find(self, file: FileConfig) -> Path | None:
        """None where the file can be had nowhere; the reason is logged."""
        if self.config.dir is not None:
            path = Path(self.config.dir) / file.path
            if path.is_file():
                return path
        cached = Path(self.config.cache_dir).expanduser() / file.path
        if cached.is_file():
            if file.sha256 is not None and sha256_of(cached) != file.sha256:
                raise UsageError(
                    f"{cached} is not the published file: its sha256 is {sha256_of(cached)}, "
                    f"not {file.sha256}; delete it"
                )
            return cached
        if file.url is None:
            log.warning("%s is in no data directory and cannot be downloaded", file.path)
            return None
        if not self.config.download:
            log.warning("%s is not here and data.download is false", file.path)
            return None
        try:
            download(file, cached)
        except (
            urllib.error.URLError,
            http.client.HTTPException,
            ConnectionError,
            TimeoutError,
        ) as error:
            log.warning("%s cannot be downloaded from %s: %s", file.path, file.url, error)
            return None
        return cached


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
                check_published(file, digest.hexdigest(), num_bytes)
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:
            raise RunError(f"downloading {file.url} to {target} failed: {error}") from error


def check_published(file: FileConfig, sha256: str, num_bytes: int) -> None:
    if file.bytes is not None and num_bytes != file.bytes:
        raise RunError(f"{file.url} gave {num_bytes} bytes where {file.bytes} were expected")
    if file.sha256 is not None and sha256 != file.sha256:
        raise RunError(f"{file.url} has sha256 {sha256} where {file.sha256} was expected")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
