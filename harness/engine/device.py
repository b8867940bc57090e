"""`harness.pooled.device.Device` over a worker process that moves real bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable

from harness.clock import Event, WallLoop
from harness.cost.profile import HardwareProfile
from harness.device.location import Location, dram
from harness.engine.block_tables import SlabTables
from harness.engine.commands import Commands
from harness.engine.host_memory import HostMemory
from harness.engine.instance import LiveRun, TorchInstance
from harness.engine.tokens import TokenBook
from harness.engine.transport import Header
from harness.engine.worker_process import WorkerProcess, abort
from harness.engine_api import Experiment
from harness.errors import InstanceLost, RunError, first_line
from harness.pooled.blocks import SlabPool
from harness.pooled.device import KvCopy
from harness.pooled.plan import MemoryPlan
from harness.pooled.slab import block_offsets


class TorchDevice:
    """`spawn(anew)` starts a worker process on `node` and tells it its setup; anew: after a
    restart."""

    on_lost: Callable[[InstanceLost], None]  # the instance that is made of it sets it

    def __init__(
        self, node: int, spawn: Callable[[bool], WorkerProcess], start_timeout_s: float,
        experiment: Experiment, memory: HostMemory, plan: MemoryPlan, book: TokenBook,
    ) -> None:  # fmt: skip
        assert isinstance(experiment.loop, WallLoop), "make_loop() made it"
        self.node, self._spawn, self._start_timeout_s = node, spawn, start_timeout_s
        self._models, self._memory, self._plan = experiment.models, memory, plan
        profile = HardwareProfile(experiment.hardware)
        self._loop = experiment.loop
        self._run = LiveRun(self._loop, experiment.recorder, book, profile)
        self._worker = spawn(False)
        self.name = self._worker.name
        self._threads: list[threading.Thread] = []
        self._fail: Callable[[RunError], None] = abort

    def may_fail(self) -> None:
        """A fault is planned: the worker's death is told to `on_lost`, where it would end the
        run."""
        self._fail = self._lose
        self._worker.on_failure = self._lose

    def _lose(self, error: RunError) -> None:
        with_node = self._worker.node_lost
        self.on_lost(InstanceLost(self.name, first_line(error), with_node=with_node))

    def pids(self) -> list[int]:
        return self._worker.pids()

    def handshake(self) -> Header:
        """Waits for the worker; its answer. Comes before everything else."""
        ready = self._worker.handshake(self._start_timeout_s)
        self._listen()
        return ready

    def executor(self, model: str, kv: SlabPool) -> TorchInstance:
        tables = SlabTables(kv, self._plan.slab_bytes)
        return TorchInstance(self._models[model], kv, tables, self._commands, self._run)

    async def load(
        self, model: str, at_bytes: int, source: Location, *, staged: bool, stop: Event | None
    ) -> bool:
        file, fill = self._memory.source(model, source)
        command = {
            "op": "load", "stream": "load", "model": model, "at_bytes": at_bytes, "staged": staged,
            "file": file, "fill": fill,
        }  # fmt: skip
        complete: bool = (await self._commands.call(command, stop=stop))["complete"]
        if complete:
            self._memory.filled(model, self.node)
        return complete

    async def relocate(self, model: str, from_bytes: int, to_bytes: int) -> None:
        await self._commands.call(
            {
                "op": "relocate", "stream": "compute", "model": model, "from_bytes": from_bytes,
                "to_bytes": to_bytes,
            }
        )  # fmt: skip

    def copy_out(self, copy: KvCopy, on_end: Callable[[bool], None]) -> None:
        self._loop.start(self._copy("copy_out", copy, on_end), name=f"{self.name}: copy out")

    def copy_in(self, copy: KvCopy, on_end: Callable[[bool], None]) -> None:
        self._loop.start(self._copy("copy_in", copy, on_end), name=f"{self.name}: copy in")

    async def collect_garbage(self) -> None:
        await self._commands.call({"op": "collect", "stream": "compute"})

    async def restart(self) -> None:
        """The process ends, once its last command is done, and another one takes its place."""
        await self._commands.drain()
        await self._beside(self._worker.close)
        self._worker = self._spawn(True)  # not in a thread: workers die with the one they are from
        await self._beside(lambda: self._worker.handshake(self._start_timeout_s))
        self._listen()

    def kill(self) -> None:
        """Ends the worker; whoever waits for its `handshake` is told. `close` comes after."""
        self._worker.kill()

    def close(self) -> None:
        """Ends the worker, also one that is just restarting."""
        self._worker.kill()
        for thread in self._threads:
            thread.join()
        self._worker.close()

    def _listen(self) -> None:
        self._worker.on_failure = self._fail
        self._commands = Commands(self._worker, self._loop)

    async def _copy(self, op: str, copy: KvCopy, on_end: Callable[[bool], None]) -> None:
        block_bytes = self._models[copy.model].kv_bytes_per_token * self._plan.block_tokens
        places = [block_offsets(runs, block_bytes) for runs in (copy.device_runs, copy.host_runs)]
        blocks = block_bytes, *(offsets[: copy.num_blocks] for offsets in places)
        far = None if copy.node == self.node else dram(copy.node).file("kv")
        command = {"op": op, "stream": op, "blocks": blocks, "far": far}
        on_end((await self._commands.call(command)).get("complete", True))

    async def _beside(self, function: Callable[[], object]) -> None:
        """Calls `function`, which may take seconds, while the loop goes on."""
        over = Event(self._loop)

        def call() -> None:
            try:
                function()
            except RunError as error:
                self._loop.post(self._fail, error)
            else:
                self._loop.post(over.set)

        thread = threading.Thread(target=call, name=f"{self.name}: restart", daemon=True)
        self._threads = [thread]
        thread.start()
        await self._loop.wait(over)
