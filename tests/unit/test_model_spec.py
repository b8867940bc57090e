"""A model's dimensions: what each family needs, and what its parts weigh."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness import model_spec
from harness.errors import UsageError
from harness.model_spec import ModelSpec, Shapes
from tests.elastic import private, spec


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("tiny-llama", {"mlp_matrices": 4}, "mlp_matrices=4 must be 2 or 3"),
        ("tiny-llama", {"family": "gpt"}, "family=gpt is unknown; valid: qwen3, qwen3_moe, mixt"),
        ("tiny-llama", {"num_experts": 4}, "num_experts=4 and num_experts_per_token=None are of"),
        ("tiny-mixtral", {"num_experts": None}, "num_experts=None and .* must be numbers"),
        ("tiny-mixtral", {"num_experts_per_token": 5}, "the second one at most the first one"),
        ("tiny-mixtral", {"qkv_bias": True}, "qkv_bias=True must be False with family=mixtral"),
        ("tiny-opt", {"mlp_matrices": 3}, "mlp_matrices=3 must be 2 with family=opt"),
    ],
)
def test_what_a_family_is_not_is_refused(model: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        replace(spec(model), **changes)


def test_all_experts_weigh_and_a_token_is_multiplied_by_some() -> None:
    """Mixtral-8x7B: the parameters of its checkpoint, of which each token uses 12.9 billion."""
    experts = {"family": "mixtral", "num_experts": 8, "num_experts_per_token": 2}
    mixtral = replace(spec("mistral-7b"), **experts)
    assert mixtral.num_params == 46_702_792_704
    idle = mixtral.num_layers * (mixtral.layer_params - mixtral.token_layer_params)
    assert mixtral.num_params - idle == pytest.approx(12.9e9, rel=0.002)


def test_weights_are_counted_once_for_equal_specs(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, counted = model_spec.layer_shapes, list[ModelSpec]()

    def counting(spec: ModelSpec) -> Shapes:
        counted.append(spec)
        return shapes(spec)

    monkeypatch.setattr(model_spec, "layer_shapes", counting)
    one, other = (replace(spec("tiny-llama"), seed=12345) for _ in range(2))
    wider = replace(one, intermediate_size=2 * one.intermediate_size)
    assert one.weight_bytes == other.weight_bytes < wider.weight_bytes
    assert one.layer_bytes == other.layer_params * one.dtype_bytes < wider.layer_bytes
    assert counted == [one, wider]


def test_experts_whose_times_nobody_measured_are_not_simulated() -> None:
    said = "model=tiny-mixtral has 4 experts; engine=sim knows such a model's times only where they"
    with pytest.raises(UsageError, match=said), private("sim", 1, model="tiny-mixtral"):
        pass
