"""One document that some requests ask about: the same first tokens, each time another question
behind them, as AQUA's prefill caching is evaluated (section 9.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harness.configuration.checks import at_least
from harness.errors import UsageError
from harness.schedule import Synthetic
from workloads.trace import Trace, objects


@dataclass(kw_only=True, slots=True)
class DocumentConfig:
    tokens: int  # of the document
    question_tokens: int  # behind it
    every: int  # of so many requests in a row the first one asks

    def check(self) -> None:
        at_least(self, 1, "workload.document", "tokens", "question_tokens", "every")


def asked_about(trace: Trace, config: DocumentConfig) -> Trace:
    """`trace`, where one in `every` prompts is the document with a question. Outputs stay."""
    if trace.prompts is not None or trace.shared is not None:
        raise UsageError(
            f"{trace.provenance.source} has prompts, or prefixes, of its own: leave out "
            "workload.document"
        )
    asks = np.arange(len(trace)) % config.every == 0
    whole = config.tokens + config.question_tokens
    return replace(
        trace,
        prompt_tokens=np.where(asks, whole, trace.prompt_tokens),
        shared=objects([((0, config.tokens),) if each else () for each in asks]),
    ).labelled(
        f"one of {config.every} prompts is a document of {config.tokens} tokens, the same each "
        f"time, and a question of {config.question_tokens}",
        Synthetic.PREFIXES_MADE,
    )
