"""Estimates how many requests per second a model will serve on a mesh, for the placement.

All requests are average ones: throughput = batch / (decode step x output tokens + prefill)
(MuxServe §3.3, eq. 3). Models on a mesh wait for each other's prefills. Of memory, the estimate
knows only how many requests' KV fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.model_spec import ModelSpec
from harness.placement import Profile


@dataclass(slots=True, frozen=True)
class Llm:
    """A model to place, with its mean rate in requests/s."""

    name: str
    spec: ModelSpec
    rate_per_s: float

    @property
    def scale(self) -> int:
        """The model's scale: 1 for 7B-class models, 2 for 13B, 4 for 30B, 8 for 65B: the nearest of
        these sizes."""
        billions = self.spec.num_params / 1e9
        return 1 << sum(billions > edge for edge in (10, 20, 45))

    @property
    def computation(self) -> float:
        """The model's rate times its scale: models are placed in this order (Algorithm 1)."""
        return self.rate_per_s * self.scale


@dataclass(kw_only=True, slots=True)
class EstimateConfig:
    """What the estimate assumes of requests and of devices."""

    output_tokens: int  # tokens of an average request
    prompt_tokens: int  # tokens of an average request
    max_num_seqs: int  # requests of a batch at most
    # A model's throughput may be below its rate by this share of the throughput, but at most by
    # `max_slack_per_s` requests/s.
    slack_share: float
    max_slack_per_s: float
    # {share of the multiprocessors: decode step time over the time with all of them}
    decode_slowdown: dict[float, float]


@dataclass(slots=True, frozen=True)
class Candidate:
    """A share and a batch for a model's decoding, and its throughput if it is alone with them."""

    share: float  # share of the multiprocessors
    batch: int
    throughput_per_s: float


class ThroughputEstimator:
    """Estimates throughput by Eq. 3 with the step times of `profile`."""

    def __init__(self, profile: Profile, config: EstimateConfig) -> None:
        self._profile, self._config = profile, config

    @property
    def request_tokens(self) -> int:
        """Prompt and output tokens of an average request."""
        return self._config.prompt_tokens + self._config.output_tokens

    def candidate(self, llm: Llm, max_batch: int) -> Candidate:
        """The smallest share that serves the model's rate, with the smallest batch that does.

        If no share serves the rate: the share and batch with the most throughput. max_batch:
        requests whose KV fits.
        """
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
        """Requests/s of all models on a mesh together.

        shared: (model, its candidate, its largest batch) of each. A model below its rate gets a
        larger batch, up to its largest.
        """
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
        """Whether the throughput reaches the model's rate, with the slack of the configuration."""
        config = self._config
        slack = min(config.max_slack_per_s, config.slack_share * throughput_per_s)
        return throughput_per_s + slack > llm.rate_per_s

    def throughput_per_s(self, llm: Llm, share: float, batch: int, prefill_s: float) -> float:
        """Throughput by Eq. 3, in requests/s. prefill_s: of this batch and of all that it waits
        for."""
        config = self._config
        context = batch * (config.prompt_tokens + config.output_tokens // 2)
        step_s = self._profile.decode_step_s(llm.spec, batch, context)
        step_s *= config.decode_slowdown[share]
        return batch / (step_s * config.output_tokens + prefill_s)

    def prefill_s(self, llm: Llm, batch: int) -> float:
        """Seconds to prefill a batch of average prompts, one after the other."""
        return batch * self._profile.prefill_s(llm.spec, self._config.prompt_tokens)


def _batches(max_batch: int) -> list[int]:
    """The batches that are tried: 1, 2, 4, …, max_batch."""
    powers = [1 << k for k in range(max_batch.bit_length())]
    return [*powers, max_batch] if powers[-1] < max_batch else powers
