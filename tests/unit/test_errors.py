"""Sentences are short and printable whatever they quote, and name no password."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from harness.configuration.credentials import hold, without_credentials
from harness.errors import MAX_SENTENCE, RunError, UsageError, told

PATH = "/data/" + "/".join(["a-long-name-of-a-folder"] * 12)


@pytest.mark.parametrize("kind", [UsageError, RunError])
@pytest.mark.parametrize(
    "value", ["x" * 100_000, "x y " * 25_000, "\x1b[31m" * 20_000, "é€" * 9999]
)
def test_a_value_of_any_length_is_quoted_in_short(kind: type[Exception], value: str) -> None:
    text = str(kind(f"{PATH}, line 3: model={value} is unknown; valid: a, b"))
    assert len(text) <= MAX_SENTENCE
    assert text.startswith(f"{PATH}, line 3: model=")
    assert text.endswith("is unknown; valid: a, b")
    assert "characters)" in text
    assert text.isprintable()


def test_what_is_short_stays_as_it_is() -> None:
    sentence = f"{PATH} has no rows: äöü\n  two lines"
    assert str(UsageError(sentence)) == sentence
    assert str(pickle.loads(pickle.dumps(UsageError(sentence)))) == sentence


@given(st.text(max_size=3000))
def test_what_was_told_can_be_told_again(text: str) -> None:
    assert told(told(text)) == told(text)


USERS = st.text("abcXYZ019._~!$&'()*+,;=:%-", min_size=1, max_size=30)


@given(USERS, st.sampled_from(["http", "https", "redis"]), st.sampled_from(["", "/v1", ":80/v1/@"]))
def test_urls_lose_their_user_wherever_they_stand(user: str, scheme: str, rest: str) -> None:
    url, plain = f"{scheme}://{user}@host{rest}", f"{scheme}://host{rest}"
    assert (
        without_credentials(f"engine.url='{url}' and {url}") == f"engine.url='{plain}' and {plain}"
    )
    nested = {"engine": {"url": url, "n": 1}, "command": ["run", f"engine.url={url}"], "none": None}
    assert without_credentials(nested) == {
        "engine": {"url": plain, "n": 1},
        "command": ["run", f"engine.url={plain}"],
        "none": None,
    }
    assert user + "@" not in str(UsageError(f"{url} cannot be reached"))


@given(USERS)
def test_an_override_without_its_credentials_is_resolved_to_the_same(user: str) -> None:
    word = hold(f"http://{user}@host/v1")
    assert OmegaConf.create({"url": word}).url == f"http://{user}@host/v1"
    assert without_credentials(word) == "http://host/v1"
    assert word.startswith("http://${credentials:")


def test_a_password_of_the_environment_stays_one_and_an_escape_is_undone() -> None:
    assert hold("engine.url=http://u:${oc.env:PW}@h") == "engine.url=http://u:${oc.env:PW}@h"
    word = hold(r"http://u:a\,b@h")
    assert OmegaConf.create({"url": word}).url == "http://u:a,b@h"
