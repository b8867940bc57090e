"""The plug-in's counters, on their way from scheduler and workers to the server's /metrics.

They use vLLM's counters for connectors: `vllm:aqua_NAME_total` for `PLAIN`, and
`vllm:aqua_paged_NAME_total` for `BY_PURPOSE`, labelled by purpose (page out to DRAM, page in from
lease, ...). In `seconds` the worker does nothing else. `lost_blocks` are computed again.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

PLAIN = ("iterations", "slices", "preemptions", "lost_blocks")
BY_PURPOSE = ("pages", "copies", "blocks", "bytes", "seconds")


class Counts(KVConnectorStats):
    """`data`: {name: increment}; a name is e.g. "slices" or "bytes/page out to DRAM"."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, number in other.data.items():
            self.data[name] = self.data.get(name, 0) + number
        return self

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not self.data


class Counters(KVConnectorPromMetrics):
    """The Prometheus counters of the server."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:  # fmt: skip
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._plain: dict[str, Any] = {
            name: self._counter_cls(f"vllm:aqua_{name}", f"AQUA: {name}.", labelnames=labelnames)
            for name in PLAIN
        }
        self._by_purpose: dict[str, Any] = {
            name: self._counter_cls(
                f"vllm:aqua_paged_{name}", f"AQUA: {name} of paged KV.",
                labelnames=[*labelnames, "purpose"],
            )
            for name in BY_PURPOSE
        }  # fmt: skip

        for labels in per_engine_labelvalues.values():
            for counter in self._plain.values():
                counter.labels(*labels)  # exported from the start, at 0

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for key, number in transfer_stats_data.items():
            name, _, purpose = key.partition("/")
            if purpose:
                self._by_purpose[name].labels(*labels, purpose).inc(number)
            else:
                self._plain[name].labels(*labels).inc(number)
