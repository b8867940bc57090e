"""Every block is sent once, full ones while the request runs, the last at a step boundary."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from systems.llumnix.stages import Send, next_stage


def test_full_blocks_first_then_the_one_that_is_written() -> None:
    assert next_stage(0, 70, 16) == Send(range(4), last=False)
    assert next_stage(4, 70, 16) == Send(range(4, 5), last=True)
    assert next_stage(0, 0, 16) == Send(range(0), last=True)


def test_sixteen_blocks_or_fewer_end_it_in_its_code() -> None:
    assert next_stage(0, 16 * 17 + 1, 16, last_blocks=16) == Send(range(17), last=False)
    assert next_stage(17, 16 * 20, 16, last_blocks=16) == Send(range(17, 20), last=True)
    assert next_stage(0, 16 * 16, 16, last_blocks=16) == Send(range(16), last=True)
    with pytest.raises(ValueError, match="last_blocks=0 must be at least 1"):
        next_stage(0, 16, 16, last_blocks=0)


@settings(deadline=None)
@given(
    tokens=st.integers(0, 5000),
    block_tokens=st.sampled_from([1, 16, 256]),
    grown=st.lists(st.integers(0, 300), min_size=1, max_size=40),
    last_blocks=st.integers(1, 20),
)
def test_it_ends_with_every_block_sent_once_and_only_full_ones_early(
    tokens: int, block_tokens: int, grown: list[int], last_blocks: int
) -> None:
    """The request decodes `grown` tokens while each stage is under way, then nothing."""
    sent: list[int] = []
    for more in [*grown, *[0] * 3]:
        send = next_stage(len(sent), tokens, block_tokens, last_blocks=last_blocks)
        sent += send.blocks
        assert sent == list(range(len(sent)))
        if send.last:
            assert len(sent) == -(-tokens // block_tokens)
            assert len(send.blocks) <= last_blocks
            return
        assert send.blocks
        assert len(sent) * block_tokens <= tokens
        tokens += more
    raise AssertionError("the copy did not end")
