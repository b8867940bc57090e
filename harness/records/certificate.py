"""Up to which load the client's TTFT and TBT are a server's own, on this machine.

`python -m harness selftest --certificate` measures it. It is kept in the folder of the runs, and
counts on the machine and for the client's code that it was measured with.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from platform import python_version
from typing import Any

import numpy as np

from harness import compiled
from harness.files import read_json
from harness.records.device_events import Event
from harness.records.manifest import machine
from harness.records.sources import code_hash, content
from harness.records.token_log import Floats, TokenLog

FILE = "certificate.json"
CARRIED = (  # by a run's manifest
    "measured_utc", "limit_ms", "max_streams", "max_rate_per_s", "max_tokens_per_s",
    "ttft_error_ms", "tbt_error_ms",
)  # fmt: skip
SENDERS = (  # of harness/: what sends requests, reads and stamps tokens, or works beside that
    "clock", "drivers/body", "drivers/connections", "drivers/exchange", "drivers/http_endpoint",
    "drivers/io_process", "drivers/io_thread", "drivers/kernel_stamps", "drivers/replay",
    "drivers/stream", "records/journal", "records/record", "running/client",
    "running/closed_loop", "running/serve", "running/session_loop",
)  # fmt: skip
UNCERTIFIED = (
    "no certificate of this machine and this client's code tells how far off the client's own "
    "times can be: python -m harness selftest --certificate measures that, and later runs carry it"
)
MOST_TOKENS_PER_S = 20_000  # that one process reads and records: docs/selftest.md
EVENT = "certificate"  # the kind of the event that has them


def of_this_machine(runs_dir: Path) -> dict[str, Any] | None:
    """The limits in the certificate in `runs_dir`; None: there is none of this machine and this
    client. Raises UsageError where the file is damaged."""
    path = runs_dir / FILE
    made = read_json(path) if path.is_file() else {}
    if made.get("machine") != machine() or made.get("client") != client_code():
        return None
    return {key: made[key] for key in CARRIED}


def client_code() -> str:
    """Stands for the files of SENDERS, whether they are compiled, and Python's version: what starts
    or asks servers may change."""
    of_files = {name: content(f"harness/{name}.py") for name in SENDERS}
    return code_hash(of_files | {"compiled": compiled.state(), "python": python_version()})


def demand(log: TokenLog) -> dict[str, int]:
    """`streams`: the most requests under way at once, from sending to the last token;
    `rate_per_s`: the most that were sent within a second; `tokens_per_s`: the most tokens that came
    within one. Of requests that got a token."""
    sent_s, last_s = (np.sort(each[log.started]) for each in (log.sent_s, log.last_s))
    rank = np.arange(len(sent_s))
    ended = np.searchsorted(last_s, sent_s, side="left")  # before each was sent
    return {
        "streams": int((rank + 1 - ended).max(initial=0)),
        "rate_per_s": _most_within_1_s(sent_s),
        "tokens_per_s": _most_within_1_s(np.sort(log.times_s)),
    }


def _most_within_1_s(times_s: Floats) -> int:
    ends = np.searchsorted(times_s, times_s + 1.0, side="left")
    return int((ends - np.arange(len(times_s))).max(initial=0))


def beyond(log: TokenLog, events: Iterable[Event]) -> list[str]:
    """A sentence for each way in which a run asked more of the client than its certificate covers,
    or one that it has none. Nothing of a run that read nothing from sockets."""
    kinds = {event["kind"]: event["fields"] for event in events}
    if "heartbeat" not in kinds:
        return []
    if EVENT not in kinds:
        return [UNCERTIFIED]
    asked, covers = demand(log), kinds[EVENT]
    named = {
        "streams": ("max_streams", "streams at once"),
        "rate_per_s": ("max_rate_per_s", "requests within a second"),
        "tokens_per_s": ("max_tokens_per_s", "tokens within a second"),
    }
    day = covers["measured_utc"][:10]
    return [
        f"{asked[key]:,} {what}, of which this machine's certificate ({day}) covers "
        f"{covers[limit]:,}: the client's own error may be over {covers['limit_ms']:g} ms"
        for key, (limit, what) in named.items()
        if limit in covers and asked[key] > covers[limit]  # older certificates know no tokens
    ]


def crowded(log: TokenLog, events: Iterable[Event]) -> str:
    """What a late client needs that read more tokens with one process than that can; else empty."""
    heart = next((event["fields"] for event in events if event["kind"] == "heartbeat"), None)
    tokens = demand(log)["tokens_per_s"]
    if heart is None or heart.get("num_readers", 1) > 1 or tokens <= MOST_TOKENS_PER_S:
        return ""
    return (
        f"; {tokens:,} tokens came within a second, and one process reads some "
        f"{MOST_TOKENS_PER_S:,}: +client.processes=2 makes it two"
    )
