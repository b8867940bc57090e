"""Request bodies of the OpenAI APIs: the requests' real prompts, or random ones of a given length,
the same in every run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.model_spec import ModelSpec
from harness.prompts import FIRST_ID, answer_ids, previous_turn, require_in_vocabulary, said
from harness.records.record import TokenRecord
from harness.request import Request

# One token each in the byte-pair vocabularies in use, with the space before it.
TEXT = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or "
    "had an they which one you were her all she there would their we him been has when who will "
    "more no if out so said what up its about into than them can only other new some could time"
)
WORDS = TEXT.split()
TOKEN_IDS = {"return_token_ids": True}  # vLLM's, of the answer


@dataclass(frozen=True, slots=True)
class Body:
    """Makes the JSON body of a request: a list named `key`, and the fields beside it. `name`: the
    model to ask for instead of the request's own. `added`: what a request adds to the list of the
    turn before it, that turn's answer first. `beside`: fields of a session's turn."""

    key: str
    added: Callable[[Request], list[Any]]
    name: str | None
    extra: Mapping[str, Any]
    beside: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, request: Request, before: bytes | None = None) -> bytes:
        """`before`: the body of the turn before, whose list is taken over as it is: encoding a long
        conversation again takes milliseconds."""
        head, items = b'{"%s": [' % self.key.encode(), _encoded(self.added(request))[1:-1]
        if (previous := previous_turn(request)) is not None:
            before = before or self(previous)
            items = b", ".join(
                filter(None, (before[len(head) : -len(self._tail(previous))], items))
            )
        return head + items + self._tail(request)

    def _tail(self, request: Request) -> bytes:
        told = {} if request.turn is None else self.beside
        asked = {"model": self.name or request.model, "max_tokens": request.output_tokens}
        return b"], " + _encoded({**told, **asked, "stream": True, **self.extra})[1:]


def completion_body(
    models: Mapping[str, ModelSpec], name: str | None, seed: int, extra: Mapping[str, Any]
) -> Body:
    """Makes bodies for /completions, with the prompt as token ids. Of a session's turns the
    answers' ids are asked for, which the next prompts have."""

    def ids(request: Request) -> list[int]:
        require_in_vocabulary([request], models)
        previous = previous_turn(request)
        answered = [] if previous is None else answer_ids(previous)
        return answered + said(request, models[request.model].vocab_size, seed)

    return Body("prompt", ids, name, extra, TOKEN_IDS)


def chat_body(name: str | None, seed: int, extra: Mapping[str, Any]) -> Body:
    """Makes bodies for /chat/completions, with the real prompt's text, or as many short words as
    the prompt has tokens. The server's chat template and tokenizer decide how many tokens that
    really is. Of a session's later turns the messages before come first, with the real answers."""

    def words(request: Request) -> str:
        if request.prompt is not None:
            return request.prompt.text
        ids = said(request, FIRST_ID + len(WORDS), seed)
        return " ".join(WORDS[i - FIRST_ID] for i in ids)

    def messages(request: Request) -> list[dict[str, Any]]:
        asked = [{"role": "user", "content": words(request)}]
        previous = previous_turn(request)
        if previous is None:
            return asked
        return [{"role": "assistant", "content": previous.answer}, *asked]

    return Body("messages", messages, name, extra)


class Bodies:
    """The bodies of a run's requests, made before they are sent. A long prompt takes milliseconds:
    later, the client would be late, and every other stream's stamps with it. Of a session's later
    turn that is when the answer before is known, while its user thinks."""

    def __init__(self, make: Callable[..., bytes], records: Iterable[TokenRecord]) -> None:
        """`make`: a `Body`."""
        self._make = make
        self._made: dict[int, bytes] = {}
        self._next: dict[int, Request] = {}  # by the request_id of the turn before
        for request in (each.request for each in records):
            if (previous := previous_turn(request)) is None:
                self._made[request.request_id] = make(request)
            else:
                self._next[previous.request_id] = request

    def of(self, request: Request) -> bytes:
        return self._made.get(request.request_id) or self._make(request)

    def answered(self, request: Request) -> None:
        """The answer to `request` is complete: makes the body of the turn behind it."""
        following = self._next.get(request.request_id)
        if following is not None:
            before = self._made.pop(request.request_id, None)
            self._made[following.request_id] = self._make(following, before)


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode()
