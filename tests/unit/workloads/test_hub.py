"""Datasets of a hub: streamed, pinned to a commit, kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import datasets
import huggingface_hub
import pytest

from harness.errors import UsageError
from harness.schedule import Schedule
from tests.unit.workloads.texts import (
    PAIR,
    pairs,
)

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was asked of a hub that has one dataset, and how many of its rows were taken."""
    asked: list[dict[str, Any]] = []

    def stream(**what: Any) -> Iterator[dict[str, str]]:
        asked.append(what | {"taken": 0})
        for row in pairs():
            asked[-1]["taken"] += 1
            yield row

    def about(self: object, name: str, revision: str | None, timeout: float) -> SimpleNamespace:
        asked.append({"resolved": revision})
        return SimpleNamespace(sha=revision if revision == "f" * 40 else COMMIT)

    monkeypatch.setattr(datasets, "load_dataset", stream)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", about)
    return asked


def test_rows_of_the_hub_are_streamed_pinned_and_kept(
    make_hf: Callable[..., Schedule], hub: list[dict[str, Any]]
) -> None:
    words = ("someone/papers", *PAIR, "workload.num_requests=3", "data.download=true")
    first = make_hf(*words)
    assert hub == [
        {"resolved": None},
        {
            "path": "someone/papers", "name": None, "data_files": None, "revision": COMMIT,
            "split": "train", "streaming": True, "taken": 3,
        },
    ]  # fmt: skip
    assert f"revision {COMMIT}" in first.provenance.origin
    assert first.provenance.file == "hub dataset"
    hub.clear()
    assert make_hf(*words).sha256() == first.sha256()
    assert hub == [{"resolved": None}]  # the newest commit is asked for, its rows are not
    hub.clear()
    kept = ("workload.text.revision=" + COMMIT, "data.download=false")
    assert make_hf(*words, *kept).sha256() == first.sha256()
    assert hub == []
    make_hf(*words, f"workload.text.revision={'f' * 40}")
    assert hub[-1]["revision"] == "f" * 40  # another commit's rows are others


@pytest.mark.parametrize(
    ("name", "repository", "subset"),
    [
        ("sharegpt", "anon8231489123/ShareGPT_Vicuna_unfiltered", None),
        ("lmsys", "lmsys/lmsys-chat-1m", None),
        ("arxiv", "ccdv/arxiv-summarization", "document"),
    ],
)
def test_the_datasets_known_by_name_are_asked_for_at_a_commit(
    make_hf: Callable[..., Schedule], hub: list[dict[str, Any]], name: str, repository: str,
    subset: str | None,
) -> None:  # fmt: skip
    make_hf(name, *PAIR, "workload.text.revision=" + "f" * 40, "data.download=true")
    assert (hub[-1]["path"], hub[-1]["name"]) == (repository, subset)
    hub.clear()
    with pytest.raises(UsageError, match=r"revision [0-9a-f]{40} is not in the cache, and data\."):
        make_hf(name, "data.download=false")


def test_an_error_of_the_hub_is_one_sentence(
    make_hf: Callable[..., Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no route\n  to the hub")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    with pytest.raises(UsageError, match=r"^someone/papers.* cannot be read: no route to the hub$"):
        make_hf("someone/papers", *PAIR, "data.download=true")
