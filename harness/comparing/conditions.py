"""What runs that stand side by side do not share: what forbids a comparison, and what to know.

Runs of different schedules, models or SLOs do not compare, nor does an INVALID one. Engine,
devices, KV memory and versions may be what a comparison is about; that they differ is said.
"""

from __future__ import annotations

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
    """The conditions that differ, e.g. "devices (1 x cpu; 2 x cpu)", in the order of the runs; what
    one of them does not say is not compared. Versions are those of what shapes a result, as the
    engine says or as was installed."""
    traits: dict[str, Callable[[dict[str, Any]], Any]] = {
        "engine": lambda manifest: manifest["engine_name"],
        "devices": _devices,
        "KV memory": lambda manifest: _kv_memory(manifest["engine"]),
        **{name: partial(_version, name=name) for name in ("numpy", "python", "torch", "vllm")},
    }
    found = []
    for name, trait in traits.items():
        values = [trait(manifest) for manifest in manifests]
        if None not in values and len(set(values)) > 1:
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


def _kv_memory(engine: dict[str, Any]) -> str | None:
    """The KV memory of one instance, as text."""
    if "pool" in engine:
        return f"{engine['pool']['kv_bytes'] / 2**20:,.0f} MiB"
    if "num_kv_blocks" not in engine or "block_tokens" not in engine:
        return None
    rooms = {blocks * engine["block_tokens"] for blocks in engine["num_kv_blocks"].values()}
    return "/".join(f"{tokens:,}" for tokens in sorted(rooms)) + " tokens"


def _sources(hashes: Sequence[dict[str, str]]) -> list[str]:
    """The source files that all runs were made by and that were not the same in all."""
    common = set(hashes[0]).intersection(*hashes)
    files = sorted(path for path in common if len({of_run[path] for of_run in hashes}) > 1)
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return [f"sources ({', '.join(files[:3])}{more})"] if files else []
