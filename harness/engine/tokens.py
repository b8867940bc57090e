"""The token ids of a run's requests: prompts, made when asked for, and what engines generated."""

from __future__ import annotations

from harness.prompts import prompt_ids
from harness.request import Request


class TokenBook:
    """Shared by all instances, so that a request may go on at another one. `generated` keeps
    the ids of finished requests too: they are what exactness is judged by."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._prompts: dict[int, list[int]] = {}
        self.generated: dict[int, list[int]] = {}

    def known(self, request: Request, vocab_size: int, start: int, stop: int) -> list[int]:
        """Ids [start, stop) of the prompt followed by what was generated."""
        prompt = self._prompts.get(request.request_id)
        if prompt is None:
            prompt = prompt_ids(request, vocab_size, self._seed)
            self._prompts[request.request_id] = prompt
        if stop <= len(prompt):
            return prompt[start:stop]
        generated = self.generated[request.request_id]
        tail = generated[max(0, start - len(prompt)) : stop - len(prompt)]
        return prompt[start:] + tail if start < len(prompt) else tail

    def last(self, request: Request) -> int:
        return self.generated[request.request_id][-1]

    def append(self, request: Request, token_id: int) -> None:
        self.generated.setdefault(request.request_id, []).append(token_id)

    def forget_prompt(self, request: Request) -> None:
        self._prompts.pop(request.request_id, None)
