"""Micro-batches of a pipeline (§4.2, §4.3): how ongoing requests are dealt to them.

New requests enter at the first stage, which forms micro-batches (`server.py`, by vLLM's rules). As
many are in flight as there are stages. Here the batch limit of §4.3 is for one micro-batch. If it
were for the group, a group of two would run no more requests than one instance, and a drop would
gain nothing. The EuroSys'26 paper forms batches by a cost model ("lookahead batch formulation");
that is not here. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping


def deal(context_tokens: Mapping[int, int], num: int) -> list[list[int]]:
    """Distributes ongoing requests over `num` micro-batches when a group forms.

    context_tokens: {request id: tokens}. Sizes differ by one at most. Contexts are evened out: in
    each round, the longest request goes to the micro-batch with the fewest tokens.
    """
    longest_first = sorted(context_tokens, key=lambda r: (-context_tokens[r], r))
    dealt: list[list[int]] = [[] for _ in range(num)]
    weight = [0] * num
    for first in range(0, len(longest_first), num):
        lightest = sorted(range(num), key=lambda k: (weight[k], k))
        for k, request in zip(lightest, longest_first[first : first + num], strict=False):
            dealt[k].append(request)
            weight[k] += context_tokens[request]
    return dealt


def artifact_tokens(max_num_seqs: int, prompt_tokens: int, stages: int, chunk_tokens: int) -> int:
    """The tokens of an iteration in the published code after a drop.

    Prompts are cut into chunks of at most `chunk_tokens` (4,096), whatever was set before. Waiting
    prompts are spread over the stages' micro-batches, so that none is empty while another is full;
    this is our reading of its balanced micro-batches. One token for each seat is left for decodes.
    prompt_tokens: of all waiting prompts.
    """
    share = -(-prompt_tokens // stages)
    return min(chunk_tokens, max(share, max_num_seqs))
