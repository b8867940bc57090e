"""A stand-in for a server with a process tree like vLLM's; run as a script:

    python fake_server.py PORT BEHAVIOUR

Answers /health, and has a child that does not notice its parent's end and a grandchild in a
session of its own that ignores SIGTERM. BEHAVIOUR: serve, crash (before it is up), silent (never
up), taken (finds its port taken at the first start; argument 3 is a file to know it by).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

SLEEP = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
CHILD = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {SLEEP!r}, "fake grandchild"], start_new_session=True)
time.sleep(600)
"""


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


def main(port: int, behaviour: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    subprocess.Popen([sys.executable, "-c", CHILD, "fake child"])
    print("(Engine pid=7) INFO 01-01 00:00:00 [core.py:1] Loading the model", flush=True)
    if behaviour == "crash":
        print("(Engine pid=7) ERROR 01-01 00:00:00 [core.py:2] ValueError: no memory", flush=True)
        raise RuntimeError("Engine failed, see above")
    if behaviour == "taken":
        marker = Path(sys.argv[3])
        if not marker.exists():
            marker.touch()
            raise OSError(98, "Address already in use")
    if behaviour == "silent":
        time.sleep(600)
    HTTPServer(("127.0.0.1", port), Healthy).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
