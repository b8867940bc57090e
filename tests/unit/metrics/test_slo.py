from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from harness.configuration.config import build
from harness.configuration.options import plain
from harness.errors import UsageError
from harness.records.slo import Slo, slo_of
from tests.conftest import ROOT
from tests.unit.metrics.service import Service, absolute, write_run

CONF = ROOT / "conf" / "slo"


def from_conf(name: str, *overrides: str) -> Slo:
    node = OmegaConf.load(CONF / f"{name}.yaml")
    chosen = OmegaConf.merge(node, OmegaConf.from_dotlist(list(overrides)))
    slo = build(plain(chosen), "slo")
    assert isinstance(slo, Slo)
    return slo


def baseline(path: Path) -> Path:
    """Eleven requests with TTFT 1 … 11 s (P50 6, mean 6) and TPOT 0.1 s."""
    service = Service(*((0.0, 2) for _ in range(11)))
    for i in range(11):
        service.complete(i, i + 1.0, i + 1.1)
    return write_run(path, service)


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_slo_in_conf_builds_and_is_named_after_its_file(path: Path, tmp_path: Path) -> None:
    relative = "baseline" in OmegaConf.load(path)
    slo = from_conf(path.stem, *([f"baseline={baseline(tmp_path)}"] if relative else []))
    assert slo.name == path.stem
    assert slo.ttft_s > slo.tbt_s > 0


def test_an_absolute_slo_takes_overrides() -> None:
    slo = from_conf("aegaeon", "tbt_s=0.05")
    assert (slo.ttft_s, slo.tbt_s, slo.definition) == (10.0, 0.05, "absolute")


@pytest.mark.parametrize("name", ["kunserve", "blitzscale"])
def test_a_relative_slo_is_five_times_its_baseline(name: str, tmp_path: Path) -> None:
    slo = from_conf(name, f"baseline={baseline(tmp_path)}")
    assert slo.ttft_s == pytest.approx(30.0)
    assert slo.tbt_s == pytest.approx(0.5)
    assert str(tmp_path) in slo.definition


def test_a_relative_slo_says_what_its_baseline_lacks(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"give slo\.baseline=PATH"):
        from_conf("kunserve")
    with pytest.raises(UsageError, match="not the folder of a completed run"):
        from_conf("kunserve", f"baseline={tmp_path}/none")
    small = Service((0.0, 2))
    small.complete(0, 1.0, 1.1)
    path = write_run(tmp_path / "small", small)
    with pytest.raises(UsageError, match=r"too few requests for ttft_s\.p50"):
        from_conf("kunserve", f"baseline={path}")
    with pytest.raises(UsageError, match="choose one of mean, p50, p90, p95, p99"):
        from_conf("kunserve", f"baseline={path}", "statistic=p42")


def test_limits_are_of_any_kind_and_of_models() -> None:
    slo = from_conf("chat", "goodput=ttft:200 tbt_p99:100.5 org/m:7b/ttft:500 org/m:7b/e2el:9e3")
    assert slo.limits_s("any") == {"ttft": 0.2, "tbt_p99": 0.1005}
    assert slo.limits_s("org/m:7b") == {"ttft": 0.5, "tbt_p99": 0.1005, "e2e": 9.0}
    assert from_conf("chat", "goodput=m/tpot:50").limits_s("m") == {"ttft": 1.0, "tpot": 0.05}
    assert slo_of({"slo": slo.told()}).limits_s("org/m:7b") == slo.limits_s("org/m:7b")
    slo.require_models(["other", "org/m:7b"])
    with pytest.raises(UsageError, match=r"model=org/m:7b is unknown; valid: a, b"):
        slo.require_models(["b", "a"])


@pytest.mark.parametrize(
    "word",
    ["", "ttft", "ttfx:200", "ttft:soon", "ttft:0", "ttft:-1", "ttft:nan", "tpot:inf", "m/:5",
     "tpot:5 tpot:6", "e2e:5 e2el:5"],
)  # fmt: skip
def test_a_wrong_limit_is_told_with_the_valid_kinds(word: str) -> None:
    with pytest.raises(UsageError, match=r"kinds: ttft, tpot, e2e, tbt_p99, tbt_max"):
        absolute(goodput=word)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_must_be_a_positive_time(value: float) -> None:
    with pytest.raises(UsageError, match=r"slo\.tbt_s=.* must be"):
        absolute(1.0, value)
