"""What can be chosen, and one clear sentence for every wrong choice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue

import harness.configuration.resolvers
import harness.configuration.yaml_in_c  # noqa: F401
from harness.configuration.checks import one_of, require
from harness.configuration.config import class_of
from harness.errors import UsageError
from harness.files import YamlLoader

CONF = Path(__file__).resolve().parents[2] / "conf"
REQUIRED = ("system", "workload")
# Each a mapping: an option's values, or those that conf/config.yaml gives.
GROUPS = (
    "system",
    "workload",
    "model",
    "model_set",
    "hardware",
    "engine",
    "slo",
    "tracking",
    "data",
    "client",
    "metrics",
    "faults",
)


NO_NAME = re.compile(
    r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?|null|true|false|nan|inf|[\[{].*", re.IGNORECASE | re.DOTALL
)


def named_options(arguments: Sequence[str]) -> None:
    """Raises UsageError where a group's option is a number, a truth value, a list or a mapping to
    Hydra, whose error names neither."""
    for word in arguments:
        key, _, value = word.partition("=")
        group = key.lstrip("+").partition("@")[0]
        odd = NO_NAME.fullmatch(value) and not word.startswith(("-", "~"))
        if odd and "." not in group and (options := available(CONF, group)):
            raise UsageError(f"{group}={value} does not exist; choose one of: {', '.join(options)}")


def available(conf: Path, group: str) -> list[str]:
    return sorted(path.stem for path in (conf / group).glob("*.yaml"))


def missing_groups(config: DictConfig, conf: Path) -> None:
    """Raises UsageError with what can be chosen where the system or the workload is not given."""
    missing = [group for group in REQUIRED if config.get(group) is None]
    if missing:
        choices = "\n".join(f"  +{g}=  {', '.join(available(conf, g))}" for g in REQUIRED)
        raise UsageError(
            f"no {' and no '.join(missing)} given; usage:\n"
            f"  python -m harness +system=NAME +workload=NAME [key=value ...]\n{choices}\n"
            "  --help lists every other group and key"
        )


def known_groups(config: DictConfig) -> None:
    """Raises UsageError for a group that was taken out, or that a value stands in the place of."""
    for group in GROUPS:
        node = config.get(group)
        require(node is not None, f"{group} is missing, and nothing can be run without it")
        if not isinstance(node, DictConfig):
            raise UsageError(f"{group}={node} is no option of {group}; {_valid(group)}")


def _valid(group: str) -> str:
    """What can be given of `group`: its options, or the keys of one that has none."""
    if options := available(CONF, group):
        return f"valid: {', '.join(options)}"
    root = OmegaConf.load(CONF / "config.yaml")
    assert isinstance(root, DictConfig)
    keys = root[group]
    return f"valid keys: {', '.join(f'{group}.{key}' for key in keys if key != '_target_')}"


def config_sentence(error: Exception, conf: Path) -> str:
    """The error as a sentence. Hydra's and OmegaConf's messages span lines and hide the choices."""
    if isinstance(error, UsageError):
        return str(error)
    missing = getattr(error, "missing_cfg_file", None)
    if missing:
        group, _, name = missing.removesuffix(".yaml").rpartition("/")
        valid = available(conf, group) or getattr(error, "options", None) or ["none"]
        return f"{group}={name} does not exist; choose one of: {', '.join(valid)}"
    cause = error.__cause__ if error.__cause__ is not None else error
    parent = getattr(cause, "parent_node", None)
    key = getattr(cause, "full_key", None)
    if key and isinstance(parent, DictConfig):
        first = str(cause).splitlines()[0]
        if "not in struct" in first:
            valid = ", ".join(str(name) for name in parent)
            return f"unknown key {key}; valid keys there: {valid}"
        return f"{key}: {first}" + (f"; {_valid(key)}" if key in GROUPS else "")
    return " ".join(line.strip() for line in str(error).splitlines() if line.strip())


def known_keys(keys: Iterable[Any], known: Sequence[str], where: str = "") -> None:
    """Raises UsageError for one of `keys` that nothing reads (added with `+key=`)."""
    unknown = [str(key) for key in keys if key not in known]
    if unknown:
        raise UsageError(f"unknown key {where}{unknown[0]}; valid keys: {', '.join(known)}")


def known_device(config: DictConfig, folders: Sequence[Path]) -> None:
    """Raises UsageError for a device that none of `folders` (conf/, and --config-dir) describes: it
    would be a name on figures with the constants of another."""
    files = [path for conf in folders for path in (conf / "hardware" / "device").glob("*.yaml")]
    found = [yaml.load(path.read_bytes(), YamlLoader) for path in files]
    devices = [each["device"] for each in found if isinstance(each, dict) and "device" in each]
    known = ["cpu", *sorted(map(str, devices))]
    one_of(config.hardware.get("device"), known, "hardware.device")


def plain(config: DictConfig) -> dict[str, Any]:
    """`config` resolved, as plain data. Raises UsageError for a value that has to be given."""
    try:
        container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key = error.full_key
        raise UsageError(f"{key} has no default: give {key}=...") from error
    except InterpolationResolutionError as error:
        line = str(error).splitlines()[0]
        raise UsageError(line.rpartition("resolving interpolation: ")[2]) from error
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def refuse_ignored(
    engine: Mapping[str, Any], system: Mapping[str, Any], overrides: Sequence[str]
) -> None:
    """Raises UsageError for a key of the system that an engine whose servers schedule by themselves
    does not pass on (`scheduler_keys` of its class), nor the system's plug-in in them (`reads`): a
    run must not be other than it says. `engine`, `system`: their configurations."""
    kind = class_of(engine, "engine")
    reads: tuple[str, ...] | None = getattr(kind, "scheduler_keys", None)  # None: all are read
    if reads is None:
        return
    inside = getattr(class_of(system, "system"), "in_vllm", None) if kind.name == "vllm" else None
    reads = reads if inside is None else inside.reads
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0]
        group, _, name = key.partition(".")
        if group == "system" and name and not any(f"{name}.".startswith(f"{r}.") for r in reads):
            those = f": only {', '.join(f'system.{each}' for each in reads)}" if reads else ""
            raise UsageError(
                f"{key} is not read by engine={kind.name}, whose servers schedule by "
                f"{'the plug-in' if inside else 'themselves'}{those}"
            )
