"""What runs that stand side by side do not share: what forbids a comparison, and what to know.

Runs of different schedules, models or SLOs do not compare, nor does an INVALID one. Engine,
devices, KV memory and versions may be what a comparison is about; that they differ is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.records.run_folder import FinishedRun


def differences(runs: Sequence[FinishedRun]) -> list[str]:
    """A line on what does not compare and why, one on other conditions, and one for each INVALID
    run; none where there is nothing to say."""
    traits = {"schedule": schedule, "model": model, "SLO": slo}
    found = [name for name, trait in traits.items() if len({trait(run) for run in runs}) > 1]
    lines = []
    if found:
        what = "goodput and SLO attainment" if found == ["SLO"] else "their numbers"
        lines.append(f"The runs differ in {', '.join(found)}: {what} do not compare.")
    if more := conditions(runs):
        lines.append(f"The runs {'also ' if found else ''}differ in {', '.join(more)}.")
    for run in runs:
        if not valid(run):
            reasons = "; ".join(run.summary["verdict"]["reasons"])
            lines.append(f"INVALID, without ratios: {run.path.name}: {reasons}")
    return lines


def conditions(runs: Sequence[FinishedRun]) -> list[str]:
    """E.g. "devices (1 x cpu; 2 x cpu)", in the order of the runs; what one of them does not say
    is not compared."""
    manifests = [run.manifest for run in runs]
    traits: dict[str, Callable[[dict[str, Any]], str | None]] = {
        "engine": lambda manifest: str(manifest["engine_name"]),
        "devices": _devices,
        "KV memory": _kv_memory,
    }
    packages = set.intersection(*(set(_versions(manifest)) for manifest in manifests))
    found = [
        *(_told(name, [trait(manifest) for manifest in manifests])
          for name, trait in traits.items()),
        *(_told(name, [_versions(manifest)[name] for manifest in manifests])
          for name in sorted(packages)),
        _sources(manifests),
    ]  # fmt: skip
    return [each for each in found if each]


def valid(run: FinishedRun) -> bool:
    return bool(run.summary["verdict"]["status"] == "VALID")


def schedule(run: FinishedRun) -> str:
    return str(run.manifest["schedule_sha256"])


def model(run: FinishedRun) -> str:
    return str(run.manifest["choices"]["model"])


def slo(run: FinishedRun) -> tuple[float, float]:
    return run.summary["slo"]["ttft_s"], run.summary["slo"]["tbt_s"]


def _told(name: str, values: Sequence[str | None]) -> str:
    if None in values or len(set(values)) == 1:
        return ""
    return f"{name} ({'; '.join(map(str, values))})"


def _devices(manifest: dict[str, Any]) -> str | None:
    """By the hardware profile. A remote endpoint's are not known."""
    if manifest["engine_name"] in ("openai", "none"):
        return None
    hardware = manifest["hardware"]
    count = len(manifest["engine"].get("devices", ())) or hardware["num_devices"]
    return f"{count} x {hardware['device']}"


def _kv_memory(manifest: dict[str, Any]) -> str | None:
    """Of one instance."""
    engine = manifest["engine"]
    if "pool" in engine:
        return f"{engine['pool']['kv_bytes'] / 2**20:,.0f} MiB"
    if "num_kv_blocks" not in engine or "block_tokens" not in engine:
        return None
    rooms = {blocks * engine["block_tokens"] for blocks in engine["num_kv_blocks"].values()}
    return "/".join(f"{tokens:,}" for tokens in sorted(rooms)) + " tokens"


def _versions(manifest: dict[str, Any]) -> dict[str, str]:
    """Of what shapes a result, as the engine says or as was installed."""
    known = {name: manifest["versions"].get(name) for name in ("python", "numpy", "torch", "vllm")}
    engine = manifest["engine"]
    known |= {"torch": engine.get("torch", known["torch"])}
    known |= {"vllm": engine.get("vllm_version", known["vllm"])}
    return {name: version for name, version in known.items() if version is not None}


def _sources(manifests: Sequence[dict[str, Any]]) -> str:
    """Those files that all runs were made by and that were not the same."""
    if not all("sources" in manifest for manifest in manifests):
        revisions = [(manifest["git"] or {}).get("revision", "")[:7] for manifest in manifests]
        return _told("revision", [revision or None for revision in revisions])
    common = set.intersection(*(set(manifest["sources"]) for manifest in manifests))
    files = [
        path
        for path in sorted(common)
        if len({manifest["sources"][path] for manifest in manifests}) > 1
    ]
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return f"sources ({', '.join(files[:3])}{more})" if files else ""
