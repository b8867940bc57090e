"""engine.url: where an API is, and as whom it is asked. Nothing is looked up or sent here."""

from __future__ import annotations

import re
from base64 import b64encode
from urllib.parse import unquote, urlsplit

import yarl

from harness.configuration.credentials import without_credentials
from harness.errors import UsageError

QUERY = re.compile("[?#]")
EXAMPLE = "http://127.0.0.1:8000/v1"


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
