"""The families of decoders, as data: what their Hugging Face checkpoints call a layer's tensors and
the dimensions in config.json, and which norms, positions and MLPs they have.

A tensor of ours is one or more of Hugging Face's, one behind the other: projections that share an
input, a LayerNorm's weight and bias, the same matrix of all experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

Parts = dict[str, tuple[str, ...]]  # our name -> Hugging Face's; "{}" is an expert's number

_QKV = ("q_proj", "k_proj", "v_proj")
_ATTENTION: Parts = {
    "input_norm": ("input_layernorm.weight",),
    "qkv": tuple(f"self_attn.{name}.weight" for name in _QKV),
    "qkv_bias": tuple(f"self_attn.{name}.bias" for name in _QKV),
    "o": ("self_attn.o_proj.weight",),
    "post_norm": ("post_attention_layernorm.weight",),
}
_QK_NORM: Parts = {"qk_norm": ("self_attn.q_norm.weight", "self_attn.k_norm.weight")}


def _gated(path: str, gate: str, up: str, down: str) -> Parts:
    both = (f"{path}.{gate}.weight", f"{path}.{up}.weight")
    return {"gate_up": both, "down": (f"{path}.{down}.weight",)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """Names and forms; the defaults are Llama's, but for its `layer`."""

    architecture: str  # in config.json, before "ForCausalLM"
    prefix: str = "model.layers"  # of a layer's tensors, before its number
    layer: Parts
    first: Parts  # what goes with the first layer, and with the last
    last: Parts
    norm: Literal["rms", "layer"] = "rms"
    positions: Literal["rotary", "learned"] = "rotary"
    mlp: Literal["gated", "relu", "experts"] = "gated"
    spec: dict[str, Any]  # fields of each `ModelSpec` of the family
    fields: dict[str, str]  # config.json's keys and the fields that must agree with them
    absent: dict[str, Any]  # what transformers takes where config.json does not say
    plain: dict[str, Any]  # keys that the engine computes with this value only


_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_MLP = _gated("mlp", *_PROJECTIONS)
LLAMA = Family(
    architecture="Llama",
    layer=_ATTENTION | _MLP,
    first={"embed": ("model.embed_tokens.weight",)},
    last={"norm": ("model.norm.weight",), "lm_head": ("lm_head.weight",)},
    spec={},
    fields={
        "num_hidden_layers": "num_layers", "hidden_size": "hidden_size",
        "num_attention_heads": "num_heads", "num_key_value_heads": "num_kv_heads",
        "head_dim": "head_dim", "intermediate_size": "intermediate_size",
        "vocab_size": "vocab_size", "rope_theta": "rope_theta", "rms_norm_eps": "rms_norm_eps",
        "tie_word_embeddings": "tie_embeddings",
    },
    absent={"rope_theta": 10000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False},
    plain={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
)  # fmt: skip
_QWEN3 = replace(
    LLAMA,
    architecture="Qwen3",
    layer=_ATTENTION | _QK_NORM | _MLP,
    spec={"mlp_matrices": 3, "qkv_bias": False},
    absent=LLAMA.absent | {"head_dim": 128},
)
_EXPERTS = {"num_experts_per_tok": "num_experts_per_token", "num_local_experts": "num_experts"}
# By `ModelSpec.family`, which is the model_type of such a model's config.json.
FAMILIES: dict[str, Family] = {
    "qwen3": _QWEN3,
    "qwen3_moe": replace(
        _QWEN3,
        architecture="Qwen3Moe",
        layer=_ATTENTION | _QK_NORM | {"router": ("mlp.gate.weight",)}
        | _gated("mlp.experts.{}", *_PROJECTIONS),
        mlp="experts",
        fields={key: field for key, field in LLAMA.fields.items() if key != "intermediate_size"}
        | {"num_experts": "num_experts", "moe_intermediate_size": "intermediate_size"} | _EXPERTS,
        absent=_QWEN3.absent | {"norm_topk_prob": False},
        plain={
            "hidden_act": "silu", "attention_bias": False, "norm_topk_prob": True,
            "decoder_sparse_step": 1, "mlp_only_layers": [],
        },
    ),
    "mixtral": replace(
        LLAMA,
        architecture="Mixtral",
        layer=_ATTENTION | {"router": ("block_sparse_moe.gate.weight",)}
        | _gated("block_sparse_moe.experts.{}", "w1", "w3", "w2"),
        mlp="experts",
        spec=_QWEN3.spec,
        fields=LLAMA.fields | _EXPERTS,
        absent={"rope_theta": 1e6, "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
        plain={"hidden_act": "silu"},
    ),
    # But OPT-350m, whose norms come behind attention and MLP and whose embeddings are narrower.
    "opt": Family(
        architecture="OPT",
        prefix="model.decoder.layers",
        layer={
            "input_norm": ("self_attn_layer_norm.weight", "self_attn_layer_norm.bias"),
            "qkv": _ATTENTION["qkv"], "qkv_bias": _ATTENTION["qkv_bias"],
            "o": ("self_attn.out_proj.weight",), "o_bias": ("self_attn.out_proj.bias",),
            "post_norm": ("final_layer_norm.weight", "final_layer_norm.bias"),
            "up": ("fc1.weight",), "up_bias": ("fc1.bias",),
            "down": ("fc2.weight",), "down_bias": ("fc2.bias",),
        },
        first={
            "embed": ("model.decoder.embed_tokens.weight",),
            "positions": ("model.decoder.embed_positions.weight",),
        },
        last={
            "norm": tuple(f"model.decoder.final_layer_norm.{name}" for name in ("weight", "bias")),
            "lm_head": ("lm_head.weight",),
        },
        norm="layer", positions="learned", mlp="relu",
        spec={"mlp_matrices": 2, "qkv_bias": True, "rms_norm_eps": 1e-5},
        fields={
            "num_hidden_layers": "num_layers", "word_embed_proj_dim": "hidden_size",
            "hidden_size": "hidden_size", "num_attention_heads": "num_heads",
            "ffn_dim": "intermediate_size", "vocab_size": "vocab_size",
            "tie_word_embeddings": "tie_embeddings",
        },
        absent={"rope_theta": 10000.0, "tie_word_embeddings": True},
        plain={
            "activation_function": "relu", "do_layer_norm_before": True, "enable_bias": True,
            "layer_norm_elementwise_affine": True, "_remove_final_layer_norm": False,
        },
    ),
}  # fmt: skip
# Other model types that are served; what tells them apart is `ModelSpec.qkv_bias`.
LLAMA_TYPES = ("llama", "mistral", "qwen2")


def family_of(name: str | None) -> Family:
    """The family of `ModelSpec.family`."""
    return LLAMA if name is None else FAMILIES[name]
