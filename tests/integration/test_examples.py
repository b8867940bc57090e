"""First light of each paper's mechanism: docs/examples on real workers and simulated."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tests.elastic import ENGINES, check, generated, private, undisturbed
from tests.running import ROOT

pytestmark = pytest.mark.usefixtures("forked_workers")

EXAMPLES = sorted((ROOT / "docs/examples").glob("*.py"))


def test_there_are_examples_of_eighty_lines_at_most() -> None:
    assert len(EXAMPLES) >= 5
    for path in EXAMPLES:
        assert len(path.read_text().splitlines()) <= 80, path


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_serves_every_request_with_the_right_tokens(path: Path, engine: str) -> None:
    example = import_module(f"docs.examples.{path.stem}")
    with private(
        engine, example.NUM_INSTANCES, page_layers=example.PAGE_LAYERS, resident=example.RESIDENT
    ) as made:
        requests = made.run(example.story(made))
        assert requests == made.requests
        assert all(request.finished for request in requests)
        assert all(made.recorder.records[r.request_id].status == "completed" for r in requests)
        if all(instance.lost is None for instance in made.instances):
            check(made)
        tokens = generated(made) if engine == "torch" else None
    if tokens is not None:
        assert tokens == undisturbed(made)
