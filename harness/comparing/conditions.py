"""What runs that stand side by side do not share: what forbids a comparison, and what to know.

Runs of different schedules, models or SLOs do not compare, nor does an INVALID one. Engine,
devices, KV memory and versions may be what a comparison is about; that they differ is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from harness.records.run_folder import FinishedRun
from harness.records.slo import slo_of

NEEDED: dict[str, Callable[[FinishedRun], Any]] = {  # what is the same in runs that compare
    "schedule": lambda run: run.manifest["schedule_sha256"],
    "open or closed loop": lambda run: run.manifest.get("closed_loop"),
    "model": lambda run: run.manifest["choices"]["model"],
    "SLO": lambda run: _limits(run),
}


WORK = tuple(name for name in NEEDED if name != "SLO")  # what both sides of a pair were asked


def _limits(run: FinishedRun) -> tuple[object, ...]:
    """However they are written: by model what a good request meets, and a token on time."""
    slo, models = slo_of(run.summary), run.summary.get("models", {})
    by_model = ((model, *sorted(slo.limits_s(model).items())) for model in sorted(models))
    return slo.ttft_s, slo.tbt_s, *by_model


def differences(runs: Sequence[FinishedRun]) -> list[str]:
    """A line on what does not compare and why, one on other conditions, and one for each INVALID
    run; none where there is nothing to say."""
    found = [name for name, trait in NEEDED.items() if len({trait(run) for run in runs}) > 1]
    lines = []
    if found:
        what = "goodput and SLO attainment" if found == ["SLO"] else "their numbers"
        lines.append(f"The runs differ in {', '.join(found)}: {what} do not compare.")
    if more := conditions([run.manifest for run in runs]):
        lines.append(f"The runs {'also ' if found else ''}differ in {', '.join(more)}.")
    for run in runs:
        if run.invalid:
            status = run.summary["verdict"]["status"]
            lines.append(f"{status}, without ratios: {run.path.name}: {run.invalid}")
    return lines


def same(run: FinishedRun, other: FinishedRun, *names: str) -> bool:
    """Whether the runs share the conditions in NEEDED."""
    return all(NEEDED[name](run) == NEEDED[name](other) for name in names)


def conditions(manifests: Sequence[dict[str, Any]]) -> list[str]:
    """The conditions that differ, e.g. "devices (1 x cpu; 2 x cpu)", in the order of the runs that
    tell theirs. Versions are those of what shapes a result, as the engine says or as was
    installed."""
    in_bytes = all(map(_kv_bytes, manifests))
    traits: dict[str, Callable[[dict[str, Any]], Any]] = {
        "engine": lambda manifest: manifest["engine_name"],
        "machine": machine,
        "devices": _devices,
        "KV memory": _kv_bytes if in_bytes else lambda one: _kv_tokens(one) or _kv_bytes(one),
        **{name: partial(_version, name=name) for name in ("numpy", "python", "torch", "vllm")},
    }
    found = []
    for name, trait in traits.items():
        values = [value for manifest in manifests if (value := trait(manifest)) is not None]
        if len(set(values)) > 1:
            found.append(f"{name} ({'; '.join(map(str, values))})")
    return [*found, *_sources([manifest.get("sources", {}) for manifest in manifests])]


def _version(manifest: dict[str, Any], name: str) -> str | None:
    key = "vllm_version" if name == "vllm" else name
    found: str | None = manifest["engine"].get(key, manifest["versions"].get(name))
    return found


def _devices(manifest: dict[str, Any]) -> str | None:
    """The number and kind of devices, by the hardware profile. A remote endpoint's are not
    known."""
    if manifest["engine_name"] in ("openai", "none", "imported"):
        return None
    hardware = manifest["hardware"]
    count = len(manifest["engine"].get("devices", ())) or hardware["num_devices"]
    return f"{count} x {hardware['device']}"


def machine(manifest: dict[str, Any]) -> str | None:
    """Where a live run ran. That of a simulation has no part in its numbers; that of a remote
    endpoint or of another tool's run is not known."""
    if manifest["simulated"] or manifest["engine_name"] in ("openai", "imported"):
        return None
    if nodes := manifest["engine"].get("nodes"):  # of a cluster, on which the workers were
        alike = Counter(_host(node, node["cores"]) for node in nodes)
        return " and ".join(f"{count} x {node}" for node, count in sorted(alike.items()))
    return _host(manifest["machine"], manifest["machine"]["num_cores"])


def _host(told: dict[str, Any], num_cores: int | None) -> str:
    gpus = [gpu["name"] for gpu in told.get("gpus", ())]  # of a node, older manifests say none
    return ", ".join([told["cpu"], f"{num_cores} cores", *gpus])


def _kv_bytes(manifest: dict[str, Any]) -> str | None:
    """The KV memory of one device of an instance, where the engine says its bytes."""
    engine = manifest["engine"]
    rooms = [engine["pool"]] if "pool" in engine else engine.get("instances", ())
    found = sorted({one["kv_bytes"] for one in rooms})
    return "/".join(f"{num_bytes:,}" for num_bytes in found) + " bytes" if found else None


def _kv_tokens(manifest: dict[str, Any]) -> str | None:
    """The KV memory of one instance."""
    engine = manifest["engine"]
    blocks = engine.get("num_kv_blocks", {}).values()
    rooms = sorted({num_blocks * engine["block_tokens"] for num_blocks in blocks})
    return "/".join(f"{tokens:,}" for tokens in rooms) + " tokens" if rooms else None


def _sources(hashes: Sequence[dict[str, str]]) -> list[str]:
    """The source files that all runs were made by and that were not the same in all."""
    common = set(hashes[0]).intersection(*hashes)
    files = sorted(path for path in common if len({of_run[path] for of_run in hashes}) > 1)
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return [f"sources ({', '.join(files[:3])}{more})"] if files else []
