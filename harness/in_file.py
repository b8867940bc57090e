"""What another program has left in a file, as a value of a run's configuration.

`${in_file:FILE,KEY}` stands for what KEY has in the JSON object of FILE, e.g. where models are. A
run's configuration, manifest and digest hold the content, so that a run with another content is
another run. FILE is relative to where the command was given.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from harness.errors import UsageError, first_line


def in_file(path: str, key: str) -> Any:
    """Raises UsageError for a file without such a key, or that is no JSON object."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {first_line(error)}") from error
    if not isinstance(found, dict) or key not in found:
        has = ", ".join(sorted(found)) if isinstance(found, dict) else "it is no JSON object"
        raise UsageError(f"{path} has no {key}; keys: {has or 'none'}")
    value = found[key]
    return OmegaConf.create(value) if isinstance(value, dict | list) else value


OmegaConf.register_new_resolver("in_file", in_file, replace=True)
