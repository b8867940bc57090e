from __future__ import annotations

from collections.abc import Iterator

import pytest
from hydra.core.global_hydra import GlobalHydra


@pytest.fixture(autouse=True)
def hydra_as_others_expect_it() -> Iterator[None]:
    """`figures` keeps Hydra initialised for its process; other tests initialise it anew."""
    yield
    GlobalHydra.instance().clear()
