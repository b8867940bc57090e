"""engine=openai: any endpoint that speaks OpenAI's streaming completions or chat API.

Sends and listens; whatever serves there is not ours to start, stop or inspect.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from harness.clock import Loop, WallLoop
from harness.cluster import Cluster
from harness.drivers.base_url import base_url
from harness.drivers.body import chat_body, completion_body, prebuilt
from harness.drivers.http_endpoint import HttpEndpoint, IoThread, Target
from harness.drivers.limits import require_positive
from harness.engine_api import Experiment
from harness.errors import UsageError
from harness.request import Request

PATHS = {"completions": "completions", "chat": "chat/completions"}
REACH_TIMEOUT_S = 10.0


class OpenAiEngine:
    world = "openai"
    has_devices = True
    devices_known = False

    @dataclass(kw_only=True, slots=True)
    class Config:
        url: str  # the API's base, e.g. http://127.0.0.1:8000/v1
        model: str | None  # asked for by this name; null: by the name that requests carry
        api: str  # completions or chat
        api_key_env: str | None  # environment variable that holds the key
        request_timeout_s: float  # from sending to the stream's end
        allow_early_end: bool  # an answer shorter than asked for counts as completed
        extra_body: dict[str, Any]  # further fields of every request

    def __init__(self, config: Config) -> None:
        self._url, user = base_url(config.url)
        if config.api not in PATHS:
            raise UsageError(f"engine.api={config.api} is not one of: {', '.join(PATHS)}")
        require_positive(config, "request_timeout_s")
        self._config = config
        key = _authorization(config.api_key_env)
        if user and key:
            raise UsageError("engine.url has a user and engine.api_key_env a key: give one of them")
        self._headers = {"Content-Type": "application/json"} | user | key
        self._endpoint: HttpEndpoint | None = None

    def make_loop(self) -> Loop:
        return WallLoop()

    @contextmanager
    def start(self, experiment: Experiment) -> Iterator[Cluster]:
        loop = experiment.loop
        assert isinstance(loop, WallLoop)
        with IoThread() as io:
            self._reach(io, experiment.announce)
            experiment.announce(f"sending to {self._url}")
            self._endpoint = HttpEndpoint(
                "openai-0",
                list(experiment.models),
                self._target(experiment),
                io=io,
                loop=loop,
                recorder=experiment.recorder,
            )
            yield experiment.cluster(endpoints=[self._endpoint])

    def resolved(self) -> Mapping[str, Any]:
        """`num_corrected_answers`: the server streamed several tokens in an event without saying
        so; the total comes from its usage report, the times of the surplus are its last event's."""
        return {
            "url": self._url,
            "api": self._config.api,
            "model": self._config.model,
            "devices": ["unknown, behind URL"],
            "num_corrected_answers": self._endpoint.num_corrected if self._endpoint else 0,
        }

    def _target(self, experiment: Experiment) -> Target:
        records = experiment.recorder.records.values()
        return Target(
            url=f"{self._url}/{PATHS[self._config.api]}",
            headers=self._headers,
            body=prebuilt(self._body(experiment), records),
            timeout_s=self._config.request_timeout_s,
            allow_early_end=self._config.allow_early_end,
        )

    def _body(self, experiment: Experiment) -> Callable[[Request], bytes]:
        config, seed = self._config, experiment.seed
        if config.api == "chat":
            return chat_body(config.model, seed, config.extra_body)
        return completion_body(experiment.models, config.model, seed, config.extra_body)

    def _reach(self, io: IoThread, announce: Callable[[str], None]) -> None:
        """Fails at once where nothing answers; any answer will do, not all servers list models."""
        url = f"{self._url}/models"
        try:
            status = io.touch(url, self._headers, REACH_TIMEOUT_S)
        except OSError as error:
            raise UsageError(f"engine.url={self._url} cannot be reached: {error}") from error
        if status == 404:
            hint = "" if self._url.endswith("/v1") else f", which is often {self._url}/v1"
            announce(f"warning: {url} answered HTTP 404; engine.url must be the API's base{hint}")


def _authorization(api_key_env: str | None) -> dict[str, str]:
    if api_key_env is None:
        return {}
    if api_key_env not in os.environ:
        raise UsageError(f"engine.api_key_env={api_key_env}: there is no such variable")
    key = os.environ[api_key_env]
    if not key or not all("!" <= letter <= "~" for letter in key):
        raise UsageError(
            f"engine.api_key_env={api_key_env} holds no API key: a key is letters, digits and "
            "signs on one line, without spaces"
        )
    return {"Authorization": f"Bearer {key}"}
