"""A device on which models take turns (Aegaeon §5): weights in one buffer, the KV of all in slabs.

Batches, loads and KV copies in either direction each have a stream. Which model lies where, and
which block is whose, it is told each time.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping

import torch

from harness.engine.attention_choice import kernels_of
from harness.engine.block_tables import FIRST_BLOCK
from harness.engine.command_loop import CommandLoop, Work
from harness.engine.cuda import release_cached
from harness.engine.kv_memory import Blocks, KvMemory
from harness.engine.layout import model_in, write_model
from harness.engine.loader import HostLink, Source, WeightsLoader
from harness.engine.model import TransformerDecoder
from harness.engine.node_files import NodeFile, number_of
from harness.engine.paced_links import FIRST, LinkPath, PacedLinks
from harness.engine.runner import Runner
from harness.engine.transport import Header, PeerLost, of_kind
from harness.engine.warm_speed import timed
from harness.engine.work import BatchWork, Chunk
from harness.model_spec import ModelSpec
from harness.pooled.plan import MemoryPlan


class PooledMemory:
    def __init__(self, loop: CommandLoop, setup: Header, files: Mapping[str, NodeFile]) -> None:
        self._loop, self._device, self._files = loop, loop.device, files
        device = loop.device
        self._specs = of_kind(dict[str, ModelSpec], setup["models"])
        for name, copies in setup["write"].items():
            write_model(self._specs[name], [files[each] for each in copies])
        # Written to, so that its pages are there before the first load.
        plan, pool = of_kind(MemoryPlan, setup["plan"]), setup["config"].pool
        self._kernels = {
            name: kernels_of(setup["config"].attention, spec, device)
            for name, spec in self._specs.items()
        }
        self._weights = torch.full((plan.weights_bytes,), 0, dtype=torch.uint8, device=device)
        self._kv = KvMemory(
            plan, self._specs.values(), number_of(files[setup["kv_file"]]), pool.host_kv_bytes,
            device,
        )  # fmt: skip
        rate = pool.link_bytes_per_s
        self._to_device, self._to_host = HostLink(rate), HostLink(rate)
        self._links = PacedLinks({name: files[name] for name in setup["tables"]})
        self._far = {file: of_kind(LinkPath, path) for file, path in setup["far"].items()}
        self._chunk_bytes = setup["config"].elastic.chunk_bytes
        self._loader = WeightsLoader(self._weights, pool.stage_buffer_bytes, self._to_device)
        self._at: dict[str, int] = {}  # model -> where its weights are
        self._runners: dict[tuple[str, int], Runner] = {}  # model and place -> what runs it there
        for name in self._specs:
            self._warm_up(self._runner(name, 0))
        self.ready = {
            "speeds": self._speeds() if setup["time"] else {},
            "attention": next(iter(self._kernels.values())).name,
        }
        self.in_streams: dict[str, Work] = {
            "execute": self._execute, "relocate": self._relocate, "collect": self._collect,
            "load": self._load, "copy_out": self._copy_out, "copy_in": self._copy_in,
        }  # fmt: skip
        self.at_once: dict[str, Work] = {}

    def _execute(self, header: Header) -> None:
        model = header["model"]
        self._loop.execute(header, self._runner(model, self._at[model]))

    def _load(self, header: Header) -> None:
        model, at_bytes = header["model"], header["at_bytes"]
        fill = None if header["fill"] is None else self._files[header["fill"]]
        spec, source = self._specs[model], Source(self._files[header["file"]], fill)
        complete = True
        if header["staged"]:
            stop = self._loop.stop_of(header["seq"])
            complete = self._loader.staged(source, spec.weight_bytes, at_bytes, stop)
        else:
            self._loader.by_parameter(source, spec, at_bytes)
        self._at[model] = at_bytes
        self._loop.answer(header["seq"], complete=complete)

    def _relocate(self, header: Header) -> None:
        num_bytes = self._specs[header["model"]].weight_bytes
        self._loader.move(num_bytes, header["from_bytes"], header["to_bytes"])
        self._at[header["model"]] = header["to_bytes"]
        self._loop.answer(header["seq"])

    def _copy_out(self, header: Header) -> None:
        self._kv.copy_out(Blocks(*header["blocks"]), self._to_host)
        self._loop.answer(header["seq"])

    def _copy_in(self, header: Header) -> None:
        blocks = Blocks(*header["blocks"])
        complete = True
        if header["far"] is None:
            self._kv.copy_in(blocks, self._to_device)
        else:
            try:
                self._copy_from(header["far"], blocks)
            except PeerLost:
                complete = False
        self._loop.answer(header["seq"], complete=complete)

    def _copy_from(self, far: str, blocks: Blocks) -> None:
        """From another node's memory, at the pace of the links on the way. PeerLost: it has
        died."""
        path, over = self._far.get(far), FIRST  # None: as fast as they are, in one piece
        most = blocks.num_bytes if path is None else self._chunk_bytes

        def carry(num_bytes: int) -> None:
            nonlocal over
            if path is not None:
                over = self._links.carry(path, num_bytes, after=over)

        self._kv.copy_from(self._files[far], blocks, most, carry)

    def _collect(self, header: Header) -> None:
        """What has to precede another model's tensors in a tensor library's own memory."""
        gc.collect()
        release_cached(self._device)
        self._loop.answer(header["seq"])

    def _runner(self, name: str, at_bytes: int) -> Runner:
        """Runs the model whose weights lie at `at_bytes`, once they do. Made only once."""
        if (name, at_bytes) not in self._runners:
            spec = self._specs[name]
            ends, layers = model_in(self._weights, spec, at_bytes)
            cache = self._kv.cache(spec)
            decoder = TransformerDecoder(spec, ends, self._kernels[name])
            self._runners[name, at_bytes] = Runner(spec, decoder, layers, cache, self._device)
        return self._runners[name, at_bytes]

    def _warm_up(self, runner: Runner) -> None:
        """One iteration without weights, so that libraries load before the first request comes."""
        list(runner.steps(BatchWork([Chunk(0, 1, True)], [], [0], [[FIRST_BLOCK]]), 1))

    def _speeds(self) -> dict[str, dict[str, float]]:
        """Measures the speeds of each architecture, without weights."""
        firsts = {spec.name: name for name, spec in reversed(self._specs.items())}
        speeds = {}
        for architecture, name in firsts.items():
            spec = self._specs[name]
            cache = self._kv.cache(spec)
            speeds[architecture] = timed(
                self._runner(name, 0), spec, cache.num_blocks, cache.block_tokens
            )
        return speeds
