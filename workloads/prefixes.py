"""Which prompts begin alike: as the trace says (Mooncake's hash ids), or as the user asks for.

A document that some requests ask about is one such: the same first tokens, each time another
question behind them, as AQUA's prefill caching is evaluated (section 9.1).

Lengths stay: what is shared takes the place of a prompt's first tokens. Copies that `scale` or a
burst makes of a request have its prompt, and all of it is shared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harness.configuration.checks import at_least, require
from harness.errors import UsageError
from harness.schedule import Synthetic
from workloads.trace import Trace, objects


@dataclass(kw_only=True, slots=True)
class PrefixesConfig:
    trace: bool  # what the trace itself says is shared; false: its prompts share nothing
    distinct_prompts: int | None  # so many prompts, sent by turns
    system_prompts: int | None  # so many, by turns, which prompts begin with
    system_prompt_tokens: int | None  # of each

    def check(self) -> None:
        where = "workload.prefixes"
        at_least(self, 1, where, "distinct_prompts", "system_prompts", "system_prompt_tokens")
        require(
            (self.system_prompts is None) == (self.system_prompt_tokens is None),
            f"{where}.system_prompts and system_prompt_tokens go together: give both",
        )
        require(
            self.distinct_prompts is None or self.system_prompts is None,
            f"{where} takes distinct_prompts or system_prompts, not both",
        )


def shared(trace: Trace, config: PrefixesConfig) -> Trace:
    """`trace` with the segments that its prompts share."""
    made = config.distinct_prompts or config.system_prompts
    if made is None:
        if config.trace or trace.shared is None:
            return trace
        return replace(trace, shared=None).labelled("prompts share nothing")
    if trace.prompts is not None:
        raise UsageError(f"{trace.provenance.source} has real prompts: leave out workload.prefixes")
    if config.distinct_prompts is not None:
        step = f"{made} distinct prompts by turns, cut to each request's length"
        lengths = trace.prompt_tokens.tolist()
    else:
        tokens, longest = config.system_prompt_tokens, int(trace.prompt_tokens.max())
        assert tokens is not None, "check has seen to it"
        require(
            tokens < longest,
            f"workload.prefixes.system_prompt_tokens={tokens} leaves nothing of any prompt: "
            f"the longest has {longest} tokens",
        )
        step = f"{made} system prompts of {tokens} tokens by turns, at the start of each prompt"
        if cut := int((trace.prompt_tokens < tokens).sum()):
            step += f"; {cut} of {len(trace)} prompts are shorter and have their beginning"
        lengths = [tokens] * len(trace)
    segments = objects([((i % made, tokens),) for i, tokens in enumerate(lengths)])
    return replace(trace, shared=segments).labelled(step, Synthetic.PREFIXES_MADE)


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
