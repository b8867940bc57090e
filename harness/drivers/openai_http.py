"""engine=openai: any endpoint that speaks OpenAI's streaming completions or chat API.

Sends and listens; whatever serves there is not ours to start, stop or inspect.
"""

from __future__ import annotations

import os
import re
import secrets
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import yarl

from harness.clock import Loop, WallLoop
from harness.cluster import Cluster
from harness.configuration.checks import positive
from harness.configuration.credentials import without_credentials
from harness.drivers.body import Bodies, chat_body, completion_body
from harness.drivers.http_endpoint import HttpEndpoint, Target
from harness.drivers.io_process import input_output
from harness.drivers.replay import replaying
from harness.drivers.served_models import choose_model, fit, list_models
from harness.engine_api import Experiment
from harness.errors import UsageError
from harness.records.answers import EARLY_ENDS

QUERY = re.compile("[?#]")
EXAMPLE = "http://127.0.0.1:8000/v1"
PATHS = {"completions": "completions", "chat": "chat/completions"}


class OpenAiEngine:
    name = "openai"
    has_devices = True
    devices_known = False
    scheduler_keys = ()

    @dataclass(kw_only=True, slots=True)
    class Config:
        url: str  # the API's base, e.g. http://127.0.0.1:8000/v1
        model: str | None  # asked for by this name; null: the server's only one, or by the
        # names that requests carry where it serves them all
        api: str  # completions or chat
        api_key_env: str | None  # environment variable that holds the key
        request_timeout_s: float  # from sending to the stream's end
        allow_early_end: bool  # an answer shorter than asked for counts as completed
        cold: bool  # prompts that no run before this one has sent
        allow_cached: bool  # hits in the server's prefix cache are part of what is measured
        extra_body: dict[str, Any]  # further fields of every request

    def __init__(self, config: Config) -> None:
        self._url, user = base_url(config.url)
        if config.api not in PATHS:
            raise UsageError(f"engine.api={config.api} is not one of: {', '.join(PATHS)}")
        positive(config, "engine", "request_timeout_s")
        self._config = config
        key = _authorization(config.api_key_env)
        if user and key:
            raise UsageError("engine.url has a user and engine.api_key_env a key: give one of them")
        self._headers = {"Content-Type": "application/json"} | user | key
        self._endpoint: HttpEndpoint | None = None
        self._model = config.model
        self._prompt_seed: int | None = None

    def make_loop(self) -> Loop:
        return WallLoop()

    @contextmanager
    def start(self, experiment: Experiment) -> Iterator[Cluster]:
        loop = experiment.loop
        assert isinstance(loop, WallLoop)
        records = experiment.recorder.records.values()
        if self._config.cold and any(record.request.prompt is not None for record in records):
            raise UsageError(
                "engine.cold=true makes random prompts new, but this workload's prompts are real"
            )
        self._choose(experiment)
        self._prompt_seed = secrets.randbits(48) if self._config.cold else experiment.seed
        with input_output(loop, experiment.processes) as ios:
            target, recorder = self._target(experiment), experiment.recorder
            names = [*experiment.models]
            self._endpoint = HttpEndpoint("openai-0", names, target, ios, loop, recorder)
            if self._config.allow_early_end:
                recorder.event(EARLY_ENDS, self._endpoint.name, 0.0, 0.0)
            intended = self._config.allow_cached
            with replaying([self._endpoint], ios, experiment, caching_intended=intended):
                yield experiment.cluster(endpoints=[self._endpoint])

    def resolved(self) -> Mapping[str, Any]:
        """`num_corrected_answers`: the server streamed several tokens in an event without saying
        so; the total comes from its usage report, the times of the surplus are its last event's.
        `num_cut_answers`: streams that went far beyond what was asked."""
        return {
            "url": self._url,
            "api": self._config.api,
            "model": self._model,
            "prompt_seed": self._prompt_seed,
            "devices": ["unknown, behind URL"],
            "num_corrected_answers": self._endpoint.num_corrected if self._endpoint else 0,
            "num_cut_answers": self._endpoint.num_cut if self._endpoint else 0,
        }

    def _target(self, experiment: Experiment) -> Target:
        config, seed = self._config, self._prompt_seed
        assert seed is not None
        if config.api == "chat":
            body = chat_body(self._model, seed, config.extra_body)
        else:
            body = completion_body(experiment.models, self._model, seed, config.extra_body)
        return Target(
            root=self._url.removesuffix("/v1"),
            url=f"{self._url}/{PATHS[config.api]}",
            headers=self._headers,
            bodies=Bodies(body, experiment.recorder.records.values()),
            timeout_s=config.request_timeout_s,
            allow_early_end=config.allow_early_end,
        )

    def _choose(self, experiment: Experiment) -> None:
        """Settles what to ask for before anything is sent, and says what prompts are made of."""
        served = list_models(self._url, self._headers)
        names = list(experiment.models)
        self._model = choose_model(self._config.model, served, names, self._url)
        fit(experiment.recorder.records.values(), self._model, served, self._url)
        if self._model is not None and served.lengths and self._model not in served.lengths:
            experiment.announce(f"warning: {self._url} does not list engine.model={self._model}")
        specs = {spec.name: spec for spec in experiment.models.values()}
        sizes = (
            f"model={name} ({spec.vocab_size:,} token ids, {spec.max_position:,} positions)"
            for name, spec in specs.items()
        )
        asked = self._model or ", ".join(names)
        experiment.announce(
            f"sending to {self._url}, asking for {asked}; prompts are made for {', '.join(sizes)}"
        )


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


def base_url(url: str) -> tuple[str, dict[str, str]]:
    """`url` without user and password, and the header that carries them. Raises UsageError for
    what is no API's base, and names nothing that stands before an @."""
    shown = without_credentials(url) if "://" in url else url.rpartition("@")[2]
    shown = QUERY.split(shown)[0]  # what follows may be a key
    wrong = UsageError(f"engine.url must be a base URL such as {EXAMPLE}, got {shown}")
    if any(not letter.isprintable() or letter.isspace() for letter in url):
        raise wrong
    try:
        parts = urlsplit(url)
        port, host = parts.port, yarl.URL(url).host  # ValueError: none that there can be
        (host or "").encode("idna")  # what looks it up would raise this later
    except ValueError as error:
        raise wrong from error
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise wrong
    if QUERY.search(url):
        raise UsageError(f"engine.url={shown} must be a base URL: without ? and #")
    return without_credentials(url).rstrip("/"), _basic(parts.username, parts.password)


def _basic(user: str | None, password: str | None) -> dict[str, str]:
    if not user and not password:
        return {}
    both = f"{unquote(user or '')}:{unquote(password or '')}"
    return {"Authorization": f"Basic {b64encode(both.encode()).decode()}"}
