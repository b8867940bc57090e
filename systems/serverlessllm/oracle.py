"""What ServerlessLLM+ knows and no real system does: how long a request will take.

Aegaeon §7.1 gives it the output lengths. Times come from what was profiled of each model alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.model_spec import ModelSpec
from harness.placement import Profile
from harness.request import Request


class Oracle:
    def __init__(self, profile: Profile, models: Mapping[str, ModelSpec]) -> None:
        self._profile, self._models = profile, models

    def service_s(self, request: Request) -> float:
        """All that is left of a request, by itself."""
        return self.prefill_s([request]) + self.decode_s(request)

    def prefill_s(self, requests: Sequence[Request]) -> float:
        """Their prompts as one iteration; they are of one model."""
        tokens = sum(request.prompt_tokens for request in requests)
        return self._profile.prefill_s(self._models[requests[0].model], tokens)

    def decode_s(self, request: Request) -> float:
        """Its remaining tokens, each step taking what the middle one takes."""
        total = request.prompt_tokens + request.output_tokens
        middle = (request.known_tokens + total) // 2
        step_s = self._profile.decode_step_s(self._models[request.model], 1, middle)
        return step_s * request.remaining_tokens
