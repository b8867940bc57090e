"""Readers of traces in JSON: lines of Mooncake, Bailian, WEKA and ServeGen's batch jobs, and
ServeGen's conversations.

A hash id stands for a block of a prompt: equal ones mean equal tokens from the start on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np

from harness.configuration.checks import require
from harness.errors import UsageError, first_line
from harness.request import Segments
from harness.schedule import Provenance
from workloads.trace import Place, Strings, Trace, objects

Record = dict[str, Any]
MOONCAKE_BLOCK = 512  # tokens of a prompt that one of its hash ids stands for
BAILIAN_BLOCK = 16
MAX_IDS = 1 << 62
Listed = tuple[Place, float, float, bool, Record]
SERVEGEN_KEYS = ("turn", "timestamp", "input_token_count", "output_token_count")


def read_json_lines(path: Path, provenance: Provenance) -> Trace:
    """Of Mooncake: timestamp in ms, input_length, output_length, and hash_ids of MOONCAKE_BLOCK
    tokens. Of Qwen-Bailian (usage traces, 2025): timestamp in seconds, BAILIAN_BLOCK tokens,
    chat_id, and parent_chat_id, which is -1 where a conversation begins. Of ServeGen's batch jobs
    (data/offline of github.com/alibaba/ServeGen, trace_d to trace_f): request_id, input_length and
    output_length, and no times, since all of a job arrives at once. Of WEKA: `_agents`."""
    lines = json_lines(path)
    where, first = next(lines)
    lines = chain([(where, first)], lines)
    if "requests" in first:
        return _agents(path, lines, provenance)
    bailian = "chat_id" in first
    block, per_s = (BAILIAN_BLOCK, 1) if bailian else (MOONCAKE_BLOCK, 1000)
    job = "request_id" in first and "timestamp" not in first
    keys = (
        ["input_length", "output_length"] if job else ["timestamp", "input_length", "output_length"]
    )
    keys += ["chat_id", "parent_chat_id"] if bailian else []
    shared, rows = list[Segments](), list[tuple[Any, ...]]()
    for where, record in lines:
        found = numbers(where, record, *keys)
        rows.append((0, *found) if job else found)
        shared.append(blocks(where, record, block))
    trace = _trace(path, rows, provenance, shared=shared, per_s=per_s)
    return replace(trace, arrival_s=None) if job else trace


def _agents(path: Path, lines: Iterator[tuple[str, Record]], provenance: Provenance) -> Trace:
    """WEKA's coding tools, which AIPerf's AgentX replays, a conversation on each line. hash_ids
    are a conversation's own, unless hash_id_scope is global. t: seconds since the conversation
    began, or of a branch's requests since that did: so in a file where any of them is before its
    branch (an entry of type subagent). The forms: github.com/callanjfox/kv-cache-tester,
    docs/trace_replay_tester.md, and github.com/ai-dynamo/aiperf, docs/tutorials/weka-trace.md."""
    shared, rows, places = list[Segments](), list[tuple[Any, ...]](), list[Place]()
    begun_s, relative, base, first_scope = list[float](), False, 0, None
    for number, (where, record) in enumerate(lines):
        scope = record.get("hash_id_scope")
        first_scope = first_scope if number else scope
        same = scope == first_scope
        require(same, f"{where}: hash_id_scope={scope} is not that of the first line")
        found = list(_listed(where, number, record))
        (block,) = numbers(where, record, "block_size")
        nested = any(len(place) > len((number, 0)) for place, *_ in found)
        for place, agent_s, marker_s, early, request in found:
            rows.append(numbers(where, request, "t", "in", "out"))
            shared.append(blocks(where, request, block, base))
            relative |= early or rows[-1][0] < marker_s
            begun_s.append(agent_s)
            places.append(place if nested else place[:1])
        if scope != "global":
            own = (stream for row in shared[len(shared) - len(found) :] for stream, _ in row)
            base = max(own, default=base - 1) + 1
            require(base < MAX_IDS, f"{where}: hash_ids of all lines come to more than {MAX_IDS}")
    if relative:
        rows = [(t + agent_s, *row) for (t, *row), agent_s in zip(rows, begun_s, strict=True)]
    return _trace(path, rows, provenance, shared=shared, place=objects(places))


def _listed(where: str, line: int, record: Record) -> Iterator[Listed]:
    """The requests of a conversation, a branch's where it is listed: place, the sum of t of the
    branches around it and t of the innermost one (0: there is none), whether one of these is
    before the one around it, request."""
    todo: list[Listed] = [((line,), 0.0, 0.0, False, record)]
    while todo:
        place, begun_s, around_s, early, entry = todo.pop()
        if len(place) > 1 and entry.get("type") != "subagent":
            yield place, begun_s, around_s, early, entry
            continue
        marker_s = numbers(where, entry, "t")[0] if len(place) > 1 else 0.0
        early |= marker_s < around_s
        requests = enumerate(_objects(f"{where}: requests", entry.get("requests")))
        inner = [((*place, i), begun_s + marker_s, marker_s, early, each) for i, each in requests]
        todo += reversed(inner)


def _objects(what: str, value: Any) -> list[Record]:
    listed = isinstance(value, list) and all(isinstance(each, dict) for each in value)
    require(listed, f"{what} must be a list of objects")
    return value if listed else []


def read_conversations(path: Path, provenance: Provenance) -> Trace:
    """ServeGen's conversations_hashed.json (github.com/alibaba/ServeGen): a list of conversations,
    each a list of turns. timestamp: seconds since 1970. What its hashes of tokens stand for is not
    documented: only the counts are used."""
    found = _parsed(str(path), path.read_text(encoding="utf-8", errors="replace"))
    rows = list[tuple[Any, ...]]()
    for number, turns in enumerate(found):
        last = -1
        for place, record in enumerate(_objects(f"{path}, conversation {number}", turns)):
            where = f"{path}, conversation {number}, turn {place}"
            turn, *values = numbers(where, record, *SERVEGEN_KEYS)
            require(turn > last, f"{where}: turn must be more than {last}, got {turn}")
            rows.append((*values, len(rows), len(rows) - 1 if place else -1))
            last = turn
    return _trace(path, rows, provenance)


def _trace(
    path: Path, rows: list[tuple[Any, ...]], provenance: Provenance, *,
    shared: list[Segments] | None = None, per_s: int = 1, place: Strings | None = None,
) -> Trace:  # fmt: skip
    """`rows`: time, prompt and output tokens, and where there are any ids of request and parent."""
    require(rows, f"{path} has no requests")
    times, prompts, outputs, *chats = (np.array(column) for column in zip(*rows, strict=True))
    return Trace(
        times / per_s, None, prompts.astype(np.int64), outputs.astype(np.int64), provenance,
        shared=objects(shared) if shared and any(shared) else None,
        place=place, **dict(zip(("chat", "parent"), chats, strict=False)),
    )  # fmt: skip


def json_lines(path: Path) -> Iterator[tuple[str, Record]]:
    """The objects on the lines of `path`, and where each is."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}, line {number}"
            if line.strip():
                record = _parsed(where, line)
                require(isinstance(record, dict), f"{where}: not a JSON object")
                yield where, record


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", None) or first_line(error)
        raise UsageError(f"{where}: not JSON ({why})") from error


def numbers(where: str, record: Record, *keys: str) -> tuple[Any, ...]:
    for key in keys:
        check_json(where, key, record.get(key))
    return tuple(record[key] for key in keys)


def blocks(where: str, record: Record, tokens: int, base: int = 0) -> Segments:
    """What its hash ids, counted from `base`, say of a prompt, in blocks of `tokens`."""
    ids = record.get("hash_ids", [])
    require(isinstance(ids, list), f"{where}: hash_ids must be a list")
    for each in ids:
        check_json(where, "hash_ids", each)
    return tuple((base + each, tokens) for each in ids)


def full_blocks(segments: Segments, prompt_tokens: int) -> Segments:
    """Those of a prompt's hash ids that stand for full blocks of it."""
    ends = accumulate(tokens for _, tokens in segments)
    return tuple(each for each, end in zip(segments, ends, strict=True) if end <= prompt_tokens)


def check_json(where: str, key: str, value: object) -> None:
    is_time = key in ("timestamp", "t")
    kind = int | float if is_time else int
    least = {"parent_chat_id": -1, "block_size": 1}.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value < 1e15:
        noun = "number" if is_time else "whole number"
        # a container may be nested more deeply than it can be shown
        got = f"a {type(value).__name__}" if isinstance(value, list | dict) else repr(value)
        raise UsageError(f"{where}: {key} must be a {noun} of at least {least}, got {got}")
