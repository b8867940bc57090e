"""What a parity run takes over from the real one, and when it calibrates first."""

from __future__ import annotations

import pytest

from harness.engine_api import kv_blocks_by_model
from harness.errors import RunError
from harness.fidelity.__main__ import calibrates, parser
from harness.fidelity.points import same_memory
from tests.running import composed


@pytest.mark.parametrize("engine", ["torch", "vllm", "sim"])
def test_the_simulation_gets_the_kv_memory_of_any_engines_manifest(engine: str) -> None:
    settled = {"block_tokens": 32, "num_kv_blocks": kv_blocks_by_model([("tiny-llama", 512)])}
    manifest = {"world": engine, "engine": settled}
    config = composed("+system=vllm", "engine=sim", *same_memory(manifest["engine"]))
    assert (config.engine.num_kv_blocks, config.engine.block_tokens) == (512, 32)


def test_instances_of_a_model_count_with_the_fewest_blocks() -> None:
    seen = [("a", 9), ("b", 3), ("a", 7), ("a", 8)]
    assert kv_blocks_by_model(seen) == {"a": 7, "b": 3}


def test_two_models_have_no_common_memory() -> None:
    with pytest.raises(RunError, match="serves one model, not 2: a, b"):
        same_memory({"block_tokens": 32, "num_kv_blocks": {"a": 9, "b": 9}})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], True),
        (["--engine", "torch", "--no-calibrate"], False),
        (["--engine", "vllm"], False),
        (["--engine", "vllm", "--calibrate"], True),
    ],
)
def test_the_local_engine_is_calibrated_first_unless_told_otherwise(
    words: list[str], expected: bool
) -> None:
    assert calibrates(parser().parse_args(words)) is expected
