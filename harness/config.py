"""From plain data to an object: `_target_` names the class, its nested `Config` the fields.

`instantiate` does not check types, so the data is merged into the class's dataclass first: a wrong
type, an unknown key and a missing value all become a `UsageError` that names them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields
from typing import Any

from hydra.utils import get_class
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.errors import UsageError

# What `typed` has made: the runs of a sweep share most of their configuration, and a hardware
# profile takes OmegaConf as long as a small simulation.
_typed: dict[tuple[type, str], Any] = {}


def build(node: Mapping[str, Any], where: str, **runtime: Any) -> Any:
    """Builds `node["_target_"]` as `cls(config, **runtime)`. `where` is the node's key, for
    errors."""
    cls = class_of(node, where)
    return cls(settings(node, cls, where), **runtime)


def class_of(node: Mapping[str, Any], where: str) -> Any:
    """The class that `node["_target_"]` names."""
    if "_target_" not in node:
        raise UsageError(f"{where} has no _target_: it names no class to build")
    try:
        return get_class(node["_target_"])
    except Exception as error:
        target = node["_target_"]
        raise UsageError(f"{where}._target_={target} cannot be imported: {error}") from error


def settings(node: Mapping[str, Any], cls: Any, where: str) -> Any:
    """The `Config` of `cls`, filled from `node`."""
    values = {key: value for key, value in node.items() if key != "_target_"}
    return typed(values, cls.Config, where)


def typed(values: Mapping[str, Any], schema: type, where: str) -> Any:
    """The dataclass `schema` filled from `values`; UsageError names the bad key and valid ones."""
    key = schema, json.dumps(values)  # refuses a DictConfig, whose interpolations it cannot see
    if key not in _typed:
        try:
            filled = OmegaConf.merge(OmegaConf.structured(schema), values)
            _typed[key] = OmegaConf.to_object(filled)
        except (OmegaConfBaseException, ValueError) as error:
            raise UsageError(f"{where}: {explain(error, schema)}") from error
    return deepcopy(_typed[key])


def explain(error: Exception, schema: type) -> str:
    """One sentence: OmegaConf's message without its trailing context lines."""
    first = str(error).splitlines()[0]
    key = getattr(error, "full_key", None)
    if "not in" in first:
        valid = ", ".join(field.name for field in fields(schema))
        return f"unknown key {key!r}; valid keys: {valid}"
    return f"{key}: {first}" if key and key not in first else first
