"""What a conformance test is, and what it finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import RunError, UsageError
from harness.selftest.bench import Bench

PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"


class Skipped(Exception):
    """The test cannot be made here; says why."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured, and a sentence for each way in which that is wrong."""

    text: str
    wrong: tuple[str, ...] = ()


def found(text: str, checks: Mapping[str, bool]) -> Found:
    """`checks`: what must hold, each with whether it does."""
    return Found(text, tuple(f"not true: {what}" for what, holds in checks.items() if not holds))


@dataclass(frozen=True, slots=True)
class Conformance:
    """One of the tests that an honest harness passes."""

    number: int
    name: str
    test: Callable[..., Found]  # of a Bench
    alone: bool = False  # depends on time: beside no other test

    @property
    def asks(self) -> str:
        """What the test's docstring begins with."""
        return " ".join((self.test.__doc__ or "").partition("\n\n")[0].split())

    def result(self, bench: Bench) -> dict[str, Any]:
        """Its row in what the self-test writes; a run that breaks is a failure."""
        began_s = time.monotonic()
        try:
            made = self.test(bench)
            result, text = (FAILED if made.wrong else PASSED), "; ".join([made.text, *made.wrong])
        except Skipped as why:
            result, text = SKIPPED, str(why)
        except (RunError, UsageError) as error:
            result, text = FAILED, str(error)
        return {
            "number": self.number, "name": self.name, "asks": self.asks, "result": result,
            "found": text, "seconds": round(time.monotonic() - began_s, 2),
        }  # fmt: skip


def conformance(
    number: int, name: str, *, alone: bool = False
) -> Callable[[Callable[[Bench], Found]], Conformance]:
    return lambda test: Conformance(number, name, test, alone)
