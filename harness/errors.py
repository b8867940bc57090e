"""Errors that a user is told in one sentence, without a traceback.

Every sentence is `told` here: short whatever it quotes, and without the password of a URL.
"""

from __future__ import annotations

import re
from pathlib import Path

from harness.configuration.credentials import without_credentials

MAX_WORD = 200  # characters; a part of a path has 255 at most, and paths are told in full
MAX_SENTENCE = 2000
KEPT = 60  # characters of a word that is too long
WORD = re.compile(rf"[^\s/]{{{MAX_WORD},}}")
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def told(sentence: str) -> str:
    """`sentence` as it is shown: of a value of any length its beginning, with its length; control
    characters escaped. It stays as it is when told again."""
    text = UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], without_credentials(sentence))
    text = WORD.sub(lambda found: f"{found[0][:KEPT]}… ({len(found[0])} characters)", text)
    if len(text) <= MAX_SENTENCE:
        return text
    half = MAX_SENTENCE // 2 - 50  # what is valid often comes last
    return f"{text[:half]} … ({len(text) - 2 * half} characters) … {text[-half:]}"


def first_line(error: BaseException) -> str:
    """What `error` says first; its kind, where it says nothing."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__


class UsageError(ValueError):
    """The command asks for something that cannot be; exit status 2, nothing left on disk."""

    def __init__(self, sentence: str) -> None:
        super().__init__(told(sentence))


class RunError(RuntimeError):
    """A run broke: an engine died, a disk is full; exit status 1, what was recorded is kept."""

    def __init__(self, sentence: str) -> None:
        super().__init__(told(sentence))


class InvalidRun(RunError):
    """A run ended and its numbers do not describe the server, with strict=true or where a command
    needs them; exit status 3."""

    def __init__(self, path: Path, reasons: str) -> None:
        super().__init__(f"{path} is INVALID: {reasons}")


class InstanceLost(RunError):
    """An instance died: what was under way on it has failed. A system that expects this goes on
    without it; elsewhere it ends the run. `with_node`: so has all of its node."""

    def __init__(self, name: str, reason: str = "", *, with_node: bool = False) -> None:
        super().__init__(f"instance {name} is lost{': ' + reason if reason else ''}")
        self.name, self.with_node = name, with_node
