"""A load that follows the machine: two speeds, two rates; a given rate is kept."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra

from harness.calibrate import zoo
from harness.errors import RunError, UsageError
from harness.experiments.compose import composed
from harness.running import device_lock, own_pace
from harness.running.prepare import Prepared, asks_for_rate, prepare

Speeds = Callable[[float], None]


@pytest.fixture(autouse=True)
def hydra_of_its_own() -> Iterator[None]:
    yield
    GlobalHydra.instance().clear()


@pytest.fixture
def decodes_in(monkeypatch: pytest.MonkeyPatch) -> Speeds:
    def step(decode_s: float) -> None:
        monkeypatch.setattr(own_pace, "measured", lambda *given: {"decode_s": decode_s})

    return step


def demo(runs: Path, *words: str) -> Prepared:
    asked = ["+experiment=demo", f"runs_dir={runs}", "tracking=none", *words]
    return prepare(composed(asked).configured(()))


def rate(parts: Prepared) -> float:
    made: float = parts.config["workload"]["scale"]["to_rate_per_s"]
    return made


def test_a_machine_twice_as_fast_gets_twice_the_load(
    tmp_path: Path, decodes_in: Speeds, capsys: pytest.CaptureFixture[str]
) -> None:
    decodes_in(0.002)
    fast = demo(tmp_path / "fast")
    decodes_in(0.004)
    slow = demo(tmp_path / "slow")
    assert rate(fast) == pytest.approx(2 * rate(slow), rel=0.05)
    assert slow.schedule.duration_s == pytest.approx(2 * fast.schedule.duration_s, rel=0.05)
    said = f"{rate(fast):g} requests/s: 0.2 of the 2,000 tokens/s"
    assert said in capsys.readouterr().err
    assert any(said in step for step in fast.schedule.provenance.steps)


def test_a_machine_is_measured_once(tmp_path: Path, decodes_in: Speeds) -> None:
    decodes_in(0.002)
    first = demo(tmp_path)
    decodes_in(0.004)
    assert demo(tmp_path).identity() == first.identity()
    kept = json.loads((tmp_path / own_pace.FILE).read_text())
    (tmp_path / own_pace.FILE).write_text(json.dumps(kept | {"machine": "another"}))
    assert rate(demo(tmp_path)) < rate(first)


def test_a_rate_that_is_given_is_kept(tmp_path: Path, decodes_in: Speeds) -> None:
    given = demo(tmp_path, "workload.scale.to_rate_per_s=2.5")
    assert rate(given) == 2.5
    assert not tmp_path.joinpath(own_pace.FILE).exists()


@pytest.mark.parametrize(
    ("word", "said"),
    [("load_share=0", "load_share=0 must be above 0"), ("engine=sim", "measures engine=torch")],
)
def test_a_share_that_says_nothing_is_refused(word: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        demo(tmp_path, word)


def test_a_workload_without_a_rate_follows_no_machine() -> None:
    with pytest.raises(UsageError, match=r"load_share=0\.2 sets .*, which .*Joined has not: leave"):
        asks_for_rate({"_target_": "workloads.joined.Joined", "name": "joined"}, 0.2)


def test_another_model_or_way_to_compute_is_measured_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the device is held, so that no live run is beside it."""
    asked: list[tuple[str, ...]] = []

    def measured(module: str, *words: str) -> dict[str, float]:
        with (tmp_path / "cpu").open("r+") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        asked.append(words)
        return {"decode_s": 0.004}

    monkeypatch.setattr(own_pace, "measured", measured)
    monkeypatch.setenv(device_lock.VARIABLE, str(tmp_path))
    spec = zoo.model("tiny-llama")
    engine = {
        "_target_": "harness.engine.engine.TorchEngine", "device": "cpu", "num_threads": None,
        "attention": "auto",
    }  # fmt: skip
    for model, how in 2 * [
        (spec, engine),
        (replace(spec, num_layers=spec.num_layers + 1), engine),
        (spec, engine | {"num_threads": 2}),
        (spec, engine | {"attention": "torch"}),
    ]:
        assert own_pace.decoded_per_s(how, model, tmp_path, print) == 1000
    assert [words[1:] for words in asked] == [
        ("cpu", "1", "auto"), ("cpu", "1", "auto"), ("cpu", "2", "auto"), ("cpu", "1", "torch"),
    ]  # fmt: skip


def test_a_measurement_that_takes_too_long_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_pace, "TIMEOUT_S", 0.0)
    with pytest.raises(RunError, match="speed cannot be measured within 0 s: give workload"):
        own_pace.measured("http.server")


@pytest.mark.live
@pytest.mark.parametrize("tp", [1, 2])
def test_this_machine_has_a_speed(tp: int) -> None:
    spec = json.dumps(asdict(replace(zoo.model("tiny-llama"), tp=tp)))
    found: dict[str, Any] = own_pace.measured(
        "harness.engine.machine_speed", spec, "cpu", "1", "torch"
    )
    assert found["decode_s"] > 0
