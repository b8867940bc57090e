"""Where tests find the public traces: HARNESS_DATA_DIR, or ../shared/data beside the checkout.

Where neither is there, tests that read them are skipped, and the others have what a user without
them has: the rows that the repository carries, a download, or a statistical twin. The head and the
foot of the report say so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.elastic import Beds

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ROOT.parent / "shared" / "data"
MISSING = f"the public traces are missing: no {BESIDE}, and HARNESS_DATA_DIR is not set"


def pytest_configure(config: pytest.Config) -> None:
    if BESIDE.is_dir():
        os.environ.setdefault("HARNESS_DATA_DIR", str(BESIDE))


def pytest_report_header(config: pytest.Config) -> str:
    return os.environ.get("HARNESS_DATA_DIR", MISSING)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if "HARNESS_DATA_DIR" not in os.environ:
        terminalreporter.write_line(f"NOT EVERYTHING WAS TESTED: {MISSING}", yellow=True)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    if "HARNESS_DATA_DIR" not in os.environ:
        pytest.skip(MISSING)
    path = Path(os.environ["HARNESS_DATA_DIR"])
    if not path.is_dir():
        pytest.fail(f"the public traces are missing: {path} (HARNESS_DATA_DIR)")
    return path


@pytest.fixture(scope="module")
def bed() -> Iterator[Beds]:
    """Elastic instances in either world; live ones are shared by a module's tests.

    No longer: other modules assert that no worker is left.
    """
    with ExitStack() as stack:
        yield Beds(stack)
