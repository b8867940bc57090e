"""The worker process of an elastic instance: layers and KV pages come and go beside its batches.

Started as `python -m harness.engine.elastic_worker <fd>`. It is told everything in numbers, each
time: which layers to run, which pages are whose, whom to send what. Compute, each kind of copy and
attention for others have a lane each; peers talk past the harness (`mesh`).
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from typing import Any

import torch

from harness.device.device_layout import DeviceLayout
from harness.engine.device_buffer import DeviceBuffer, write_layers
from harness.engine.flights import Flights
from harness.engine.lane import Lane
from harness.engine.mesh import Mesh, PeerLost
from harness.engine.model import Decoder
from harness.engine.paced_links import LinkPath, PacedLinks
from harness.engine.runner import Runner
from harness.engine.transport import Connection, Header
from harness.engine.warm_up import warm_up
from harness.engine.worker import device_name, failure, pick_device, run_worker
from harness.model_spec import ModelSpec


def link_path(header: Mapping[str, Any]) -> LinkPath:
    return LinkPath(tuple(header["links"]), header["bytes_per_s"], header["latency_s"])


def spans_of(payload: bytes) -> list[tuple[int, int, int]]:
    """(source, target, bytes), as `array("q")` packs them one after the other."""
    numbers = array("q", payload)
    return [(numbers[i], numbers[i + 1], numbers[i + 2]) for i in range(0, len(numbers), 3)]


class ElasticWorker:
    def __init__(self, connection: Connection, setup: Header) -> None:
        self._connection = connection
        torch.set_num_threads(setup["num_threads"])
        device = pick_device(setup["device"], setup["index"])
        spec = ModelSpec(**setup["spec"])
        layout = DeviceLayout(
            spec, setup["memory_bytes"], setup["block_tokens"], setup["page_layers"]
        )
        self._buffer = buffer = DeviceBuffer(layout, device)
        if setup["write"]:
            write_layers(spec, setup["write"])
        buffer.fill(setup["resident"])
        self._device = device
        self._links = PacedLinks(setup["links_file"], setup["num_links"])
        self._lanes: dict[str, Lane] = {}
        self._opening = threading.Lock()  # peers' threads ask for lanes, too
        self._stops: dict[int, threading.Event] = {}  # seq -> of the copy in flight
        self._acks: dict[int, tuple[str, Callable[[bool], None]]] = {}  # copy -> peer, what to do
        invitations = socket.socket(fileno=int(sys.argv[2]))
        self._mesh = Mesh(invitations, self._on_peer, self._on_lost)
        decoder = Decoder(spec, buffer.ends, device)
        runner = Runner(spec, decoder, buffer.layers, buffer.cache, device)
        self._flights = Flights(
            setup["name"], runner, buffer.cache, self._connection, self._mesh, self._links,
            self._lane, setup["layer_s"], setup["token_s"],
        )  # fmt: skip
        if 0 in buffer.layers and spec.num_layers - 1 in buffer.layers:
            warm_up(spec, buffer.layers[0], buffer.ends, device, setup["warm_up_tokens"])
        connection.send(
            {
                "op": "ready",
                "device": device_name(device),
                "num_threads": torch.get_num_threads(),
                "torch": torch.__version__,
            }
        )

    def serve(self) -> None:
        """Until the harness closes the socket: EOFError."""
        while True:
            header, payload = self._connection.receive()
            match header["op"]:
                case "ping":
                    self._connection.send({"op": "pong", "time_s": time.monotonic()})
                case "flight":
                    self._flights.take_off(header, payload)
                case "hold":
                    self._flights.hold(header, payload)
                case "pass":
                    self._flights.pass_on(header)
                case "abandon":
                    self._flights.abandon(header["flight"])
                case "stop":
                    self._flights.stop(header["seq"])
                    if (stop := self._stops.get(header["seq"])) is not None:
                        stop.set()
                case op:
                    self._start(op, header, payload)

    def _start(self, op: str, header: Header, payload: bytes) -> None:
        """A command that is answered once."""
        work = {
            "push": self._push, "pull": self._pull, "save": self._save,
            "between": self._between, "relocate": self._relocate, "adopt": self._adopt,
            "forget": self._forget,
        }[op]  # fmt: skip
        self._stops[header["seq"]] = threading.Event()
        self._lane(header["lane"]).put(lambda: work(header, payload))

    def _lane(self, name: str) -> Lane:
        with self._opening:
            if name not in self._lanes:
                self._lanes[name] = Lane(name, self._device, self._fail)
            return self._lanes[name]

    # Bytes

    def _push(self, header: Header, payload: bytes) -> None:
        """To another worker's memory; answered once that has them."""
        seq, peer = header["seq"], header["to"]
        self._acks[seq] = peer, lambda complete: self._answer(seq, complete=complete)
        sent = self._chunks(header, payload, self._send_chunk)
        try:
            self._mesh.send(peer, {"op": "end", "copy": seq, "complete": sent})
        except PeerLost:
            self._give_up_ack(seq)

    def _send_chunk(self, header: Header, source: int, target: int, size: int) -> None:
        piece = self._buffer.bytes[source : source + size]
        content = piece.cpu().numpy().data
        self._mesh.send(header["to"], {"op": "bytes", "at": target}, content)

    def _pull(self, header: Header, payload: bytes) -> None:
        """From a file."""
        done = self._chunks(header, payload, self._read_chunk)
        self._answer(header["seq"], complete=done)

    def _read_chunk(self, header: Header, source: int, target: int, size: int) -> None:
        read = 0
        while read < size:
            content = bytearray(os.pread(header["file"], size - read, source + read))
            part = torch.frombuffer(content, dtype=torch.uint8)
            self._buffer.bytes[target + read : target + read + len(content)].copy_(part)
            read += len(content)

    def _save(self, header: Header, payload: bytes) -> None:
        """To a file."""
        done = self._chunks(header, payload, self._write_chunk)
        self._answer(header["seq"], complete=done)

    def _write_chunk(self, header: Header, source: int, target: int, size: int) -> None:
        content = self._buffer.bytes[source : source + size].cpu().numpy().data
        written = 0
        while written < size:
            written += os.pwrite(header["file"], content[written:], target + written)

    def _between(self, header: Header, payload: bytes) -> None:
        """From a file to another one, for a host."""
        self._answer(header["seq"], complete=self._chunks(header, payload, self._copy_chunk))

    def _copy_chunk(self, header: Header, source: int, target: int, size: int) -> None:
        content = os.pread(header["file"], size, source)
        if os.pwrite(header["to_file"], content, target) != size:
            raise OSError(f"{size} bytes could not be copied from file to file")

    def _chunks(
        self, header: Header, payload: bytes, move: Callable[[Header, int, int, int], None]
    ) -> bool:
        """All of the spans, chunk by chunk, at the links' pace. False: broken off."""
        path, most = link_path(header["path"]), header["chunk_bytes"]
        stop, urgent, over_s = self._stops[header["seq"]], header["urgent"], inf
        try:
            for source, target, size in spans_of(payload):
                for at in range(0, size, most):
                    if stop.is_set():
                        return False
                    part = min(most, size - at)
                    over_s = self._links.carry(path, part, urgent=urgent, after_s=over_s)
                    move(header, source + at, target + at, part)
        except PeerLost:
            return False
        return True

    def _relocate(self, header: Header, payload: bytes) -> None:
        """Within this memory; sources and targets do not overlap."""
        memory = self._buffer.bytes
        for source, target, size in spans_of(payload):
            memory[target : target + size].copy_(memory[source : source + size])
        self._answer(header["seq"], complete=True)

    def _adopt(self, header: Header, payload: bytes) -> None:
        for layer in header["layers"]:
            self._buffer.adopt(layer)
        self._answer(header["seq"], complete=True)

    def _forget(self, header: Header, payload: bytes) -> None:
        for layer in header["layers"]:
            self._buffer.forget(layer)
        self._answer(header["seq"], complete=True)

    # Peers

    def _on_peer(self, name: str, header: Header, payload: bytes) -> None:
        """On the peer's thread."""
        match header["op"]:
            case "bytes":
                content = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
                at = header["at"]
                self._buffer.bytes[at : at + len(content)].copy_(content)
            case "end":
                if self._device.type == "cuda":
                    torch.cuda.synchronize(self._device)
                # Not from here: two workers that send to each other would both stop reading.
                self._lane("acks").put(lambda: self._acknowledge(name, header))
            case "ack":
                _, done = self._acks.pop(header["copy"])
                done(header["complete"])
            case _:
                self._flights.on_peer(name, header, payload)

    def _acknowledge(self, name: str, header: Header) -> None:
        ack = {"op": "ack", "copy": header["copy"], "complete": header["complete"]}
        with suppress(PeerLost):  # nobody waits for it any more
            self._mesh.send(name, ack)

    def _on_lost(self, name: str) -> None:
        for seq in [seq for seq, (peer, _) in self._acks.items() if peer == name]:
            self._give_up_ack(seq)
        self._flights.on_lost(name)

    def _give_up_ack(self, seq: int) -> None:
        if self._acks.pop(seq, None) is not None:
            self._answer(seq, complete=False)

    def _answer(self, seq: int, **fields: Any) -> None:
        self._stops.pop(seq, None)
        self._connection.send({"op": "answer", "seq": seq, "last": True, **fields})

    def _fail(self, error: BaseException) -> None:
        traceback.print_exception(error)
        self._connection.send(failure(error))
        os._exit(1)


if __name__ == "__main__":
    run_worker(ElasticWorker)
