"""A configuration's limits: what breaks one is told with its key and what would be valid."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from harness.configuration.checks import at_least, one_of, positive, require
from harness.errors import UsageError

CONFIG = SimpleNamespace(size=0, share=-0.5, none=None, endless=float("inf"), right=2)


@pytest.mark.parametrize(
    ("check", "told"),
    [
        (lambda: at_least(CONFIG, 1, "pool", "right", "size"), "pool.size=0 must be at least 1"),
        (lambda: at_least(CONFIG, 0, "", "share"), "share=-0.5 must be at least 0"),
        (lambda: positive(CONFIG, "a.b", "size"), "a.b.size=0 must be above 0 and finite"),
        (lambda: positive(CONFIG, "a", "endless"), "a.endless=inf must be above 0 and finite"),
        (lambda: one_of("c", ("a", "b"), "kind"), "kind=c is unknown; valid: a, b"),
        (lambda: one_of("c", ("a",), "kind", "choose"), "kind=c is unknown; choose a"),
        (lambda: require(0, "there is none"), "there is none"),
    ],
)
def test_a_breach_is_one_sentence(check: Callable[[], None], told: str) -> None:
    with pytest.raises(UsageError) as error:
        check()
    assert str(error.value) == told


def test_what_is_right_or_not_given_passes() -> None:
    at_least(CONFIG, 2, "pool", "right", "none")
    positive(CONFIG, "pool", "right", "none")
    one_of("a", ("a", "b"), "kind")
    require(1, "never told")
