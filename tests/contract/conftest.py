from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.elastic import Beds


@pytest.fixture(scope="package")
def bed() -> Iterator[Beds]:
    """Elastic instances simulated or live; live ones are shared by this folder's tests.

    No longer: tests elsewhere assert that no worker is left.
    """
    with ExitStack() as stack:
        yield Beds(stack)
