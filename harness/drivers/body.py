"""Request bodies of the OpenAI APIs: the requests' real prompts, or random ones of a given length,
the same in every run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harness.model_spec import ModelSpec
from harness.prompts import FIRST_ID, prompt_ids, require_in_vocabulary, said, turns_before
from harness.records.record import TokenRecord
from harness.request import Request

# One token each in the byte-pair vocabularies in use, with the space before it.
TEXT = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or "
    "had an they which one you were her all she there would their we him been has when who will "
    "more no if out so said what up its about into than them can only other new some could time"
)
WORDS = TEXT.split()


def completion_body(
    models: Mapping[str, ModelSpec], name: str | None, seed: int, extra: Mapping[str, Any]
) -> Callable[[Request], bytes]:
    """Makes bodies for /completions, with the prompt as token ids. `name`: the model to ask for
    instead of the request's own model name. Of a session's turns the answers' ids are asked for,
    which the next prompts have."""

    def body(request: Request) -> bytes:
        require_in_vocabulary([request], models)
        ids = prompt_ids(request, models[request.model].vocab_size, seed)
        told = {} if request.turn is None else {"return_token_ids": True}
        return _encode({"prompt": ids} | told, request, name, extra)

    return body


def chat_body(name: str | None, seed: int, extra: Mapping[str, Any]) -> Callable[[Request], bytes]:
    """Makes bodies for /chat/completions, with the real prompt's text, or as many short words as
    the prompt has tokens. The server's chat template and tokenizer decide how many tokens that
    really is. Of a session's later turns the messages before come first, with the real answers."""

    def words(request: Request) -> str:
        if request.prompt is not None:
            return request.prompt.text
        ids = said(request, FIRST_ID + len(WORDS), seed)
        return " ".join(WORDS[i - FIRST_ID] for i in ids)

    def body(request: Request) -> bytes:
        messages = list[dict[str, Any]]()
        for before in turns_before(request):
            messages.append({"role": "user", "content": words(before)})
            messages.append({"role": "assistant", "content": before.answer})
        messages.append({"role": "user", "content": words(request)})
        return _encode({"messages": messages}, request, name, extra)

    return body


def prebuilt(
    body: Callable[[Request], bytes], records: Iterable[TokenRecord]
) -> Callable[[Request], bytes]:
    """`body`, called now for each request of the run. A long prompt takes milliseconds: later,
    the client would be late, and every other stream's stamps with it. A session's later turns must
    wait for the answers before."""
    known = [each.request for each in records if not turns_before(each.request)]
    bodies = {request.request_id: body(request) for request in known}
    return lambda request: bodies.get(request.request_id) or body(request)


def _encode(
    prompt: dict[str, Any], request: Request, name: str | None, extra: Mapping[str, Any]
) -> bytes:
    fields = {"model": name or request.model, "max_tokens": request.output_tokens, "stream": True}
    return json.dumps(prompt | fields | dict(extra)).encode()
