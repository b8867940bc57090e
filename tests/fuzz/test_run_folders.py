"""Folders of runs whose files were cut short or hold something else, as after a full disk."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from hypothesis import example, given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.records.run_folder import FinishedRun, RunFolder
from harness.records.sources import Identity
from plots import compare
from tests.fuzz.conftest import inputs
from tests.fuzz.guards import check_sentence, no_hang
from tests.fuzz.values import NESTED
from tests.unit.metrics.service import steady, write_run

READ = ("manifest.json", "summary.json", "config.yaml", "requests.parquet")


@cache
def contents() -> dict[str, bytes]:
    """Of a complete run's files."""
    path = write_run(Path(mkdtemp()) / "run", steady(20))
    return {name: (path / name).read_bytes() for name in READ}


@st.composite
def damage(draw: st.DrawFn) -> tuple[str, bytes]:
    name = draw(st.sampled_from(READ))
    whole = contents()[name]
    if draw(st.booleans()) or not name.endswith("json"):
        return name, whole[: draw(st.integers(0, len(whole.rstrip()) - 1))]
    return name, json.dumps(draw(NESTED)).encode()


@inputs(0.05)
@given(damage())
@example(("manifest.json", b"{}"))
@example(("summary.json", b"{}"))
def test_a_damaged_file_is_named_and_again_repeats_the_run(damaged: tuple[str, bytes]) -> None:
    name, content = damaged
    with TemporaryDirectory() as made:
        path = Path(made) / "run"
        path.mkdir()
        for file, whole in contents().items():
            (path / file).write_bytes(content if file == name else whole)
        manifest = json.loads(contents()["manifest.json"])
        identity = Identity(manifest["served_hash"], manifest.get("sources"))
        said = []
        for read in (
            lambda: compare.table([path, path]),
            lambda: FinishedRun.load(path),
            lambda: RunFolder(path).held(identity, again=False),
        ):
            try:
                with no_hang():
                    read()
            except UsageError as error:
                said.append(str(error))
        # a YAML file cut at the end of a line is YAML still
        assert len(said) == 3 or name == "config.yaml"
        for sentence in said:
            check_sentence(sentence)
            assert str(path) in sentence
        if name != "manifest.json" or content[:1] != b"{":
            assert RunFolder(path).held(identity, again=True) is None
