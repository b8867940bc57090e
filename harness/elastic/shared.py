"""What all elastic instances of a run have in common."""

from __future__ import annotations

from dataclasses import dataclass

from harness.clock import Loop
from harness.elastic.fabric import Fabric, Memory
from harness.elastic.kv_directory import KvDirectory
from harness.records.record import Recorder


@dataclass(frozen=True, slots=True)
class Shared:
    loop: Loop
    recorder: Recorder
    fabric: Fabric
    directory: KvDirectory

    def record(self, kind: str, name: str, start_s: float, **fields: object) -> None:
        """Puts into the run's events what went on from `start_s` to now. `name`: whose it is."""
        self.recorder.event(kind, name, start_s, self.loop.now, **fields)

    def transferred(
        self, source: Memory, target: str, purpose: str, start_s: float, num_bytes: int
    ) -> None:
        """Puts into the run's events that bytes went from `source` to `target` until now."""
        facts = {"source": source.name, "purpose": purpose, "bytes": num_bytes, "complete": True}
        self.record("transfer", target, start_s, **facts)
