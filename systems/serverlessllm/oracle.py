"""How long a request will take: ServerlessLLM+ knows it, a real system does not.

Aegaeon §7.1 gives ServerlessLLM+ the output lengths. Times are profiled of each model alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.model_spec import ModelSpec
from harness.placement import Profile
from harness.request import Request


class Oracle:
    """Service times in seconds, by profile and true output lengths."""

    def __init__(self, profile: Profile, models: Mapping[str, ModelSpec]) -> None:
        self._profile, self._models = profile, models

    def service_s(self, request: Request) -> float:
        """Service time of the whole request, if it ran alone."""
        return self.prefill_s([request]) + self.decode_s(request)

    def prefill_s(self, requests: Sequence[Request]) -> float:
        """Time to prefill all prompts in one iteration. The requests are of one model."""
        tokens = sum(request.prompt_tokens for request in requests)
        return self._profile.prefill_s(self._models[requests[0].model], tokens)

    def decode_s(self, request: Request) -> float:
        """Time to decode the request's remaining tokens; every step counts as long as the middle
        one."""
        total = request.prompt_tokens + request.output_tokens
        middle = (request.known_tokens + total) // 2
        step_s = self._profile.decode_step_s(self._models[request.model], 1, middle)
        return step_s * request.remaining_tokens
