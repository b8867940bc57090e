"""The global parameter pool (§5.3, A.1): which GPUs and hosts have a copy of each model.

Invariant: every model has a whole copy in the memory of some GPU or host. A model has at most one
host copy, and none while a GPU has a copy that stays. Hosts share the copies evenly by bytes. A
host copy is whole; the paper does not say whether its copies are sharded.

The pool is bookkeeping: `wanted` and `surplus` say what to do, and other methods record what has
happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.errors import UsageError
from systems.blitzscale.chains import Medium, Source


@dataclass(kw_only=True, slots=True, frozen=True)
class GpuCopy:
    """An instance that has all layers of a model."""

    name: str
    node: int
    devices: tuple[int, ...]


@dataclass(slots=True, frozen=True)
class HostCopy:
    """A copy to be made in the memory of `node`, from one of `sources`."""

    model: str
    node: int
    sources: tuple[Source, ...]


class ParameterPool:
    """The copies of all models of a run."""

    def __init__(
        self, sizes_bytes: Mapping[str, int], hosts: Iterable[int], host_bytes: int
    ) -> None:
        """sizes_bytes: {model: bytes}. host_bytes: memory of each host for copies. Every model
        begins as a host copy, the largest first, on the host with the fewest bytes. Raises
        UsageError if they do not fit."""
        self._sizes = dict(sizes_bytes)
        self._hosts = sorted(hosts)
        self._host_bytes = host_bytes
        self._gpus: dict[str, dict[str, GpuCopy]] = {model: {} for model in self._sizes}
        self._leaving: set[str] = set()  # instances that are to be reclaimed
        self._host: dict[str, int] = {}
        self._coming: dict[str, HostCopy] = {}  # host copies being made
        for model in sorted(self._sizes, key=lambda model: (-self._sizes[model], model)):
            self._host[model] = self._room(model)

    def sources(self, model: str) -> list[Source]:
        """The copies that a scale-up can read: GPU copies, else the host copy, else all SSDs."""
        copies = sorted(self._gpus[model].values(), key=lambda copy: copy.name)
        if copies:
            return [
                Source(medium=Medium.GPU, node=copy.node, devices=copy.devices) for copy in copies
            ]
        if model in self._host:
            return [Source(medium=Medium.HOST, node=self._host[model])]
        return [Source(medium=Medium.SSD, node=node) for node in self._hosts]

    def wanted(self) -> list[HostCopy]:
        """Host copies to begin now: of models that no GPU keeps, and that no host has or is being
        given. The returned copies count as begun."""
        found = []
        for model in sorted(self._sizes, key=lambda model: (-self._sizes[model], model)):
            kept = any(name not in self._leaving for name in self._gpus[model])
            if not kept and model not in self._host and model not in self._coming:
                copy = HostCopy(model, self._room(model), tuple(self.sources(model)))
                self._coming[model] = copy
                found.append(copy)
        return found

    def coming(self) -> dict[str, HostCopy]:
        """Host copies that were wanted and are not complete."""
        return dict(self._coming)

    def surplus(self) -> list[str]:
        """Models whose host copy, complete or begun, must be dropped, since a GPU keeps a copy."""
        return [
            model
            for model, copies in self._gpus.items()
            if (model in self._host or model in self._coming)
            and any(name not in self._leaving for name in copies)
        ]

    def may_reclaim(self, model: str, name: str) -> bool:
        """Whether a model would still have a copy without this instance."""
        return model in self._host or any(other != name for other in self._gpus[model])

    def deployed(self, model: str, copy: GpuCopy) -> None:
        """An instance has all layers."""
        self._gpus[model][copy.name] = copy

    def leaving(self, name: str) -> None:
        """The instance is to be reclaimed, as soon as `may_reclaim` says so."""
        self._leaving.add(name)

    def staying(self, name: str) -> None:
        """It was leaving and serves again."""
        self._leaving.discard(name)

    def reclaimed(self, model: str, name: str) -> None:
        """The instance is gone. Raises ValueError if it had the last copy in memory."""
        if not self.may_reclaim(model, name):
            raise ValueError(f"{name} has the last copy of {model}")
        del self._gpus[model][name]
        self._leaving.discard(name)

    def copied(self, model: str) -> None:
        """The host copy that `wanted` asked for is complete."""
        self._host[model] = self._coming.pop(model).node

    def dropped(self, model: str) -> None:
        """A host copy that was surplus is gone, or no longer being made."""
        self._host.pop(model, None)
        self._coming.pop(model, None)

    def lost(self, model: str, name: str) -> None:
        """The instance has died, whether or not it had a complete copy, or the last one. `wanted`
        says what to make again."""
        self._gpus[model].pop(name, None)
        self._leaving.discard(name)

    def failed(self, host: int) -> None:
        """A host and its GPUs are lost, with host copies that were being made there, or from a GPU
        copy that was the last. `wanted` says what to make again, from SSD if nothing else is left.
        Raises UsageError if it was the last host."""
        self._hosts.remove(host)
        if not self._hosts:
            raise UsageError(f"host {host} was the last one, so that no copy is left")
        for copies in self._gpus.values():
            for name in [name for name, copy in copies.items() if copy.node == host]:
                del copies[name]
                self._leaving.discard(name)
        self._host = {model: node for model, node in self._host.items() if node != host}
        for model, coming in list(self._coming.items()):
            from_gpu = coming.sources[0].medium is Medium.GPU
            if coming.node == host or (from_gpu and not self._gpus[model]):
                del self._coming[model]

    def host_copies(self) -> dict[str, int]:
        """The host of each complete host copy."""
        return dict(self._host)

    def used_bytes(self, host: int) -> int:
        """Bytes of the host's memory that copies take, complete or begun."""
        coming = [(model, copy.node) for model, copy in self._coming.items()]
        held = [*self._host.items(), *coming]
        return sum(self._sizes[model] for model, node in held if node == host)

    def _room(self, model: str) -> int:
        """The host with the fewest bytes of copies. Raises UsageError if the model does not fit."""
        host = min(self._hosts, key=lambda host: (self.used_bytes(host), host))
        if self.used_bytes(host) + self._sizes[model] > self._host_bytes:
            raise UsageError(
                f"a host copy of {model} ({self._sizes[model]} bytes) fits in no host: each has "
                f"{self._host_bytes} bytes for copies, and host {host}, the emptiest, already uses "
                f"{self.used_bytes(host)}; raise the host cache or serve fewer models"
            )
        return host
