"""User names and passwords within URLs: used for requests, and neither written nor printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# As far as the last @ before the path, as RFC 3986 and HTTP clients have it.
USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")


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
