"""YAML is read as OmegaConf reads it, by another parser."""

from __future__ import annotations

from io import StringIO

import pytest
import yaml
from omegaconf import OmegaConf

from harness.configuration.options import CONF
from harness.configuration.yaml_in_c import LOADER, Rules

ODD = """
a: [1e-3, 1.5e+12, .5, 1_000, 0x1f, 0o17, 1:30, .inf, 2024-05-10, yes, null, ~, "", '0.1']
b: {c: "${x.y}", d e: ü …, f: }
g: ${x.y:1,null}
h: >-
  folded
  text
i: |
  kept
"""


def test_every_option_reads_the_same() -> None:
    texts = [ODD]
    texts += [path.read_text() for path in CONF.rglob("*.yaml") if "experiment" not in path.parts]
    assert len(texts) > 100
    for text in texts:
        assert repr(yaml.load(text, LOADER)) == repr(yaml.load(text, Rules))


def test_omegaconf_reads_with_it_and_still_refuses_a_key_told_twice() -> None:
    assert (LOADER is not Rules) == yaml.__with_libyaml__
    assert OmegaConf.load(StringIO("a: 1e-3")).a == 0.001
    with pytest.raises(yaml.constructor.ConstructorError, match="found duplicate key a"):
        OmegaConf.load(StringIO("a: 1\na: 2"))
