"""What servers said of their answers beside the tokens, added up: prompts as they counted them,
what their prefix caches had, and tokens whose times are not known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from harness.records.device_events import Event
from harness.records.sessions import foreign_cached_tokens

EARLY_ENDS = "early_ends_allowed"  # an event's kind


def summarise_answers(table: pa.Table, events: Iterable[Event]) -> dict[str, Any] | None:
    """Sums up the answers that came from servers; None: no answer came from one. Tokens are sums
    over the answers that told of them, None where none did.

    asked_prompt_tokens, counted_prompt_tokens: of the same answers, asked for and as the server
    counted them. cached_tokens: of the prompts, by the answers themselves. prefix_cache: by each
    server's own counters, of all its callers. num_surplus: answers of which the usage at the end
    told tokens that had not been seen. num_buffered: answers of several tokens in one event.
    foreign_cached_tokens: of sessions, cached tokens that no earlier request of the run had.
    num_early: that ended before all tokens asked for had come; None: that was no complete answer.
    """
    events = list(events)
    reported = table.filter(pc.is_valid(table["surplus_tokens"]))
    if not len(reported):
        return None
    counted = reported.filter(pc.is_valid(reported["server_prompt_tokens"]))
    fewer = pc.less(pc.list_value_length(reported["token_times_s"]), reported["output_tokens"])
    num_early = int(pc.sum(pc.and_(fewer, pc.equal(reported["status"], "completed"))).as_py())
    caches = {e["instance"]: e["fields"] for e in events if e["kind"] == "prefix_cache"}
    sessions = "session" in table.column_names
    return {
        **({"foreign_cached_tokens": foreign_cached_tokens(reported)} if sessions else {}),
        "num_answers": len(reported),
        "asked_prompt_tokens": pc.sum(counted["prompt_tokens"]).as_py(),
        "counted_prompt_tokens": pc.sum(counted["server_prompt_tokens"]).as_py(),
        "cached_tokens": pc.sum(reported["cached_tokens"]).as_py(),
        "prefix_cache": {
            name: {key: fields[key] for key in ("queried_tokens", "hit_tokens")}
            for name, fields in caches.items()
        },
        "caching_intended": any(fields["intended"] for fields in caches.values()),
        "num_surplus": int(pc.sum(pc.greater(reported["surplus_tokens"], 0)).as_py()),
        "num_buffered": int(pc.sum(reported["buffered"]).as_py()),
        "num_early": num_early if early_ends_allowed(events) else None,
    }


def early_ends_allowed(events: Iterable[Event]) -> bool:
    """Whether an answer that ends by itself is complete with the tokens that it had."""
    return any(event["kind"] == EARLY_ENDS for event in events)


def surplus_share(answers: Mapping[str, Any] | None) -> float:
    """The share of the answers that have tokens whose times are not known."""
    return answers["num_surplus"] / answers["num_answers"] if answers else 0.0


def cached_shares(answers: Mapping[str, Any]) -> dict[str, float]:
    """The cached share of the prompts' tokens, by who says so: the answers' usage, each server's
    counters. Of sessions, whose turns are to be found again, by usage, what the run itself did not
    leave there."""
    found = {}
    if "foreign_cached_tokens" in answers:
        asked = answers["counted_prompt_tokens"]
        share = answers["foreign_cached_tokens"] / asked if asked else 0.0
        return {"the answers' usage, which no earlier turn had": share}
    if answers["cached_tokens"] is not None and answers["counted_prompt_tokens"]:
        found["the answers' usage"] = answers["cached_tokens"] / answers["counted_prompt_tokens"]
    for name, counters in answers["prefix_cache"].items():
        if counters["queried_tokens"]:
            found[f"{name}'s counters"] = counters["hit_tokens"] / counters["queried_tokens"]
    return found


def prompt_miss(answers: Mapping[str, Any]) -> float:
    """How far the server's count of the prompts' tokens is from what was asked; 0: no count."""
    counted, asked = answers["counted_prompt_tokens"], answers["asked_prompt_tokens"]
    return counted / asked - 1 if counted is not None and asked else 0.0


def counted(answers: Mapping[str, Any], miss: float) -> str:
    return (
        f"the server counted {answers['counted_prompt_tokens']:,} prompt tokens where "
        f"{answers['asked_prompt_tokens']:,} were asked for ({miss:+.1%})"
    )
