"""Which model to ask an endpoint for: from what it lists, and from what the user says."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException

from harness.drivers.server import fetch
from harness.errors import UsageError
from harness.records.record import TokenRecord

TIMEOUT_S = 10.0
SHOWN = 8


@dataclass(slots=True)
class Served:
    """What URL/models says. `lengths`: by id, tokens of prompt and output; None: it does not say.
    `refusal`: the HTTP error that it answered with instead; empty: it did not."""

    lengths: dict[str, int | None] = field(default_factory=dict)
    refusal: str = ""


def list_models(url: str, headers: Mapping[str, str]) -> Served:
    """The models that the server lists, which not every server does. Raises UsageError where
    nothing answers."""
    try:
        return parse_models(fetch(f"{url}/models", TIMEOUT_S, headers))
    except urllib.error.HTTPError as error:
        error.close()
        return Served(refusal=f"HTTP {error.code}")
    except (OSError, HTTPException) as error:
        why = getattr(error, "reason", None) or error
        raise UsageError(f"engine.url={url} cannot be reached: {why}") from error


def parse_models(body: bytes) -> Served:
    """Reads {"data": [{"id": …, "max_model_len": …}, …]}; vLLM and SGLang give the length."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return Served()
    rows = content.get("data") if isinstance(content, dict) else None
    served = Served()
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and isinstance(row.get("id"), str):
            length = row.get("max_model_len")
            served.lengths[row["id"]] = length if type(length) is int and length > 0 else None
    return served


def choose_model(asked: str | None, served: Served, names: Sequence[str], url: str) -> str | None:
    """The name to ask for; None: the one that each request carries, of `names`. Raises UsageError
    where neither the user nor the server says."""
    if asked is not None:
        return asked
    ids = list(served.lengths)
    if len(ids) == 1:
        return ids[0]
    if ids and set(names) <= set(ids):
        return None
    if ids:
        more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
        raise UsageError(
            f"{url} serves {', '.join(ids[:SHOWN])}{more}: say which with engine.model=NAME"
        )
    if served.refusal in ("HTTP 401", "HTTP 403"):
        raise UsageError(
            f"{url}/models answered {served.refusal}: name the variable that holds the key with "
            "engine.api_key_env=NAME"
        )
    base = "" if url.endswith("/v1") else f" (is engine.url the API's base, often {url}/v1?)"
    said = f"answered {served.refusal}" if served.refusal else "lists no model"
    raise UsageError(f"{url}/models {said}{base}: say what to ask for with engine.model=NAME")


def fit(records: Iterable[TokenRecord], model: str | None, served: Served, url: str) -> None:
    """Raises UsageError for a request that is longer than what the server says it takes."""
    for record in records:
        request = record.request
        name = request.model if model is None else model
        length, tokens = served.lengths.get(name), request.prompt_tokens + request.output_tokens
        if length is not None and tokens > length:
            raise UsageError(
                f"request {request.request_id} has {tokens} tokens, and {name} at {url} takes "
                f"{length}; give its model=NAME, or model.max_position={length}"
            )
