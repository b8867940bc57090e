"""What a model is to the harness: the dimensions from which bytes and step times follow, and the
tensors that they make: in memory, in files and in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

from harness.configuration.checks import at_least, one_of, positive, require
from harness.model_family import FAMILIES, Parts, family_of

Shapes = dict[str, tuple[int, ...]]

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
MAX_POSITION = 2**31 - 1  # engines count positions in 32 bits
MAX_NAME_BYTES = 200  # file systems allow 255
POSITION_OFFSET = 2  # a table of learned positions has position 0 in this row (OPT)
COUNTS = (
    "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size",
    "vocab_size", "tp",
)  # fmt: skip


def check_name(name: str) -> None:
    """Raises UsageError for a name that cannot be a folder below another's."""
    fits = 1 <= len(name.encode(errors="replace")) <= MAX_NAME_BYTES and name.isprintable()
    require(fits, f"name={name} must be printable and of 1 to {MAX_NAME_BYTES} bytes")
    inside = not name.startswith("/") and all(part.strip(".") for part in name.split("/"))
    require(inside, f"name={name} must not leave the folder that it names: no .. and no first /")


@dataclass(kw_only=True, slots=True, frozen=True)
class ModelSpec:
    """Dimensions of a decoder, as in its Hugging Face config.json.

    `path` is a directory with config.json and safetensors; None means random weights drawn
    from `seed`.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    mlp_matrices: int  # of each MLP; 3: gate, up and down (SwiGLU); 2: up and down (OPT)
    vocab_size: int
    max_position: int
    rope_theta: float
    rms_norm_eps: float
    qkv_bias: bool
    tie_embeddings: bool
    dtype: str  # float32, float16 or bfloat16
    tp: int  # GPUs that one instance spans
    path: str | None
    seed: int
    num_kv_layers: int | None = None  # that attend to the text and hold its KV; None: all
    family: str | None = None  # of `FAMILIES`; None: Llama, Mistral and Qwen2 (with qkv_bias)
    num_experts: int | None = None  # MLPs of a layer, of intermediate_size each; None: one
    num_experts_per_token: int | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        at_least(self, 1, "", *COUNTS)
        positive(self, "", "rope_theta", "rms_norm_eps")
        require(
            1 <= self.kv_layers <= self.num_layers,
            f"num_kv_layers={self.num_kv_layers} must be 1 to num_layers={self.num_layers}",
        )
        position = f"max_position={self.max_position}"
        require(self.max_position >= 2, f"{position} has no room for prompt and output")
        require(self.max_position <= MAX_POSITION, f"{position} must be at most {MAX_POSITION}")
        require(
            self.num_heads % self.num_kv_heads == 0,
            f"num_heads={self.num_heads} is no multiple of num_kv_heads={self.num_kv_heads}",
        )
        valid = ", ".join(str(tp) for tp in range(1, 17) if self.num_heads % tp == 0)
        require(
            self.num_heads % self.tp == 0,
            f"tp={self.tp} does not divide the {self.num_heads} heads; valid up to 16: {valid}",
        )
        one_of(self.dtype, DTYPE_BYTES, "dtype")
        require(self.mlp_matrices in (2, 3), f"mlp_matrices={self.mlp_matrices} must be 2 or 3")
        if self.family is not None:
            one_of(self.family, FAMILIES, "family")
        for field, value in family_of(self.family).spec.items():
            told = f"{field}={getattr(self, field)} must be {value} with family={self.family}"
            require(getattr(self, field) == value, told)
        self._check_experts()

    def __hash__(self) -> int:
        return hash((self.name, self.tp, self.seed))  # look-ups of models are frequent: not of all

    def _check_experts(self) -> None:
        total, used = self.num_experts, self.num_experts_per_token
        told = f"num_experts={total} and num_experts_per_token={used}"
        if family_of(self.family).mlp != "experts":
            families = ", ".join(name for name, one in FAMILIES.items() if one.mlp == "experts")
            require(total is None and used is None, f"{told} are of family={families} only")
            return
        valid = total is not None and used is not None and 1 <= used <= total
        require(valid, f"{told} must be numbers, the second one at most the first one")

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def kv_layers(self) -> int:
        """How many layers attend to the text; others (cross-attention) hold no KV of it."""
        return self.num_layers if self.num_kv_layers is None else self.num_kv_layers

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.kv_layers * self.num_kv_heads * self.head_dim * self.dtype_bytes

    @property
    def held_kv_bytes_per_token(self) -> int:
        """The KV bytes per token of all tp devices together. Heads are whole: more devices than
        heads hold them twice."""
        heads = -(-self.num_kv_heads // self.tp) * self.tp
        return 2 * self.kv_layers * heads * self.head_dim * self.dtype_bytes

    @property
    def layer_params(self) -> int:
        """Weights of one decoder layer: attention, norms and MLP, or all experts and their router.
        The biases of norms and products are those of the family's checkpoints."""
        return _params(self)[0]

    @property
    def token_layer_params(self) -> int:
        """The weights that one token is multiplied by: of experts, those that it is sent to."""
        idle = (self.num_experts or 0) - (self.num_experts_per_token or 0)
        return self.layer_params - idle * 3 * self.hidden_size * self.intermediate_size

    def end_params(self, *, first: bool, last: bool) -> int:
        """Weights before the first layer and behind the last one, of a device that has that layer.
        Where it has both, tied embeddings count once."""
        return num_params(end_shapes(self, first=first, last=last))

    @property
    def num_params(self) -> int:
        return _params(self)[1]

    def layer_range(self, layers: range) -> range:
        """Returns `layers`. Raises UsageError if it is empty or not of this model."""
        require(
            0 <= layers.start < layers.stop <= self.num_layers and layers.step == 1,
            f"layers [{layers.start}, {layers.stop}) are out of range: model {self.name} has "
            f"layers 0 to {self.num_layers - 1}",
        )
        return layers

    @property
    def activation_bytes_per_token(self) -> int:
        """What one token sends from a pipeline stage to the next."""
        return self.hidden_size * self.dtype_bytes

    @property
    def layer_bytes(self) -> int:
        return self.layer_params * self.dtype_bytes

    @property
    def weight_bytes(self) -> int:
        return self.num_params * self.dtype_bytes


def layer_parts(spec: ModelSpec) -> Parts:
    """Our names of a layer's tensors, and Hugging Face's of their parts below the layer's own."""
    experts = range(spec.num_experts or 1)
    found = {
        name: tuple(part.format(expert) for expert in experts for part in parts)
        if "{}" in parts[0]
        else parts
        for name, parts in family_of(spec.family).layer.items()
    }
    if not spec.qkv_bias:
        found.pop("qkv_bias", None)
    if spec.mlp_matrices == 2 and "gate_up" in found:
        found["gate_up"] = found["gate_up"][1:]
    return found


def end_parts(spec: ModelSpec, *, first: bool = True, last: bool = True) -> Parts:
    """The same of what stands before the first layer and behind the last one, where a device has
    that layer. Tied embeddings are there once where both are."""
    family = family_of(spec.family)
    found = {**(family.first if first else {}), **(family.last if last else {})}
    if first and last and spec.tie_embeddings:
        del found["lm_head"]
    return found


def shapes(spec: ModelSpec, named: Parts) -> Shapes:
    """Shapes of our tensors; their parts lie one behind the other in the first dimension."""
    found = {}
    for name, parts in named.items():
        each = [part_shape(spec, part) for part in parts]
        found[name] = (sum(shape[0] for shape in each), *each[0][1:])
    return found


def part_shape(spec: ModelSpec, part: str) -> tuple[int, ...]:
    """The shape of a Hugging Face tensor, from the end of its name."""
    heads, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, wide, table = spec.hidden_size, spec.intermediate_size, spec.vocab_size
    known: Shapes = {
        "q_proj.weight": (heads, hidden), "q_proj.bias": (heads,),
        "k_proj.weight": (kv, hidden), "k_proj.bias": (kv,),
        "v_proj.weight": (kv, hidden), "v_proj.bias": (kv,),
        "q_norm.weight": (spec.head_dim,), "k_norm.weight": (spec.head_dim,),
        "o_proj.weight": (hidden, heads), "out_proj.weight": (hidden, heads),
        "gate.weight": (spec.num_experts or 0, hidden), "fc1.bias": (wide,),
        "gate_proj.weight": (wide, hidden), "up_proj.weight": (wide, hidden),
        "w1.weight": (wide, hidden), "w3.weight": (wide, hidden), "fc1.weight": (wide, hidden),
        "down_proj.weight": (hidden, wide), "w2.weight": (hidden, wide),
        "fc2.weight": (hidden, wide),
        "embed_tokens.weight": (table, hidden), "lm_head.weight": (table, hidden),
        "embed_positions.weight": (spec.max_position + POSITION_OFFSET, hidden),
    }  # fmt: skip
    return known.get(".".join(part.split(".")[-2:]), (hidden,))


@cache
def layer_shapes(spec: ModelSpec) -> Shapes:
    return shapes(spec, layer_parts(spec))


@cache
def end_shapes(spec: ModelSpec, *, first: bool = True, last: bool = True) -> Shapes:
    return shapes(spec, end_parts(spec, first=first, last=last))


def num_params(of: Shapes) -> int:
    return sum(map(prod, of.values()))


@cache
def _params(spec: ModelSpec) -> tuple[int, int]:
    """Weights of one layer and of the model. Simulations ask for them in each event."""
    layer = num_params(layer_shapes(spec))
    return layer, spec.num_layers * layer + spec.end_params(first=True, last=True)
