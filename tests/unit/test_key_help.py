"""`--help keys`: a key's meaning is the comment that its YAML has beside or above it."""

from __future__ import annotations

from pathlib import Path

from harness.configuration.key_help import described, keys, read_meanings, told
from harness.configuration.options import GROUPS
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


def test_every_key_has_a_meaning() -> None:
    found = keys(ROOT / "conf")
    assert {key.name.split(".")[0] for key in found} >= set(GROUPS) - {"experiment"}
    assert [key.name for key in found if not key.meaning] == []


def test_what_is_told_once_stands_for_any_name_and_comes_first(tmp_path: Path) -> None:
    files = {
        "config.yaml": "seed: 0 # of every draw",
        "meanings.yaml": 'hardware.pairs.MODEL.launch_s: "seconds"\nhardware.rate: "bytes/s"\n',
        "hardware/x.yaml": "rate: 1 # datasheet\npairs: {}\n",
        "hardware/y.yaml": "rate: 2\npairs:\n  a-1.5b_tp1:\n    launch_s: 3\n",
        "system/z.yaml": "variants:\n  paper:\n    n: 1 # requests\n  artifact:\n    n: 2 # code\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert {key.name: key.meaning for key in keys(tmp_path)} == {
        "seed": "of every draw",
        "hardware.rate": "bytes/s; (x) datasheet",
        "hardware.pairs": "",
        "hardware.pairs.MODEL.launch_s": "seconds",
        "system.variants.paper.n": "requests",
        "system.variants.artifact.n": "as system.variants.paper.n; (z) code",
    }
    assert "hardware.pairs.MODEL.launch_s" in told(tmp_path, "hardware.pairs.a-1.5b_tp1.l")


def test_every_meaning_is_of_a_key() -> None:
    found = {key.name for key in keys(ROOT / "conf")}
    assert [name for name in read_meanings(ROOT / "conf") if name not in found] == []
