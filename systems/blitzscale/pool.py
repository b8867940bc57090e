"""The global parameter pool (§5.3, A.1): which GPUs and hosts have a copy of each model.

Invariant: every model has a whole copy in the memory of some GPU or host. A model has at most one
host copy, and none while a GPU has a copy that stays. Hosts share the copies evenly by bytes. A
host copy is whole; the paper does not say whether its copies are sharded.

The pool is bookkeeping: `wanted` and `surplus` say what to do, and other methods record what has
happened to host copies. Which GPUs have copies is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from harness.errors import UsageError
from systems.blitzscale.chains import Medium, Source


@dataclass(slots=True, frozen=True)
class GpuCopy:
    """An instance that has all layers of a model."""

    name: str
    node: int
    devices: tuple[int, ...]
    stays: bool = True  # it is not to be reclaimed as soon as `may_reclaim` says so


@dataclass(slots=True, frozen=True)
class HostCopy:
    """A copy to be made in the memory of `node`, from one of `sources`."""

    model: str
    node: int
    sources: tuple[Source, ...]


GpuCopies = Callable[[str], Iterable[GpuCopy]]


class ParameterPool:
    """The copies of all models of a run.

    sizes: {model: bytes}. host_bytes: memory of each host for copies. gpus: gives a model's copies
    in GPUs now. Every model begins as a host copy, the largest first, on the host
    with the fewest bytes. Raises UsageError if they do not fit.
    """

    def __init__(
        self, sizes: Mapping[str, int], hosts: Iterable[int], host_bytes: int, gpus: GpuCopies
    ) -> None:
        largest_first = sorted(sizes, key=lambda model: (-sizes[model], model))
        self._sizes = {model: sizes[model] for model in largest_first}
        self._hosts, self._host_bytes = sorted(hosts), host_bytes
        self._gpu_copies = gpus
        self.host_copies: dict[str, int] = {}  # {model: host of its complete copy}
        self.coming: dict[str, HostCopy] = {}  # that are being made
        self.changed = True  # by what was told; whoever looks sets it back
        for model in self._sizes:
            self.host_copies[model] = self._emptiest(model)

    def sources(self, model: str) -> list[Source]:
        """The copies that a scale-up can read: GPU copies, else the host copy, else all SSDs."""
        copies = sorted(self._gpu_copies(model), key=lambda copy: copy.name)
        if copies:
            return [Source(medium=Medium.GPU, node=c.node, devices=c.devices) for c in copies]
        if model in self.host_copies:
            return [Source(medium=Medium.HOST, node=self.host_copies[model])]
        return [Source(medium=Medium.SSD, node=node) for node in self._hosts]

    def wanted(self) -> list[HostCopy]:
        """Host copies to begin now: of models that no GPU keeps, and that no host has or is being
        given. The returned copies count as begun."""
        found = []
        for model in self._sizes:
            if not (self._has_host_copy(model) or self._stays(model)):
                copy = HostCopy(model, self._emptiest(model), tuple(self.sources(model)))
                self.coming[model] = copy
                found.append(copy)
        return found

    def surplus(self) -> list[str]:
        """Models whose host copy, complete or begun, must be dropped, since a GPU keeps a copy."""
        return [model for model in self._sizes if self._has_host_copy(model) and self._stays(model)]

    def may_reclaim(self, model: str, name: str) -> bool:
        """Whether a model would still have a copy without this instance."""
        others = (copy for copy in self._gpu_copies(model) if copy.name != name)
        return model in self.host_copies or any(others)

    def copied(self, model: str) -> None:
        """The host copy that `wanted` asked for is complete."""
        self.host_copies[model] = self.coming.pop(model).node
        self.changed = True

    def dropped(self, model: str) -> None:
        """A host copy that was surplus is gone, or no longer being made."""
        self.host_copies.pop(model, None)
        self.coming.pop(model, None)
        self.changed = True

    def failed(self, host: int) -> None:
        """A host and its GPUs are lost, with host copies that were being made there, or from a GPU
        copy that was the last. `wanted` says what to make again, from SSD if nothing else is left.
        Raises UsageError if it was the last host."""
        self.changed = True
        self._hosts.remove(host)
        if not self._hosts:
            raise UsageError(f"host {host} was the last one, so that no copy is left")
        self.host_copies = {model: at for model, at in self.host_copies.items() if at != host}
        for model, copy in list(self.coming.items()):
            from_gpu = copy.sources[0].medium is Medium.GPU
            if copy.node == host or (from_gpu and not any(self._gpu_copies(model))):
                del self.coming[model]

    def used_bytes(self, host: int) -> int:
        """Bytes of the host's memory that copies take, complete or begun."""
        at = self.host_copies | {model: copy.node for model, copy in self.coming.items()}
        return sum(self._sizes[model] for model, node in at.items() if node == host)

    def _has_host_copy(self, model: str) -> bool:
        return model in self.host_copies or model in self.coming

    def _stays(self, model: str) -> bool:
        return any(copy.stays for copy in self._gpu_copies(model))

    def _emptiest(self, model: str) -> int:
        """The host with the fewest bytes of copies. Raises UsageError if the model does not fit."""
        host = min(self._hosts, key=self.used_bytes)
        if self.used_bytes(host) + self._sizes[model] > self._host_bytes:
            raise UsageError(
                f"a host copy of {model} ({self._sizes[model]} bytes) fits in no host: each has "
                f"{self._host_bytes} bytes for copies, and host {host}, the emptiest, already uses "
                f"{self.used_bytes(host)}; raise the host cache or serve fewer models"
            )
        return host
