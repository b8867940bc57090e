"""A worker process that does what its setup says: python -m tests.unit.engine.odd_worker <fd>."""

from __future__ import annotations

import os
import socket
import sys
import time

from harness.engine.transport import Connection

connection = Connection(socket.socket(fileno=int(sys.argv[1])))
connection.send({"op": "alive"})
setup, _ = connection.receive()
if setup["does"] == "die":
    os._exit(3)
if setup["does"] == "load":  # alive, but never ready
    while True:
        connection.send({"op": "alive"})
        time.sleep(0.1)
if setup["does"] == "hang":
    time.sleep(600)
connection.send({"op": "ready", "number": setup["number"]})
while True:
    ping, _ = connection.receive()
    connection.send({"op": "pong", "sent_s": ping["sent_s"], "time_s": time.monotonic()})
