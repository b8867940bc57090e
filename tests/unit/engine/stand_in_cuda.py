"""A recorded stand-in for torch.cuda: the order of calls to it, and of copies, and on which device.
Tensors stay on the CPU, which stands for their GPU: calls for another device say so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from harness.engine import cuda

HERE = torch.device("cpu")


class Calls(TorchFunctionMode):
    """Records copies between tensors beside what the stand-in notes."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "copy_":
            self.made.append("copy beside" if kwargs.get("non_blocking") else "copy")
        if name == "zero_":
            self.made.append("zero")
        if name == "pin_memory":
            self.made.append("lock")
            return args[0]
        if kwargs.pop("pin_memory", False):
            self.made.append("lock")
        return func(*args, **kwargs)

    def note(self, word: str) -> Any:
        return lambda *args: self.made.append(word)

    def on_device(self, word: str) -> Any:
        def call(device: torch.device) -> None:
            self.made.append(word if device == HERE else f"{word} {device}")

        return call


@contextmanager
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """Every device is a GPU, of which there are two with 1,000,000 bytes."""
    calls = Calls()

    @contextmanager
    def on(stream: object) -> Iterator[None]:
        calls.made.append(f"on {stream}")
        yield

    made: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "get_device_name": lambda device: "H100",
        "get_device_properties": lambda device: SimpleNamespace(total_memory=1_000_000),
        "memory_allocated": lambda device: 100_000,
        "set_device": calls.on_device("set device"),
        "Stream": lambda device: "a stream" if device == HERE else f"a stream of {device}",
        "stream": on,
        "current_stream": lambda device: SimpleNamespace(
            synchronize=lambda: calls.on_device("wait")(device)
        ),
        "synchronize": calls.on_device("wait for all"),
        "empty_cache": calls.note("empty cache"),
        "cudart": lambda: SimpleNamespace(
            cudaHostRegister=lambda at, size, flags: calls.made.append(f"lock {size}") or 0
        ),
    }
    for name, stand_in in made.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(cuda, "on_gpu", lambda device: True)
    with calls:
        yield calls


def calls_answer(calls: Calls) -> Any:
    def answer(seq: int, **values: object) -> None:
        calls.made.append("answer")

    return answer
