"""From plain data to an object: `_target_` names the class, its nested `Config` the fields.

`instantiate` does not check types, so the data is merged into the class's dataclass first: a wrong
type, an unknown key and a missing value all become a `UsageError` that names them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any, TypeVar

from hydra.utils import get_class
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from harness.errors import UsageError

Schema = TypeVar("Schema")
UNITS = ("_s", "_bytes", "_tokens", "_share", "_positions")

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
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise UsageError(f"{where} has no _target_: it names no class to build")
    target = node["_target_"]
    try:
        found = get_class(target)
    except Exception as error:
        raise UsageError(f"{where}._target_={target} cannot be imported: {error}") from error
    if not hasattr(found, "Config"):
        raise UsageError(f"{where}._target_={target} cannot be configured: it has no Config")
    return found


def settings(node: Mapping[str, Any], cls: Any, where: str) -> Any:
    """The `Config` of `cls`, filled from `node`."""
    values = {key: value for key, value in node.items() if key != "_target_"}
    return typed(values, cls.Config, where)


def typed(values: Mapping[str, Any], schema: type[Schema], where: str) -> Schema:
    """The dataclass `schema` filled from `values`; UsageError names the bad key and valid ones."""
    key = schema, json.dumps(values)  # refuses a DictConfig, whose interpolations it cannot see
    if key not in _typed:
        try:
            filled = OmegaConf.merge(OmegaConf.structured(schema), values)
            made = OmegaConf.to_object(filled)  # what a class has to say of its values comes first
            check_numbers(OmegaConf.to_container(filled))
            _typed[key] = made
        except (OmegaConfBaseException, ValueError, OverflowError, RecursionError) as error:
            raise UsageError(f"{where}: {explain(error, schema)}") from error
    copy: Schema = deepcopy(_typed[key])
    return copy


def check_numbers(value: Any, key: str = "") -> None:
    """ValueError for a number within `value` that is not finite or not of 64 bits, or that is
    below 0 where its name has a unit or counts something. `key`: where `value` stands."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            check_numbers(each, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for each in value:
            check_numbers(each, key)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        name = key.rpartition(".")[2]
        quantity = name.endswith(UNITS) or name.startswith("num_")
        if not (isfinite_64(value) and (value >= 0 or not quantity)):
            kind = "finite number" if isinstance(value, float) else "number of 64 bits"
            raise ValueError(f"{key}={value} must be a {kind}{', at least 0' if quantity else ''}")


def isfinite_64(value: int | float) -> bool:
    return isfinite(value) if isinstance(value, float) else -(2**63) <= value < 2**63


def explain(error: Exception, schema: type) -> str:
    """One sentence: OmegaConf's message without its trailing context lines."""
    first = str(error).splitlines()[0]
    key = getattr(error, "full_key", None)
    if isinstance(error, MissingMandatoryValue):
        return f"{key} is missing: give it a value"
    if "is not Optional" in first:
        return f"{key} is null: give it a value"
    if "not in" in first:
        within: Any = getattr(error, "object_type", None)  # of a key that lies deeper
        keys = fields(within if is_dataclass(within) else schema)
        valid = ", ".join(field.name for field in keys)
        return f"unknown key {key!r}; valid keys: {valid}"
    return f"{key}: {first}" if key and key not in first else first
