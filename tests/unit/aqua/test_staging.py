"""Copies of the vLLM plug-in on a stream, by the order of calls to a recorded stand-in for CUDA:
none of this has run on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from systems.aqua.plugin.staging import Staging


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    empty = torch.empty

    class Stream:
        def __init__(self, device: Any) -> None:
            self.device = device

        def wait_stream(self, other: str) -> None:
            made.append(f"wait for {other}")

        def synchronize(self) -> None:
            made.append("synchronize")

    @contextmanager
    def stream(_: Stream) -> Iterator[None]:
        made.append("on the stream")
        yield
        made.append("off the stream")

    def recorded(*size: int, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        made.append("pinned" if pin_memory else "pageable")
        return empty(*size, dtype=dtype)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the forward pass")
    monkeypatch.setattr(torch, "empty", recorded)
    return made


def copied(staging: Staging, calls: list[str]) -> None:
    staging.rows(2, 8)
    with staging.copying() as beside:
        calls.append(f"copy, non_blocking={beside}")
    calls.append("read")


def test_a_copy_begins_behind_the_forward_pass_and_is_waited_for(calls: list[str]) -> None:
    gpu: Any = SimpleNamespace(type="cuda")
    copied(Staging(gpu), calls)
    assert calls == [
        "pinned", "wait for the forward pass", "on the stream", "copy, non_blocking=True",
        "off the stream", "synchronize", "read",
    ]  # fmt: skip


def test_a_copy_that_fails_is_waited_for(calls: list[str]) -> None:
    gpu: Any = SimpleNamespace(type="cuda")
    staging = Staging(gpu)
    with pytest.raises(OSError, match="lease"), staging.copying():
        raise OSError("lease")
    assert calls[-1] == "synchronize"


def test_without_a_gpu_copies_are_plain(calls: list[str]) -> None:
    copied(Staging(torch.device("cpu")), calls)
    assert calls == ["pageable", "copy, non_blocking=False", "read"]
