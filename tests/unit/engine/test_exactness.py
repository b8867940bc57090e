"""Tests that compare tokens have prompts that let them: no other is taken."""

from __future__ import annotations

from itertools import count

import pytest

from harness.device.prompts import prompt_ids
from harness.request import Request
from tests.elastic import spec
from tests.exactness import MIN_GAP, alone, clear_prompt, plain_tokens


def test_a_prompt_whose_best_logits_are_near_is_refused_and_another_is_found() -> None:
    model = spec()
    requests = (Request(number, 0.0, model.name, 20, 2) for number in count(17))
    unclear = next(
        each
        for each in requests
        if min(alone(model, prompt_ids(each, model.vocab_size, 0), 2).gaps) <= MIN_GAP
    )
    with pytest.raises(AssertionError):
        plain_tokens([unclear], {model.name: model})
    unclear.prompt = clear_prompt(unclear.request_id, model, 20, 2)
    tokens = plain_tokens([unclear], {model.name: model})[unclear.request_id]
    assert len(tokens) == 2
    assert min(alone(model, unclear.prompt.ids.tolist(), 2).gaps) > MIN_GAP
