"""A thread of a worker that does one kind of work, in order, beside the others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

Job = Callable[[], None]


class Stream:
    """On a GPU with a CUDA stream of its own, so that copies run beside kernels. An exception in a
    job goes to `fail`, and ends the stream."""

    def __init__(
        self, name: str, device: torch.device, fail: Callable[[BaseException], None]
    ) -> None:
        self._device, self._fail = device, fail
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        try:
            with self._on_device():
                while True:
                    self._jobs.get()()
        except BaseException as error:
            self._fail(error)

    def _on_device(self) -> AbstractContextManager[object]:
        if self._device.type != "cuda":
            return nullcontext()
        torch.cuda.set_device(self._device)
        return torch.cuda.stream(torch.cuda.Stream(self._device))
