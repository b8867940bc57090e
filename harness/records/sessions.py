"""What a run of sessions was like: first turns and later ones apart, and how much of their prompts
a prefix cache had. From columns that the requests table of such a run has beside the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.records.percentiles import distribution
from harness.records.token_log import Bools, TokenLog, floats, ints
from harness.request import Request
from harness.sessions import previous_rows

SESSIONS = "sessions"  # an event's kind; its field num_sessions: how many there are
COLUMNS = pa.schema(
    [
        ("session", pa.int64()),
        ("turn", pa.int64()),  # from 0
        ("history_tokens", pa.int64()),  # of the prompt, what earlier requests may have had
    ]
)


def columns(requests: Sequence[Request]) -> dict[str, list[int]]:
    """The values of COLUMNS for requests that are turns."""
    rows = [
        (request.turn.session, request.turn.number, request.history_tokens)
        for request in requests
        if request.turn is not None
    ]
    return dict(zip(COLUMNS.names, map(list, zip(*rows, strict=True)), strict=True))


def summarise_sessions(table: pa.Table, log: TokenLog) -> dict[str, Any] | None:
    """None: the run had none. `first` and `later` turns: requests, TTFT, prompt tokens, of these
    the history (known before) and those that came from a prefix cache (None: nobody said)."""
    if "session" not in table.column_names:
        return None
    first = ints(table["turn"]) == 0
    return {
        "num_sessions": len(pc.unique(table["session"])),
        "first": _turns(table, log, first),
        "later": _turns(table, log, ~first),
    }


def _turns(table: pa.Table, log: TokenLog, rows: Bools) -> dict[str, Any]:
    sent = rows & np.isfinite(log.sent_s)
    cached = table["cached_tokens"].filter(pa.array(sent))
    return {
        "num_requests": int(rows.sum()),
        "ttft_s": distribution(log.ttft_s[rows]),
        "prompt_tokens": int(ints(table["prompt_tokens"])[sent].sum()),
        "history_tokens": int(ints(table["history_tokens"])[sent].sum()),
        "cached_tokens": pc.sum(cached).as_py(),
    }


def foreign_cached_tokens(table: pa.Table) -> int:
    """Tokens of prompts that a server's prefix cache had, by its answers, and that no earlier
    request of the run can have left there. `table`: of servers' answers, in schedule order."""
    before = previous_rows(ints(table["session"]))
    counted = floats(table["server_prompt_tokens"]) + ints(
        pc.list_value_length(table["token_times_s"])
    )
    # By its own count a prompt may be longer: of a chat the template is part of it, with which all
    # sessions begin, so that the first of them left it there.
    template = floats(table["server_prompt_tokens"]) - ints(table["prompt_tokens"])
    first = np.clip(np.nan_to_num(template), 0, None)
    known = np.where(before < 0, first, np.nan_to_num(counted[before]))
    own = np.maximum(ints(table["history_tokens"]), known)
    over = np.nan_to_num(floats(table["cached_tokens"])) - own
    return int(np.clip(over, 0, None).sum())
