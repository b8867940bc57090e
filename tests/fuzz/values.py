"""Values that are wrong somewhere: of the wrong type, size, sign or depth."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

HUGE = [10**9, 10**18, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30]
NUMBERS: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([0, 1, -1, 2, 3, 7, 64, 1000, *HUGE]),
    st.sampled_from([0.0, -0.0, 0.5, 1.5, -1.5, 1e-300, 1e-9, 1e18, 1e300]),
    st.floats(),
    st.floats(0, 2),
    st.integers(-10, 10**6),
)
TEXTS = st.one_of(
    st.sampled_from(["", " ", "null", "a b", "x" * 300, "../../x", "/dev/null", "\x00", "é€😀"]),
    st.text(max_size=20),
)
SCALARS: st.SearchStrategy[Any] = st.one_of(NUMBERS, TEXTS, st.none(), st.booleans())
NESTED: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
