"""User names and passwords within URLs: used for requests, and neither written nor printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

# As far as the last @ before the path, as RFC 3986 and HTTP clients have it.
USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")
ESCAPED = re.compile(r"\\(.)")  # as Hydra would take a comma, or a colon, of an override
_held: list[str] = []  # what `hold` took


def hold(word: str) -> str:
    """A word of the command line with its credentials kept in this process: an interpolation that
    OmegaConf resolves stands for them, so that whoever writes overrides to a file has none. What
    is an interpolation already, as of an environment variable, stays."""

    def keep(found: re.Match[str]) -> str:
        if "${" in found[0]:
            return found[0]
        _held.append(ESCAPED.sub(r"\1", found[0].removesuffix("@")))
        return f"${{credentials:{len(_held) - 1}}}@"

    return USER_INFO.sub(keep, word)


OmegaConf.register_new_resolver("credentials", _held.__getitem__, replace=True)


def without_credentials(value: Any) -> Any:
    """`value` without `user:password@` in any of its texts. Containers of plain data are copied;
    what is neither text nor container is returned as it is."""
    if isinstance(value, str):
        return USER_INFO.sub("", value)
    if isinstance(value, Mapping):
        return {without_credentials(key): without_credentials(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_credentials(each) for each in value]
    return value
