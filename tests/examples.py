"""How many examples property tests draw: a quarter of them in `make test`, and all of them where
HYPOTHESIS is set, as `make coverage`, `make mutants` and `make fuzz` do."""

from __future__ import annotations

import os

from hypothesis import settings

FEWEST = 10


def num_examples(all_of_them: int) -> int:
    return all_of_them if "HYPOTHESIS" in os.environ else max(FEWEST, all_of_them // 4)


def examples(all_of_them: int) -> settings:
    return settings(max_examples=num_examples(all_of_them))
