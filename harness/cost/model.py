"""How long an iteration takes, for models that were measured and models that were not.

With T tokens through the layers, of which B are decodes reading S tokens of context, and prompts
that make A query–key pairs:

  t = constant + √(launch² + weights² + (T·token)²) + A·attend + S·context + P·chunk + B·request
      + wide, if B > 128

for P prompts, where the root is a maximum with its corner rounded. Aegaeon's A.2 (eq. 5–6) is
this without the floor and the terms per request, which measurements of its own engine need. A
decode step's time grows by B·context a step, so n steps have a closed form. The terms come from
`harness.cost.law`: fitted where the pair was measured, else predicted. What an `execute` takes
besides its iterations, however many, is `turnaround_s`. Knows no request but the counts of one.
"""

from __future__ import annotations

from collections.abc import Iterable

from mypy_extensions import mypyc_attr

from harness.cost.hardware import Hardware
from harness.cost.law import WHOLE, Part, coefficients, on_a_share, scaled, stage
from harness.cost.terms import contextless_s, mixed_s
from harness.model_spec import ModelSpec


@mypyc_attr(allow_interpreted_subclasses=True)
class CostModel:
    """Step times in seconds for `model` on `hardware`, its work split evenly over model.tp.

    launch: the share of the kernel launches that a decode step pays: 1 in eager mode, as the
    calibration measured it, 0 with replayed CUDA graphs.
    """

    def __init__(
        self, model: ModelSpec, hardware: Hardware, part: Part = WHOLE, *, launch: float = 1.0
    ) -> None:
        terms, self.source = coefficients(model, hardware)
        share = 1.0 if part.num_layers is None else part.num_layers / model.num_layers
        if part.constants < 1:
            own = ("prefill_s", "decode_s", "chunk_s", "request_s")
            terms = scaled(terms, part.constants, own)
        self.terms = on_a_share(stage(terms, share), part)
        self.turnaround_s = hardware.calibration.turnaround_s
        self.path_s = hardware.calibration.path_s
        self._launch = launch
        self._steps_s: dict[int, float] = {}  # of decodes without context, by their number

    def decode_step(self, num_requests: int, context_tokens: int) -> tuple[float, float]:
        """(time of the next step, growth of the time from one step to the next).

        `context_tokens` sums, over the batch, the tokens that the next step attends to.
        """
        terms = self.terms
        step_s = self._steps_s.get(num_requests)
        if step_s is None:
            step_s = contextless_s(terms, float(num_requests), self._launch)
            self._steps_s[num_requests] = step_s
        return step_s + terms.context_s * context_tokens, terms.context_s * num_requests

    def mixed_step(
        self, chunks: Iterable[tuple[int, int]], num_decodes: int, context_tokens: int
    ) -> float:
        """Time of one iteration with prefill chunks, each as (tokens computed before, tokens)."""
        tokens, pairs, read, num_chunks = num_decodes, 0.0, context_tokens, 0
        for before, n in chunks:
            num_chunks += 1
            tokens += n
            pairs += n * before + n * (n + 1) / 2
            read += before
        counts = float(tokens), pairs, float(num_chunks), float(num_decodes), float(read)
        return mixed_s(self.terms, *counts)

    def attention_s(self, chunks: Iterable[tuple[int, int]], context_tokens: int) -> float:
        """What `mixed_step` or, without chunks, `decode_step` has of attention to KV."""
        pairs, read = 0.0, context_tokens
        for before, n in chunks:
            pairs += n * before + n * (n + 1) / 2
            read += before
        return self.terms.attend_s * pairs + self.terms.context_s * read


def steps_time_s(steps: float, step_s: float, growth_s: float) -> float:
    """Time of `steps` decode steps, the first taking `step_s`, each next `growth_s` more."""
    return steps * step_s + growth_s * steps * (steps - 1) / 2


def steps_to_reach(elapsed_s: float, step_s: float, growth_s: float) -> int:
    """The least n ≥ 1 with steps_time_s(n) ≥ elapsed_s: the boundary where an interruption lands.

    The positive root of the quadratic, then moved by at most a step against rounding.
    """
    if elapsed_s <= step_s:
        return 1
    linear = step_s - growth_s / 2
    root = 2 * elapsed_s / (linear + (linear * linear + 2 * growth_s * elapsed_s) ** 0.5)
    n = max(1, int(root))
    while n > 1 and steps_time_s(n - 1, step_s, growth_s) >= elapsed_s:
        n -= 1
    while steps_time_s(n, step_s, growth_s) < elapsed_s:
        n += 1
    return n


def steps_done(elapsed_s: float, step_s: float, growth_s: float) -> int:
    """The most n ≥ 0 with steps_time_s(n) ≤ elapsed_s: the steps that are over."""
    if elapsed_s < step_s:
        return 0
    n = steps_to_reach(elapsed_s, step_s, growth_s)
    return n if steps_time_s(n, step_s, growth_s) <= elapsed_s else n - 1
