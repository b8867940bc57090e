"""How long an iteration takes under a given engine generation: the device's kernels, and what the
engine adds to them.

A batch of decodes alone is padded to the next captured CUDA graph and launched at once. With
prompts, as many tokens as the largest graph replay a graph for each piece between attentions; more
are launched kernel by kernel, which takes at least `launch_layer_s` a layer. To either an engine
adds what its CPU does while the device waits: scheduling, preparing inputs, handing out tokens.
What it does meanwhile is in nothing here. `harness.cost.model` has the eager engine of 2024, whose
measurements hold device and engine together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from harness.cost.hardware import Hardware, check_constants
from harness.cost.law import WHOLE, Part, scaled
from harness.cost.model import CostModel
from harness.cost.silicon import work
from harness.errors import UsageError
from harness.model_spec import ModelSpec


@dataclass(kw_only=True, slots=True)
class EngineCosts:
    """What an engine adds to its device's kernels."""

    step_s: float  # each iteration
    request_s: float  # each running request in an iteration
    chunk_s: float  # each prompt in an iteration
    mixed_s: float  # an iteration with prompts, besides
    launch_layer_s: float  # launching one layer's kernels without a graph
    all_reduce_factor: float  # an all-reduce's time over `harness.cost.collectives`'s
    graph_tokens: list[int]  # batches that graphs were captured for, ascending
    path_s: float  # from client to engine and back; it delays tokens alone

    def __post_init__(self) -> None:
        check_constants(asdict(self))
        if sorted(set(self.graph_tokens)) != self.graph_tokens:
            raise ValueError(f"graph_tokens={self.graph_tokens} must ascend")


class ServedCost(CostModel):
    """Step times in seconds of `model` on `hardware` under an engine that adds `engine`.

    The product with the vocabulary goes with the constants of `part`.
    """

    def __init__(
        self, model: ModelSpec, hardware: Hardware, engine: EngineCosts, part: Part = WHOLE
    ) -> None:
        silicon, constants = hardware.silicon, part.constants
        if silicon is None:
            raise UsageError(
                f"hardware={hardware.name} has no silicon, which was not measured of "
                f"{hardware.device}: only engine.profile=eager_2024 serves there"
            )
        self.source = silicon.basis
        self.turnaround_s, self.path_s = 0.0, engine.path_s
        whole = work(model, hardware, part.num_layers).on(silicon, engine.all_reduce_factor)
        self.kernels = whole.on_a_share(part)
        if constants < 1:
            engine = scaled(engine, constants, ("step_s", "request_s", "chunk_s", "mixed_s"))
            head = ("head_read_s", "head_token_s", "sampled_s")
            self.kernels = scaled(self.kernels, constants, head)
        self._engine, self._graphs = engine, engine.graph_tokens
        layers = model.num_layers if part.num_layers is None else part.num_layers
        self._launch_s = layers * engine.launch_layer_s
        self._decodes_s: dict[int, float] = {}  # without context, by their number
        self._iterations_s: dict[tuple[int, int], float] = {}  # by tokens and sequences
        self._attend_s = float(self.kernels.attend_s)
        self._context_s = float(self.kernels.context_s)
        self._mixed_context_s = float(self.kernels.mixed_context_s)

    def decode_step(self, num_requests: int, context_tokens: int) -> tuple[float, float]:
        step_s = self._decodes_s.get(num_requests)
        if step_s is None:
            step_s = self._iteration_s(num_requests, num_requests)
            self._decodes_s[num_requests] = step_s
        return step_s + self._context_s * context_tokens, self._context_s * num_requests

    def mixed_step(
        self, chunks: Iterable[tuple[int, int]], num_decodes: int, context_tokens: int
    ) -> float:
        tokens, pairs, num_chunks, fewest = num_decodes, 0.0, 0, self.kernels.fewest_queries
        for before, n in chunks:
            num_chunks += 1
            tokens += n
            pairs += max(n, fewest) * before + n * (n + 1) / 2
        step_s = self._iteration_s(tokens, num_decodes + num_chunks)
        step_s += self._attend_s * pairs + self._mixed_context_s * context_tokens
        return step_s + self._engine.mixed_s + self._engine.chunk_s * num_chunks

    def attention_s(self, chunks: Iterable[tuple[int, int]], context_tokens: int) -> float:
        pairs, context_s = 0.0, self._context_s
        for before, n in chunks:
            pairs += max(n, self.kernels.fewest_queries) * before + n * (n + 1) / 2
            context_s = self._mixed_context_s
        return self._attend_s * pairs + context_s * context_tokens

    def _iteration_s(self, tokens: int, sequences: int) -> float:
        """All that depends on no context. As long as the launches of what no graph replays."""
        place = bisect_left(self._graphs, tokens)
        padded = self._graphs[place] if place < len(self._graphs) else tokens
        found = self._iterations_s.get((padded, sequences))
        if found is None:
            found = float(self.kernels.iteration_s(float(padded), float(sequences)))
            if place == len(self._graphs):
                found = max(found, self._launch_s)
            found += self._engine.step_s + self._engine.request_s * sequences
            self._iterations_s[padded, sequences] = found
        return found


def cost_model(
    model: ModelSpec,
    hardware: Hardware,
    engine: EngineCosts | None,
    part: Part = WHOLE,
    *,
    launch: float = 1.0,
) -> CostModel:
    """engine: None for the eager engine that `hardware.calibration` was measured with."""
    if engine is None:
        return CostModel(model, hardware, part, launch=launch)
    return ServedCost(model, hardware, engine, part)
