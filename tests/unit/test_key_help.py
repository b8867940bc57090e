"""`--help keys`: a key's meaning is the comment that its YAML has beside or above it."""

from __future__ import annotations

from harness.key_help import described, keys
from harness.options import GROUPS
from tests.running import ROOT

TEXT = """\
# The heading of the file is no key's.
_target_: some.Class
plain: 1 # beside it
# above it,
# in two lines
above: [1, 2]
url: "http://host#anchor" # with a hash in its value
pool: # of a mapping
  # goes with the first key
  share: 0.5
  goes_on: 2 # first part;
  # second part
  silent: 3
empty: {}
"""


def test_comments_become_meanings() -> None:
    assert list(described(TEXT)) == [
        ("plain", "1", "beside it"),
        ("above", "[1, 2]", "above it, in two lines"),
        ("url", '"http://host#anchor"', "with a hash in its value"),
        ("pool", "", "of a mapping"),
        ("pool.share", "0.5", "goes with the first key"),
        ("pool.goes_on", "2", "first part; second part"),
        ("pool.silent", "3", ""),
        ("empty", "{}", ""),
    ]


def test_every_key_that_a_user_sets_first_has_a_meaning() -> None:
    """Those of conf/config.yaml, and of the groups that every run has; datasheets, datasets and
    systems have sources and sections instead."""
    found = keys(ROOT / "conf")
    assert {key.name.split(".")[0] for key in found} >= set(GROUPS) - {"experiment"}
    heads = ("seed", "data", "client", "faults", "fit_context", "figure", "progress", "again",
             "runs_dir", "model", "slo", "tracking")  # fmt: skip
    silent = [key.name for key in found if key.name.split(".")[0] in heads and not key.meaning]
    assert silent == []
