"""Where tests find the public traces: HARNESS_DATA_DIR, or ../shared/data beside the checkout.

Where neither is there, tests that read them are skipped, and the others have what a user without
them has: the rows that the repository carries, a download, or a synthetic trace. The head and the
foot of the report say so.

Hypothesis draws the same inputs each time, so that a commit passes or fails by what is in it;
HYPOTHESIS=random draws others, and `make fuzz` many. It draws a quarter of those that a test asks
for, and all of them with HYPOTHESIS=all (`tests.examples`). With HYPOTHESIS=unshrunk, for mutants,
a test that fails ends at once: the least input that fails is not searched.

Only tests that are marked `live` may start workers or servers: the others run side by side.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra._internal import defaults_list
from hydra._internal.config_repository import ConfigRepository
from hypothesis import Phase, settings

from tests.examples import num_examples
from tests.forked_workers import Forker

_HYPOTHESIS = os.environ.get("HYPOTHESIS")
settings.register_profile(
    "same",
    max_examples=num_examples(100),
    derandomize=_HYPOTHESIS != "random",
    deadline=None,  # a busy machine is no failure
    phases=[Phase.explicit, Phase.generate] if _HYPOTHESIS == "unshrunk" else list(Phase),
)
settings.load_profile("same")

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ROOT.parent / "shared" / "data"
MISSING = f"the public traces are missing: no {BESIDE}, and HARNESS_DATA_DIR is not set"
ALONE = ("tests/integration/", "tests/unit/drivers/")
LIVE = ("harness.engine.", "harness/drivers/supervisor.py")  # what a worker or a server runs


def pytest_configure(config: pytest.Config) -> None:
    if BESIDE.is_dir():
        os.environ.setdefault("HARNESS_DATA_DIR", str(BESIDE))
    sys.addaudithook(_refuse_live)
    _parse_once()


def _parse_once() -> None:
    """Hydra parses each file once, and not for each of a thousand configurations that it composes:
    a quarter of their time. What a defaults list may refer to is collected for those that refer to
    something: a seventh."""
    collect = defaults_list._create_interpolation_map

    def collected(overrides: Any, defaults: Any, self_added: bool) -> Any:
        refers = any(each.is_interpolation() for each in defaults)
        return collect(overrides, defaults, self_added) if refers else None

    load, parsed = ConfigRepository.load_config, dict[Any, bytes]()

    def kept(self: ConfigRepository, config_path: str) -> Any:
        key = config_path, *(source.path for source in self.get_sources())
        if key not in parsed:
            parsed[key] = pickle.dumps(load(self, config_path))
        return pickle.loads(parsed[key])

    patch = pytest.MonkeyPatch()
    patch.setattr(ConfigRepository, "load_config", kept)
    patch.setattr(defaults_list, "_create_interpolation_map", collected)


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("alone") is not None and not item.nodeid.startswith(ALONE):
        raise pytest.UsageError(f"{item.nodeid} is alone: `make test` runs those of {ALONE}")


def pytest_report_header(config: pytest.Config) -> str:
    return os.environ.get("HARNESS_DATA_DIR", MISSING)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if "HARNESS_DATA_DIR" not in os.environ:
        terminalreporter.write_line(f"NOT EVERYTHING WAS TESTED: {MISSING}", yellow=True)


_marked_live = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    global _marked_live
    _marked_live = item.get_closest_marker("live") is not None


def _refuse_live(event: str, arguments: tuple[Any, ...]) -> None:
    """A test without the mark fails where it would start a worker or a server."""
    if event == "subprocess.Popen" and not _marked_live:
        words = [str(word) for word in arguments[1]]
        if any(live in word for word in words for live in LIVE):
            pytest.fail(f"mark this test `live`, for it starts {' '.join(words)}")


@pytest.fixture(scope="session", autouse=True)
def cold_workers() -> Iterator[None]:
    """Workers that tests start in this process skip the warm-up, half of their start: no test is
    about speed. Those of a command have it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.engine.workers.WARM_UP_TOKENS", 0)
        yield


@pytest.fixture(scope="session", autouse=True)
def devices_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Live tests run side by side on one CPU, unlike live runs: each process has its own locks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_DEVICE_LOCKS", str(tmp_path_factory.mktemp("devices")))
        yield


@pytest.fixture(scope="module", autouse=True)
def rested_collector() -> None:
    """What is there by now, packages and collected tests, is not searched for garbage again and
    again: an eighth of the tests' CPU time. Live runs undo it at their ends."""
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)


@pytest.fixture(scope="session")
def _forker() -> Iterator[Forker]:
    forker = Forker()
    yield forker
    forker.close()


@pytest.fixture(scope="module")
def forked_workers(_forker: Forker) -> Iterator[None]:
    """For tests of what workers compute, not of how they start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.engine.host.start", _forker.start)
        yield


@pytest.fixture(scope="session")
def data_dir() -> Path:
    if "HARNESS_DATA_DIR" not in os.environ:
        pytest.skip(MISSING)
    path = Path(os.environ["HARNESS_DATA_DIR"])
    if not path.is_dir():
        pytest.fail(f"the public traces are missing: {path} (HARNESS_DATA_DIR)")
    return path
