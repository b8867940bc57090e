"""A device whose layers and KV pages come and go beside its batches.

It is told everything in numbers, each time: which layers to run, which pages are whose, whom to
send what. Compute, each kind of copy and attention for others have a stream each; peers talk past
the harness (`mesh`).
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from harness.elastic.device_layout import DeviceLayout
from harness.engine.attention_choice import kernels_of
from harness.engine.command_loop import CommandLoop, Work
from harness.engine.copies import Copies
from harness.engine.cuda import finish
from harness.engine.device_buffer import DeviceBuffer
from harness.engine.in_flight import InFlight
from harness.engine.layer_loads import LayerLoads
from harness.engine.layout import write_elastic
from harness.engine.mesh import Mesh, Peers
from harness.engine.model import TransformerDecoder
from harness.engine.nixl_memory import NixlMemory
from harness.engine.node_files import NodeFile
from harness.engine.paced_links import PacedLinks
from harness.engine.peer_memory import PeerMemory, SocketMemory
from harness.engine.runner import Runner
from harness.engine.transport import Header, of_kind
from harness.engine.warm_up import warm_up
from harness.engine.weights import torch_dtype
from harness.model_spec import ModelSpec


class ElasticMemory:
    """The contents of an elastic worker's device. `invitations`: the socket over which the harness
    hands out connections to peers."""

    def __init__(
        self, loop: CommandLoop, setup: Header, files: Mapping[str, NodeFile],
        invitations: socket.socket,
    ) -> None:  # fmt: skip
        self._loop = loop
        device, config = loop.device, setup["config"].elastic
        spec = of_kind(ModelSpec, setup["spec"])
        layout = DeviceLayout(spec, *setup["layout"])
        kernels = kernels_of(setup["config"].attention, spec, device)
        self._buffer = buffer = DeviceBuffer(layout, device, kernels.linear)
        if setup["write"]:
            write_elastic(spec, [files[name] for name in setup["write"]])
        buffer.fill(setup["resident"])
        links = PacedLinks({name: files[name] for name in setup["tables"]})
        self._mesh = mesh = Mesh(invitations, self._on_peer, self._on_lost, loop.fail)
        decoder = TransformerDecoder(spec, buffer.ends, kernels)
        runner = Runner(spec, decoder, buffer.layers, buffer.cache, device)
        peers = Peers(mesh, links, loop.stream, torch_dtype(spec), device)
        self._in_flight = InFlight(setup["name"], runner, config, loop, peers)
        theirs: PeerMemory = SocketMemory(buffer.bytes, mesh)
        if setup["config"].transport == "nixl":
            theirs = NixlMemory(setup["name"], buffer.bytes, loop, mesh)
        self._copies = Copies(loop, buffer.bytes, files, mesh, links, theirs)
        self._loads = LayerLoads(loop, buffer, self._copies, mesh, self._in_flight.arrivals)
        self._from_peers = (
            self._copies.from_peers | self._loads.from_peers | self._in_flight.from_peers
        )
        if 0 in buffer.layers and spec.num_layers - 1 in buffer.layers:
            warm_up(spec, buffer.layers[0], buffer.ends, device, setup["warm_up_tokens"])
        self.ready: Header = {"attention": kernels.name}
        self.in_streams = (
            self._copies.in_streams | self._loads.in_streams | {"forget": self._forget}
        )
        self.at_once: dict[str, Work] = (
            self._loads.at_once | self._in_flight.at_once | {"lost": self._lost}
        )

    def _forget(self, header: Header) -> None:
        self._loads.forget(header["layers"])
        for layer in header["layers"]:
            self._buffer.forget(layer)
        finish(self._buffer.device)  # its bytes are pages next, written in other streams
        self._loop.answer(header["seq"], complete=True)

    def _lost(self, header: Header) -> None:
        """A peer has died. Pages that it was sending to may be given to others by the next
        command: until then its bytes are read to their end."""
        self._mesh.wait_for_end(header["name"])

    def _on_peer(self, name: str, header: Header, payload: bytearray) -> None:
        self._from_peers[header["op"]](name, header, payload)

    def _on_lost(self, name: str) -> None:
        self._copies.on_lost(name)
        self._in_flight.on_lost(name)
