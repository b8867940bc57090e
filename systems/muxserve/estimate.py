"""How many requests per second a model will serve on a mesh: the placement's estimate.

The average batch is decoded for the average output and prefilled for the average prompt, so that
throughput = batch / (decode step x output + prefill) (MuxServe §3.3, eq. 3). Models on a mesh wait
for each other's prefills. Knows nothing of memory but how many requests' KV there is room for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.model_spec import ModelSpec
from harness.placement import Profile


@dataclass(slots=True, frozen=True)
class Llm:
    """One model to place, and what is known of it."""

    name: str
    spec: ModelSpec
    rate_per_s: float

    @property
    def scale(self) -> int:
        """1 for 7B-class models, 2 for 13B, 4 for 30B, 8 for 65B: the nearest of these sizes."""
        billions = self.spec.num_params / 1e9
        return 1 << sum(billions > edge for edge in (10, 20, 45))

    @property
    def computation(self) -> float:
        return self.rate_per_s * self.scale


@dataclass(kw_only=True, slots=True)
class EstimateConfig:
    output_tokens: int  # of an average request
    prompt_tokens: int
    max_num_seqs: int
    slack_share: float  # of its throughput, by which a model may miss its rate
    max_slack_per_s: float
    decode_slowdown: dict[float, float]  # share of the multiprocessors -> decode step time, 1: all


@dataclass(slots=True, frozen=True)
class Candidate:
    """What a model gets for its decoding, and what it then serves by itself."""

    share: float  # of the multiprocessors
    batch: int
    throughput_per_s: float


class ThroughputEstimator:
    def __init__(self, profile: Profile, config: EstimateConfig) -> None:
        self._profile, self._config = profile, config

    @property
    def request_tokens(self) -> int:
        """Of an average request, at its end."""
        return self._config.prompt_tokens + self._config.output_tokens

    def candidate(self, llm: Llm, max_batch: int) -> Candidate:
        """The least share of the multiprocessors that serves the model's rate, with the least
        batch that does; where none does, the one that serves the most."""
        best = Candidate(0.0, 1, 0.0)
        for share in sorted(self._config.decode_slowdown):
            for batch in _batches(max_batch):
                throughput = self.throughput_per_s(llm, share, batch, self.prefill_s(llm, batch))
                if throughput > best.throughput_per_s:
                    best = Candidate(share, batch, throughput)
                if self.suffices(throughput, llm):
                    return Candidate(share, batch, throughput)
        return best

    def served_per_s(self, shared: Sequence[tuple[Llm, Candidate, int]]) -> float:
        """Of all models on a mesh together, each with its largest batch. A model that falls short
        of its rate is given a larger batch while it has room for one."""
        batches = [candidate.batch for _, candidate, _ in shared]
        while True:
            prefill_s = sum(
                self.prefill_s(llm, n) for (llm, _, _), n in zip(shared, batches, strict=True)
            )
            served, short = 0.0, []
            for i, (llm, candidate, max_batch) in enumerate(shared):
                reached = self.throughput_per_s(llm, candidate.share, batches[i], prefill_s)
                served += min(reached, llm.rate_per_s)
                if not self.suffices(reached, llm) and batches[i] < max_batch:
                    short.append(i)
            if not short:
                return served
            for i in short:
                batches[i] = min(2 * batches[i], shared[i][2])

    def suffices(self, throughput_per_s: float, llm: Llm) -> bool:
        config = self._config
        slack = min(config.max_slack_per_s, config.slack_share * throughput_per_s)
        return throughput_per_s + slack > llm.rate_per_s

    def throughput_per_s(self, llm: Llm, share: float, batch: int, prefill_s: float) -> float:
        config = self._config
        context = batch * (config.prompt_tokens + config.output_tokens // 2)
        step_s = self._profile.decode_step_s(llm.spec, batch, context)
        step_s *= config.decode_slowdown[share]
        return batch / (step_s * config.output_tokens + prefill_s)

    def prefill_s(self, llm: Llm, batch: int) -> float:
        return batch * self._profile.prefill_s(llm.spec, self._config.prompt_tokens)


def _batches(max_batch: int) -> list[int]:
    """1, 2, 4, …, max_batch."""
    powers = [1 << k for k in range(max_batch.bit_length())]
    return [*powers, max_batch] if powers[-1] < max_batch else powers
