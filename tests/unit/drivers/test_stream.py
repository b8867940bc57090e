"""Bytes to token counts: however the network cuts the stream, the counts are the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.drivers.stream import EventSplitter, StreamError, Tally


def event(text: str = "", *, usage: int | None = None, **choice: Any) -> bytes:
    fields: dict[str, Any] = {"choices": [{"text": text} | choice]}
    if usage is not None:
        fields["usage"] = {"completion_tokens": usage}
    return json.dumps(fields).encode()


def final_usage(tokens: int) -> bytes:
    return json.dumps({"choices": [], "usage": {"completion_tokens": tokens}}).encode()


def read_all(tally: Tally, *payloads: bytes) -> list[int]:
    return [tally.read(payload) for payload in payloads]


@given(
    payloads=st.lists(st.binary(max_size=300).map(lambda b: b.hex().encode()), max_size=20),
    ends=st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n"]),
    cuts=st.lists(st.integers(1, 100), min_size=1, max_size=50),
)
def test_any_cut_of_the_stream_gives_the_same_events(
    payloads: list[bytes], ends: bytes, cuts: list[int]
) -> None:
    stream = b": a comment\n" + b"".join(b"data: " + payload + ends for payload in payloads)
    splitter, seen, at = EventSplitter(), [], 0
    while at < len(stream):
        size = cuts[at % len(cuts)]
        seen += splitter.feed(stream[at : at + size])
        at += size
    assert seen + splitter.finish() == payloads


def test_a_last_event_without_its_line_end_counts() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\ndata: [DONE]") == [b"1"]
    assert splitter.finish() == [b"[DONE]"]


def test_running_usage_counts_tokens_and_not_events() -> None:
    tally = Tally(7)
    counts = read_all(
        tally,
        event(usage=1),
        event(usage=5),
        event(usage=7, finish_reason="length"),
        final_usage(7),
    )
    assert counts == [1, 4, 2, 0]
    assert read_all(tally, b"[DONE]") == [0]
    assert tally.fault(allow_early_end=False) is None
    assert not tally.corrected


def test_without_usage_each_event_with_text_is_a_token() -> None:
    tally = Tally(2)
    chat = [{"delta": {"role": "assistant"}}, {"delta": {"content": "a"}}, {"delta": {}}]
    payloads = [json.dumps({"choices": [choice]}).encode() for choice in chat]
    assert read_all(tally, *payloads, event(" b")) == [0, 1, 0, 1]


@pytest.mark.parametrize("usage", [{"completion_tokens": None}, {"prompt_tokens": 3}, {}, None])
def test_a_usage_without_a_count_leaves_the_counting_to_the_text(usage: Any) -> None:
    tally = Tally(2)
    payload = json.dumps({"choices": [{"text": "a"}], "usage": usage}).encode()
    last = json.dumps({"choices": [], "usage": usage}).encode()
    assert read_all(tally, payload, payload, last, b"[DONE]") == [1, 1, 0, 0]
    assert tally.fault(allow_early_end=False) is None
    assert not tally.corrected


def test_usage_at_the_end_corrects_the_count() -> None:
    tally = Tally(6)
    assert read_all(tally, event("a b c"), event("d e f"), final_usage(6), b"[DONE]") == [
        1,
        1,
        4,
        0,
    ]
    assert tally.fault(allow_early_end=False) is None
    assert tally.corrected


@pytest.mark.parametrize(("total", "surplus"), [(6, 3), (3, 0), (2, 0)])
def test_usage_with_the_last_text_alone_is_not_taken_for_running_usage(
    total: int, surplus: int
) -> None:
    tally = Tally(6)
    read_all(tally, event("a b"), event("c d"), event("e f", usage=total), b"[DONE]")
    assert tally.reported().surplus_tokens == surplus
    assert tally.corrected is (surplus > 0)


def test_what_a_server_says_of_the_prompt_is_kept() -> None:
    tally = Tally(2)
    usage = {"prompt_tokens": 90, "prompt_tokens_details": {"cached_tokens": 64}}
    read_all(tally, event("a"), json.dumps({"choices": [], "usage": usage}).encode())
    assert (tally.reported().prompt_tokens, tally.reported().cached_tokens) == (90, 64)


@pytest.mark.parametrize("value", [True, -1, 1.5, "3", 10**30, None, [1]])
def test_a_number_that_is_no_count_is_left_out(value: Any) -> None:
    tally = Tally(2)
    usage = {"completion_tokens": value, "prompt_tokens": value}
    read_all(tally, json.dumps({"choices": [{"text": "a"}], "usage": usage}).encode())
    assert (tally.num_tokens, tally.reported().prompt_tokens) == (1, None)


@pytest.mark.parametrize(
    ("payloads", "says"),
    [
        ([event(usage=2)], "stream ended after 2 of 3 tokens without [DONE]"),
        ([b"[DONE]"], "no token at all"),
        ([event(usage=2, finish_reason="stop"), b"[DONE]"], "ended early: 2 of 3 tokens"),
        ([event(usage=4), b"[DONE]"], "too many tokens: 4 of 3"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_has_a_fault(
    payloads: list[bytes], says: str
) -> None:
    tally = Tally(3)
    read_all(tally, *payloads)
    assert says in (tally.fault(allow_early_end=False) or "")


def test_an_early_end_is_complete_where_allowed_but_silence_never_is() -> None:
    early, silent = Tally(3), Tally(3)
    read_all(early, event(usage=2, finish_reason="stop"), b"[DONE]")
    read_all(silent, b"[DONE]")
    assert early.fault(allow_early_end=True) is None
    assert silent.fault(allow_early_end=True) is not None


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b'{"error": {"message": "out of cheese"}}', "out of cheese"),
        (b'{"error": "flat"}', "flat"),
        (b"<html>", "no JSON object, after 1 of 3 tokens: <html>"),
        (b"[1]", "no JSON object"),
        (b"[" * 100_000, "no JSON object"),
        (b'{"usage": "x"}', 'after 1 of 3 tokens: usage is "x"'),
        (b'{"choices": "x"}', 'choices is "x"'),
        (b'{"choices": [null]}', "choices[0] is null"),
        (b'{"choices": [{"delta": "x"}]}', 'delta is "x"'),
    ],
)
def test_an_event_that_is_no_answer_breaks_off(payload: bytes, says: str) -> None:
    tally = Tally(3)
    tally.read(event(usage=1))
    with pytest.raises(StreamError) as caught:
        tally.read(payload)
    assert says in str(caught.value)
