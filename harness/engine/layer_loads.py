"""Weights that come to elastic workers layer by layer: one command brings all of them, and the
harness is told of each as batches may use it.

The worker that has the layers sends them and the one that gets them answers; a file is read by the
one that gets them. A source may itself be loading: it forwards each layer once its bytes are there,
so a chain never asks the harness. Every layer is a job of its own in its stream: other copies
between the two memories come in between, and a load whose next layer is not there yet is in no
stream.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from harness.elastic.fabric import Span
from harness.engine.command_loop import CommandLoop, Work
from harness.engine.copies import Copies
from harness.engine.cuda import finish
from harness.engine.device_buffer import DeviceBuffer
from harness.engine.given_up import Arrivals
from harness.engine.mesh import Mesh, OnMessage
from harness.engine.paced_links import FIRST, Over
from harness.engine.transport import Header, PeerLost


@dataclass(slots=True, eq=False)
class _Load:
    header: Header
    stop: threading.Event
    layers: list[tuple[int, Span]]  # those that are still to be sent
    over: Over  # when the layer before left the links


class LayerLoads:
    """`buffer`: this worker's."""

    def __init__(
        self, loop: CommandLoop, buffer: DeviceBuffer, copies: Copies, mesh: Mesh,
        arrivals: Arrivals,
    ) -> None:  # fmt: skip
        self._loop, self._buffer, self._copies, self._mesh = loop, buffer, copies, mesh
        self._arrivals = arrivals
        self._here = set(buffer.layers)  # layers whose bytes are here
        self._waiting: list[_Load] = []  # for a layer to come here
        self._lock = threading.Lock()  # streams, peers' threads and the reading thread use both
        self.at_once: dict[str, Work] = {"send_layers": self._begin, "read_layers": self._begin}
        self.in_streams: dict[str, Work] = {"end_load": self._end}
        self.from_peers: dict[str, OnMessage] = {"layer": self._on_layer, "loaded": self._on_loaded}

    def forget(self, layers: Iterable[int]) -> None:
        """The bytes of `layers` are about to go."""
        with self._lock:
            self._here.difference_update(layers)

    # From the harness

    def _begin(self, header: Header) -> None:
        """`send_layers`: to the worker `to`, whose answers have the number `load`. `read_layers`:
        from `file`."""
        stop = self._loop.begin(header["seq"], lambda: self._wake(load))
        load = _Load(header, stop, header["layers"], FIRST)
        self._go_on(load)

    def _end(self, header: Header) -> None:
        """Whoever was sending has died; in the stream of layers, behind those that have come."""
        self._loop.answer(header["seq"], complete=False)

    # Streams of copies

    def _go_on(self, load: _Load) -> None:
        self._loop.stream(load.header["stream"]).put(lambda: self._step(load))

    def _step(self, load: _Load) -> None:
        """The next layer, if there is one and it is here."""
        header, reads = load.header, load.header["op"] == "read_layers"
        if not load.layers or load.stop.is_set():
            self._finish(load, complete=not load.layers)
            return
        layer, span = load.layers[0]
        if not reads and self._is_to_come(load, layer):
            return
        begin_s = time.monotonic()
        move = self._copies.read_chunk if reads else self._copies.send_chunk
        over = self._copies.carry(header, span, move, load.over)
        if over is None:
            self._finish(load, complete=False)
            return
        load.over = over
        del load.layers[0]
        if reads:
            self._has_come(header["seq"], layer, begin_s)
        elif self._tell(load, {"op": "layer", "layer": layer, "begin_s": begin_s}):
            self._loop.answer(header["seq"], last=False)  # it gets on
        self._go_on(load)

    def _is_to_come(self, load: _Load, layer: int) -> bool:
        with self._lock:
            waits = layer not in self._here and not load.stop.is_set()
            if waits:
                self._waiting.append(load)
                load.over = FIRST  # the links are idle meanwhile
        return waits

    def _finish(self, load: _Load, *, complete: bool) -> None:
        seq = load.header["seq"]
        if load.header["op"] == "read_layers":
            self._answer_last(seq, complete=complete)
            return
        self._tell(load, {"op": "loaded", "complete": complete})
        self._loop.answer(seq, complete=complete)

    def _tell(self, load: _Load, header: Header) -> bool:
        """False: the one that gets the layers has died, which ends the load."""
        try:
            self._mesh.send(load.header["to"], {**header, "load": load.header["load"]})
        except PeerLost:
            load.stop.set()
            return False
        return True

    def _wake(self, load: _Load) -> None:
        """Wakes a load that is stopped."""
        with self._lock:
            waits = load in self._waiting
            if waits:
                self._waiting.remove(load)
        if waits:
            self._go_on(load)

    # From peers, on their threads

    def _on_layer(self, name: str, header: Header, payload: bytearray) -> None:
        finish(self._buffer.device)  # this thread put the bytes there
        self._has_come(header["load"], header["layer"], header["begin_s"])

    def _on_loaded(self, name: str, header: Header, payload: bytearray) -> None:
        self._answer_last(header["load"], complete=header["complete"])

    # Here

    def _has_come(self, seq: int, layer: int, begin_s: float) -> None:
        """The bytes of `layer`: on to those who wait for it, and batches may soon use it."""
        with self._lock:
            self._here.add(layer)
            ready = [load for load in self._waiting if load.layers[0][0] == layer]
            self._waiting = [load for load in self._waiting if load not in ready]
        for load in ready:
            self._go_on(load)
        self._loop.stream("adopt").put(lambda: self._adopt(seq, layer, begin_s))

    def _adopt(self, seq: int, layer: int, begin_s: float) -> None:
        self._buffer.adopt(layer)
        self._arrivals.changed()
        self._loop.answer(seq, last=False, layer=layer, begin_s=begin_s)

    def _answer_last(self, seq: int, *, complete: bool) -> None:
        self._loop.stream("adopt").put(lambda: self._loop.answer(seq, complete=complete))
