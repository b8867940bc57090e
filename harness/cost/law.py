"""From a model's dimensions and a device's constants to the terms of an iteration.

Weights and KV are read at a share of the memory bandwidth, products run at a share of the FLOP/s,
the engine adds times of its own; tensor parallelism divides the work and adds two all-reduces a
layer. The shares and the engine's times are a `Calibration`: learned, not assumed.

Of a layer's experts, all are read in each iteration and each token is multiplied by its own. That
is too much reading for a few tokens, so engine=sim refuses such a model; live runs estimate by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from harness.cost.collectives import all_reduce_s
from harness.cost.hardware import Calibration, Hardware, StepCoefficients, pair_key
from harness.model_spec import ModelSpec

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Terms = TypeVar("Terms", bound="DataclassInstance")
PER_LAYER = ("launch_s", "weights_s", "token_s", "attend_s", "context_s", "wide_s")
BY_COMPUTE = ("token_s", "attend_s")
BY_MEMORY = ("weights_s", "context_s", "request_s", "wide_s")
# What part of a term's time is inversely proportional to the multiprocessors; see `Part`.
COMPUTE_BOUND = 0.67
MEMORY_BOUND = 0.18


@dataclass(frozen=True, slots=True)
class Part:
    """What an instance has of a model and of its devices.

    num_layers: of a pipeline stage. constants: the share of an iteration's own costs that is paid
    here, at a pipeline's stage. compute_share: of each device's multiprocessors (CUDA MPS), in
    (0, 1]. rivals: who read memory all the time and get as much of its bandwidth.
    """

    num_layers: int | None = None
    constants: float = 1.0
    compute_share: float = 1.0
    rivals: float = 0.0

    def slowdowns(self) -> tuple[float, float]:
        """How much longer compute-bound and memory-bound work takes.

        An assumption in the form of Amdahl's law: of compute-bound work COMPUTE_BOUND, of
        memory-bound work MEMORY_BOUND grows as 1/compute_share. The two parts are fitted, by least
        squares, to what MuxServe's authors measured of LLaMA-7B on an A100 (32 requests of 128
        tokens at 30 to 100 %); within 4 % in prefill and 6 % in decode. Of rivals there is no
        measurement: memory-bound work takes 1 + rivals times as long, unless its share slows it
        down more.
        """
        compute = 1 - COMPUTE_BOUND + COMPUTE_BOUND / self.compute_share
        memory = 1 - MEMORY_BOUND + MEMORY_BOUND / self.compute_share
        return compute, max(memory, 1 + self.rivals)


WHOLE = Part()


def coefficients(model: ModelSpec, hardware: Hardware) -> tuple[StepCoefficients, str]:
    """The terms for `model` over model.tp devices, and where they come from.

    "measured": fitted to this very pair. "device law": from dimensions, with what other models
    taught about this device. "datasheet": from dimensions, with what other devices taught.
    """
    calibration = hardware.calibration
    measured = calibration.measured.get(pair_key(model.name, model.tp))
    if measured is not None:
        return measured, "measured"
    return law(model, hardware, calibration), calibration.basis


def law(model: ModelSpec, hardware: Hardware, calibration: Calibration) -> StepCoefficients:
    tp, layers = model.tp, model.num_layers
    read_s = 1 / (hardware.memory_bandwidth_bytes_per_s * tp)  # one byte
    flop_s = 1 / (hardware.dense_flop_per_s * tp)
    linear_params = layers * model.layer_params
    read_bytes = (linear_params + model.vocab_size * model.hidden_size) * model.dtype_bytes
    latency_s, per_token_s = all_reduce_s(model.activation_bytes_per_token, tp, hardware)
    weights_s = read_bytes * read_s / calibration.memory_efficiency + 2 * layers * latency_s
    products_s = 2 * layers * model.token_layer_params * flop_s / calibration.compute_efficiency
    attend_flop = 4 * model.kv_layers * model.num_heads * model.head_dim  # one query and one key
    kv_read_s = model.held_kv_bytes_per_token * read_s / calibration.kv_efficiency
    context_s = kv_read_s + attend_flop * flop_s / calibration.decode_attention_efficiency
    launch_layer_s = calibration.launch_layer_s
    if tp > 1:
        launch_layer_s += calibration.launch_layer_tp_s
    return StepCoefficients(
        launch_s=layers * launch_layer_s,
        weights_s=weights_s,
        token_s=products_s + 2 * layers * per_token_s,
        attend_s=attend_flop * flop_s / calibration.attention_efficiency,
        context_s=context_s,
        prefill_s=calibration.prefill_s,
        decode_s=calibration.decode_s,
        chunk_s=calibration.chunk_s,
        request_s=calibration.request_s + calibration.request_context_tokens * context_s,
        wide_s=calibration.wide_share * weights_s,
    )


def scaled(terms: Terms, factor: float, names: Iterable[str]) -> Terms:
    """`terms` with `names` of them times `factor`."""
    return replace(terms, **{name: factor * getattr(terms, name) for name in names})


def stage(whole: StepCoefficients, share: float) -> StepCoefficients:
    """The terms of a pipeline stage with `share` of the layers: what is per layer shrinks."""
    return scaled(whole, share, PER_LAYER)


def on_a_share(whole: StepCoefficients, part: Part) -> StepCoefficients:
    """The terms by `part.slowdowns`; what the CPU does stays, except for its part of request_s,
    which was measured in one with memory reads and grows with them."""
    compute, memory = part.slowdowns()
    return scaled(scaled(whole, compute, BY_COMPUTE), memory, BY_MEMORY)
