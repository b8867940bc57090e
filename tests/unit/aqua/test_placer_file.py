"""The placer's file: profiles in, pairs out, as a run reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.configuration.config import settings as config_of
from harness.configuration.options import plain
from harness.errors import UsageError
from systems.aqua.placer import __main__ as placer
from systems.aqua.placer.assignment import ModelType
from systems.aqua.placer.pairs import Left, placed
from systems.aqua.profiler.profile import MemoryProfile, write_profile
from systems.aqua.system import Aqua
from tests.fuzz.test_overrides import answer
from tests.running import ROOT, composed

GB = 10**9


def profile(folder: Path, model: str, balance: int, shards: int = 1, **more: Any) -> Path:
    path = folder / f"{model}.json"
    role = "consumer" if balance < 0 else "producer"
    found = MemoryProfile(
        model=model, hardware="h", shards=shards, role=role, memory_balance=balance,
        free_bytes=max(0, balance), **more,
    )  # fmt: skip
    write_profile(path, found)
    return path


def run_placer(folder: Path, *words: str, servers: int = 2, gpus: int = 4) -> dict[str, Any]:
    out = folder / "pairs.json"
    size = ("--servers", str(servers), "--gpus-per-server", str(gpus))
    assert placer.main([*words, *size, "--out", str(out)]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_from_profiles_to_the_pairs_of_a_run(tmp_path: Path) -> None:
    """Two consumers of one model and two lenders of another, on two servers."""
    consumer = profile(tmp_path, "tiny-llama", -GB)
    lender = profile(tmp_path, "tiny-llama-wide", GB)
    found = run_placer(tmp_path, f"{consumer}=2", f"{lender}=2", gpus=2)
    assert found["pairs"] == [
        {"consumer": "tiny-llama", "lender": "tiny-llama-wide", "node": node} for node in (0, 1)
    ]
    assert not found["left"]
    word = f"system.pairs=${{in_file:{tmp_path / 'pairs.json'},pairs}}"
    assert plain(composed("+experiment=aqua_live_elastic", word).system)["pairs"] == found["pairs"]


def test_consumers_that_share_a_lender(tmp_path: Path) -> None:
    """Fig. 11's: four on the four devices of one lender."""
    opt = profile(tmp_path, "opt-30b", -11 * GB)
    llama = ROOT / "conf/system/aqua/profiles/eager_2024/llama3.1-70b-tp4-h100x8-sharegpt.json"
    found = run_placer(tmp_path, f"{opt}=4", str(llama), servers=1, gpus=8)
    assert found["pairs"] == [{"consumers": 4 * ["opt-30b"], "lender": "llama3.1-70b", "node": 0}]


def test_who_is_left_over_and_why(tmp_path: Path) -> None:
    """Node 0: a consumer of two shards, whose producers are a model each. Node 1: a consumer of an
    image model, and one for which no producer is left. Node 2: a producer of two devices. At last,
    a producer of two devices of which one is free."""
    types = [
        ModelType("wide", -3 * GB, 2), ModelType("small", GB, 1), ModelType("poor", -GB, 1),
        ModelType("pictures", 5 * GB, 1), ModelType("idle", 0, 1), ModelType("pair", 2 * GB, 2),
    ]  # fmt: skip
    counts = [[1, 2, 0, 0, 0, 0], [0, 0, 2, 1, 1, 0], [1, 1, 0, 0, 0, 1]]
    found = placed(counts, types, {"pictures"})
    small = {"model": "small", "free_bytes": GB}
    pictures = {"model": "pictures", "free_bytes": 5 * GB, "serves": False}
    assert found.pairs == [
        {"consumer": "wide", "lenders": [small, small], "node": 0},
        {"consumer": "poor", "lenders": [pictures], "node": 1},
        {"consumer": "wide", "lender": "pair", "node": 2},
    ]
    assert found.left == [
        Left("poor", 1, "not all of its shards have a producer"),
        Left("idle", 1, "nobody borrows of it"),
        Left("small", 2, "nobody borrows of it"),
    ]
    mixed = placed(
        [[1, 1, 1]],
        [ModelType("wide", -GB, 2), ModelType("small", GB, 1), ModelType("pair", 2 * GB, 2)],
        (),
    )
    assert mixed.left[0] == Left(
        "wide", 0, "a producer of its shards has other devices or other consumers"
    )


def test_the_defaults_are_the_constants() -> None:
    constants = yaml.safe_load((ROOT / "conf/system/aqua/constants.yaml").read_text())["placer"]
    assert constants["time_limit_s"] == placer.TIME_LIMIT_S
    assert constants["gpu_memory_bytes"] == placer.GPU_MEMORY_BYTES


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["{folder}/none.json", "--servers", "1"], "none.json cannot be read"),
        (["{profile}=x", "--servers", "1"], "'x' models; valid: a whole number, at least 1"),
        (["{profile}=0", "--servers", "1"], "'0' models"),
        (["{profile}", "{profile}", "--servers", "1"], "has a profile already"),
        (["{profile}", "--servers", "0"], "num_servers=0 must be at least 1"),
        (["{profile}=9", "--servers", "1"], "9 shards; valid: at most 4"),
        (["{profile}", "--servers", "1", "--time-limit-s", "0"], "valid: above 0"),
        (["{profile}", "--servers", "1", "--out", "{folder}/no/x.json"], "cannot be written"),
    ],
)
def test_a_placement_that_cannot_be(
    words: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = profile(tmp_path, "m", -GB)
    given = [word.format(folder=tmp_path, profile=path) for word in words]
    out = [] if "--out" in given else ["--out", str(tmp_path / "out.json")]
    assert placer.main([*given, "--gpus-per-server", "4", *out]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out.json").exists()


BAD = {
    "no file": (None, "cannot be read"),
    "no JSON": ("{", "is damaged"),
    "another key": ('{"pair": []}', "has no pairs; keys: pair"),
    "no pair": ('{"pairs": ["opt-30b"]}', "system: pairs"),
    "unknown key": ('{"pairs": [{"consumer": "a", "borrower": "b"}]}', "unknown key"),
    "nobody": ('{"pairs": [{"lender": "b"}]}', "valid: either consumer: MODEL or consumers"),
    "no node": ('{"pairs": [{"consumer": "a", "node": -1}]}', "node=-1 of a pair"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_is_none_is_refused(case: str, tmp_path: Path) -> None:
    content, complaint = BAD[case]
    path = tmp_path / "pairs.json"
    if content is not None:
        path.write_text(content)
    word = f"system.pairs=${{in_file:{path},pairs}}"
    with pytest.raises(UsageError, match=complaint):
        config_of(
            plain(composed("+system=aqua", "+workload=burstgpt", word).system), Aqua, "system"
        )


def test_the_command_ends_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "pairs.json"
    path.write_text('{"pairs": [{"consumer": "tiny-llama", "node": 3}]}')
    words = ("+system=aqua", "+workload=burstgpt", "engine=sim", f"hydra.run.dir={tmp_path / 'r'}")
    code, said = answer([*words, f"system.pairs=${{in_file:{path},pairs}}"])
    assert code == 2
    assert "2 devices" in said
    assert said.count("\n") == 1
