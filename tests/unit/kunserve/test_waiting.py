"""The queue of a group: its order, and what it says that it needs in all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.request import Request
from systems.serving.waiting import Waiting
from tests.examples import examples

ends = st.sampled_from(["put", "put_first", "popleft", "remove", "clear"])


@examples(100)
@given(st.lists(st.tuples(ends, st.integers(1, 99), st.integers(0, 2)), max_size=40))
def test_a_queue_is_in_order_of_priority_and_knows_its_sums(
    story: list[tuple[str, int, int]],
) -> None:
    queue, expected = Waiting(16), list[Request]()
    for number, (what, tokens, priority) in enumerate(story):
        request = Request(number, 0.0, "m", tokens, 1, priority=priority)
        if what == "put":
            queue.put(request)
            expected = sorted([*expected, request], key=lambda r: -r.priority)
        elif what == "put_first":
            queue.put_first(request)
            expected = sorted([request, *expected], key=lambda r: -r.priority)
        elif what == "clear":
            queue.clear()
            expected = []
        elif expected and what == "remove":
            queue.remove(expected.pop(tokens % len(expected)))
        elif expected:
            assert queue.popleft() is expected.pop(0)
        assert list(queue) == expected
        assert queue.tokens == sum(r.known_tokens for r in expected)
        assert queue.blocks == sum(-(-r.known_tokens // 16) for r in expected)


def test_what_would_lose_the_sums_is_refused() -> None:
    queue = Waiting(16)
    queue.put(Request(0, 0.0, "m", 9, 9))
    for change in (queue.pop, lambda: queue.extendleft([]), lambda: queue.__delitem__(0)):
        with pytest.raises(NotImplementedError):
            change()
    assert (len(queue), queue.tokens) == (1, 9)
