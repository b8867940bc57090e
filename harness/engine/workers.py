"""The worker processes of a live run: started alike, and told what their device is to hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from harness.configuration.threads import engine_threads
from harness.device.victim import Victim
from harness.engine.clock_offset import ClockOffset
from harness.engine.config import WARM_UP_TOKENS, TorchConfig
from harness.engine.host import Launch
from harness.engine.launcher import Launcher
from harness.engine.tokens import TokenBook, write_tokens
from harness.engine.transport import Header
from harness.engine.worker_process import WorkerProcess, side_by_side
from harness.engine_api import Experiment
from harness.placement import spec_of

MODULE = "harness.engine.worker"


class Workers:
    """`stack`: ends with the run. `nodes`: of each worker's devices."""

    def __init__(
        self, stack: ExitStack, launcher: Launcher, config: TorchConfig, experiment: Experiment
    ) -> None:
        self.stack, self.launcher, self._config = stack, launcher, config
        self._loop = experiment.loop
        per_node = experiment.hardware.devices_per_node
        self.nodes = [each.devices.start // per_node for each in experiment.placements]
        ranks = ranks_of(experiment)
        self.num_workers = sum(ranks)
        # Who shares the GPUs that a worker sees: all on one host, or those of its node.
        host = [0 if launcher.one_host else node for node in self.nodes]
        beside = Counter(at for at, count in zip(host, ranks, strict=True) for _ in range(count))
        self._beside = [beside[at] for at in host]
        self._devices = [
            index if launcher.one_host else placement.devices.start
            for index, placement in enumerate(experiment.placements)
        ]
        self._clocks: dict[str, ClockOffset] = {}  # by the worker's name
        self.book = TokenBook(experiment.seed)
        stack.callback(write_tokens, experiment.run_dir / "tokens.parquet", self.book.generated)
        self._num_threads = config.num_threads or max(1, engine_threads() // self.num_workers)
        self._logs = experiment.run_dir / "logs"
        self._logs.mkdir(exist_ok=True)
        for log in self._logs.glob("worker-*.log"):
            log.unlink()  # of an earlier run; a worker that restarts adds to its own

    def start(
        self, index: int, setup: Header, *, rank: int = 0, has_peers: bool = False
    ) -> WorkerProcess:
        """Starts the worker of a placement, or that of one of its ranks; the caller closes it."""
        number = f"{index}-rank{rank}" if rank else str(index)
        name, log_path = f"torch-{number}", self._logs / f"worker-{number}.log"
        launch = Launch(name, MODULE, log_path, self._num_threads, has_peers)
        process, sock = self.launcher.start(launch, self.nodes[index])
        worker = WorkerProcess(
            name, process, sock, log_path, self._config.hang_timeout_s, self._config.step_timeout_s,
            stamps=not self.launcher.one_host,
        )  # fmt: skip
        common = {
            "op": "setup", "index": self._devices[index], "num_workers": self._beside[index],
            "num_threads": self._num_threads, "config": self._config,
            "warm_up_tokens": WARM_UP_TOKENS,
        }  # fmt: skip
        worker.send(common | setup)
        if name in self._clocks:  # it restarts
            worker.clock = ClockOffset(self._clocks[name].error_s)
        self._clocks[name] = worker.clock
        return worker

    def victim(
        self, index: int, name: str, find: Callable[[], Iterable[int]],
        expect: Callable[[], None] = lambda: None,
    ) -> Victim:  # fmt: skip
        """The workers of a placement, for faults on purpose."""
        return self.launcher.victim(self.nodes[index], name, self._loop, find, expect)

    def share_bytes(self) -> int | None:
        """Of a GPU's memory, for each worker, where each placement has one; None: on CPUs."""
        return self.launcher.share_bytes(self._config.device, self.nodes)

    def answers(self, workers: Sequence[WorkerProcess]) -> list[Header]:
        """Waits until all `workers` have set up their devices."""
        timeout_s = self._config.start_timeout_s
        handshakes = [partial(worker.handshake, timeout_s) for worker in workers]
        return side_by_side(handshakes, [worker.kill for worker in workers])

    def clocks(self) -> list[dict[str, float]]:
        """What a manifest says of the clocks of workers on other hosts."""
        clocks = self._clocks.values()
        return [{"offset_s": one.offset_s, "error_s": one.error_s} for one in clocks]

    def resolved(self, answers: Sequence[Header]) -> dict[str, Any]:
        """What a run's manifest says of them."""
        return {
            "devices": [answer["device"] for answer in answers],
            "block_tokens": self._config.block_tokens,
            "attention": answers[0]["attention"],
            "torch": answers[0]["torch"],
        }


def num_workers(experiment: Experiment) -> int:
    return sum(ranks_of(experiment))


def ranks_of(experiment: Experiment) -> list[int]:
    """How many workers each placement has: one for each rank of an instance. Models with fewer
    ranks leave devices without one."""
    placed, models = experiment.placements, experiment.models
    return [1 if each.model is None else spec_of(each, models).tp for each in placed]
