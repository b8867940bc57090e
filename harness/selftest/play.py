"""What a golden server in a process of its own answers, as a file has it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.selftest.script import Script


@dataclass(kw_only=True)
class Play:
    """What a server in a process of its own answers."""

    models: Mapping[str, Script]  # by the name that a request asks for
    freeze_at: int | None = None  # as this request comes in, counted from 1, all stands still
    freeze_s: float = 0.0
    caches: bool = False  # a prompt that was sent before counts as cached
    max_model_len: int | None = None  # that /models tells

    def __post_init__(self) -> None:
        self._num_seen = 0
        self._prompts: set[str] = set()

    def __call__(self, body: dict[str, Any]) -> Script:
        self._num_seen += 1
        if self._num_seen == self.freeze_at:
            time.sleep(self.freeze_s)  # under the server's event loop
        script = self.models[body["model"]]
        if not self.caches:
            return script
        prompt, length = prompt_hash(body), len(body["prompt"])
        cached = length if prompt in self._prompts else 0
        self._prompts.add(prompt)
        return replace(script, prompt_tokens=length, cached_tokens=cached)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Play:
        found = json.loads(text)
        models = {name: Script(**script) for name, script in found.pop("models").items()}
        return Play(models=models, **found)


def prompt_hash(body: Mapping[str, Any]) -> str:
    """Of the prompt of a request's JSON body, as it was sent."""
    prompt = json.dumps(body["messages"] if "messages" in body else body["prompt"])
    return hashlib.sha256(prompt.encode()).hexdigest()
