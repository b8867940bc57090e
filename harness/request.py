"""What travels through the system: a request and the batches it is served in.

Plain data. A `Request` is what the workload asked for plus how far its service has come;
times are not here but in the recorder, so a policy cannot read a metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from mypy_extensions import mypyc_attr

# Where a prompt's first tokens come from: (stream, tokens), in order. A stream is an endless random
# text; a segment is its first `tokens` tokens. Prompts with equal segments have equal tokens.
Segments = tuple[tuple[int, int], ...]


@dataclass(slots=True, frozen=True, eq=False)
class Prompt:
    """A real prompt: its text, its token ids, and for each token where it ends in the text
    (characters from the start)."""

    text: str
    ids: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]

    @staticmethod
    def of(text: str, ids: Sequence[int], ends: Sequence[int]) -> Prompt:
        return Prompt(text, np.array(ids, np.int32), np.array(ends, np.int32))

    def first(self, num_tokens: int) -> Prompt:
        """The prompt cut to its first `num_tokens` (≥ 1)."""
        if num_tokens >= len(self.ids):
            return self
        end = int(self.ends[num_tokens - 1])
        return Prompt(self.text[:end], self.ids[:num_tokens], self.ends[:num_tokens])


@dataclass(slots=True, frozen=True, eq=False)
class Turn:
    """Where a request stands in a session: a conversation whose prompts begin with all that was
    said before, the answers as they were given."""

    session: int
    number: int  # from 0
    think_s: float  # from the end of the answer before until this request is sent
    new_tokens: int  # of the prompt, behind what was said before
    previous: Request | None  # the turn before; None: this is the first
    waits_for: tuple[Request, ...] = ()  # requests of other sessions that must have ended too

    @property
    def earlier(self) -> tuple[Request, ...]:
        """All that must have ended before this one is sent; none: it is sent by schedule."""
        return self.waits_for if self.previous is None else (self.previous, *self.waits_for)


@mypyc_attr(acyclic=True)  # the garbage collector need not know the millions of them
@dataclass(slots=True, eq=False)
class Request:
    """One request: `prompt_tokens` in, exactly `output_tokens` (≥ 1) out.

    `computed_tokens` counts the tokens whose KV is in memory now; `generated_tokens` the output
    tokens produced so far. A prefill is complete when every known token (prompt and generated)
    is computed; the iteration that completes it also generates the next token.
    """

    request_id: int
    arrival_s: float  # scheduled, seconds since the schedule's start
    model: str
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int = 0
    generated_tokens: int = 0
    failed: bool = False
    prompt: Prompt | None = None  # the real one; None: engines make random tokens
    # What of the random tokens other prompts may have too; None: no two prompts of the schedule
    # share any, and a prefix cache need not look
    shared: Segments | None = None
    turn: Turn | None = (
        None  # of a session; its own stream, answer included, is the last of `shared`
    )
    answer: list[int] | str | None = None  # ids or text of a live engine; the next turn has them
    priority: int = 0  # higher is more important; KunServe and Llumnix look at it
    cached_tokens: int | None = None  # found in a prefix cache at first; None: none was asked
    log_index: int = 0  # where its recorder has it
    decodes_on: int = 0  # the instance whose checks (`harness.device.base`) it has passed; 0: none
    in_batch: bool = False  # of elastic instances, that is running (`harness.elastic.kv_directory`)

    @property
    def known_tokens(self) -> int:
        """Tokens that a full context holds now: the prompt and what was generated."""
        return self.prompt_tokens + self.generated_tokens

    @property
    def history_tokens(self) -> int:
        """How many of a turn's first tokens earlier requests may have had: what was said before in
        the session, and of a session's first turn what other sessions begin with too."""
        if self.turn is None or self.turn.previous is None:
            common = sum(tokens for _, tokens in (self.shared or ())[:-1])
            return min(self.prompt_tokens, common)
        return self.turn.previous.known_tokens

    @property
    def remaining_tokens(self) -> int:
        return self.output_tokens - self.generated_tokens

    @property
    def finished(self) -> bool:
        return self.generated_tokens >= self.output_tokens

    @property
    def decoding(self) -> bool:
        """Has its whole context computed but for the newest token: one token per iteration."""
        lacking = self.prompt_tokens + self.generated_tokens - self.computed_tokens
        return lacking == 1 and self.generated_tokens > 0


@mypyc_attr(acyclic=True)
class Batch:
    """One iteration's work: prefill chunks (request, tokens of it to compute) and decodes.

    A request stands in one of the two lists, once. A chunk covers the next `num_tokens` of the
    request's known tokens that are not computed yet. `first_end` and `context_tokens` are noted as
    it begins to run (`harness.device.base`): iterations until the first of its decodes ends, and
    tokens that the next one attends to for its decodes.
    """

    __slots__ = ("chunks", "context_tokens", "decodes", "first_end")

    # Not a dataclass: their constructors stay Python, and each iteration makes a batch.
    def __init__(
        self,
        chunks: list[tuple[Request, int]] | None = None,
        decodes: list[Request] | None = None,
    ) -> None:
        self.chunks = [] if chunks is None else chunks
        self.decodes = [] if decodes is None else decodes
        self.first_end = self.context_tokens = 0

    @property
    def num_tokens(self) -> int:
        return sum(n for _, n in self.chunks) + len(self.decodes)

    @property
    def requests(self) -> list[Request]:
        return [request for request, _ in self.chunks] + self.decodes
