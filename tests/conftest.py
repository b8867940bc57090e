"""Where tests find the public traces: HARNESS_DATA_DIR, or ../shared/data beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("HARNESS_DATA_DIR", str(ROOT.parent / "shared" / "data"))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    path = Path(os.environ["HARNESS_DATA_DIR"])
    if not path.is_dir():
        pytest.fail(f"the public traces are missing: {path} (set HARNESS_DATA_DIR)")
    return path
