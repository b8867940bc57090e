"""A few of the contract's tests again, with live workers that are connected over TCP."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.engine import tcp
from harness.engine.launcher import LocalLauncher
from tests.contract import test_elastic as elastic
from tests.contract import test_elastic_deaths as deaths
from tests.contract import test_elastic_kv as kv
from tests.contract import test_instance as instance
from tests.elastic import Beds

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]

SHARED: list[Callable[[Beds, str], None]] = [
    elastic.test_a_chain_forwards_each_layer_as_it_comes,
    elastic.test_micro_batches_fly_beside_one_another,
    kv.test_kv_moves_in_mid_decode,
]
DEDICATED: list[Callable[[Any], None]] = [
    instance.test_a_batch_mixes_chunks_and_decodes,
    instance.test_a_stop_in_the_middle_ends_at_a_step_boundary,
]


@pytest.fixture(scope="module", autouse=True)
def over_tcp() -> Iterator[None]:
    pair = partial(tcp.pair, secrets.token_bytes(tcp.TOKEN_BYTES))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.engine.engine.LocalLauncher", partial(LocalLauncher, pair=pair))
        yield


@pytest.fixture(scope="module")
def bed_over_tcp(over_tcp: None) -> Iterator[Beds]:
    with ExitStack() as stack:
        yield Beds(stack)


@pytest.mark.parametrize("test", SHARED, ids=lambda test: test.__name__)
def test_elastic_instances(bed_over_tcp: Beds, test: Callable[[Beds, str], None]) -> None:
    test(bed_over_tcp, "torch")


def test_a_source_that_dies() -> None:
    deaths.test_a_source_that_dies_fails_the_load("torch")


def test_a_stage_that_dies() -> None:
    deaths.test_a_death_fails_what_was_under_way_and_nothing_else("torch", 0)


@pytest.mark.parametrize("test", DEDICATED, ids=lambda test: test.__name__)
def test_dedicated_instances(tmp_path: Path, test: Callable[[Any], None]) -> None:
    bench = instance.Bench("torch", tmp_path)
    try:
        test(bench)
    finally:
        bench.close()
