"""The role of an instance, and which way its KV goes (§2.1, Fig. 7)."""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """What an instance does."""

    PREFILL = "prefill"
    DECODE = "decode"
    COLOCATED = "colocated"  # both: no KV crosses the network

    def does(self, work: Role) -> bool:
        """Whether an instance of this role does the work of `work`."""
        return self is work or self is Role.COLOCATED

    @property
    def sends_kv(self) -> bool:
        """Whether its network egress is in use while it serves. It is then a source of parameters
        only if there is no other (§5.1)."""
        return self is Role.PREFILL

    @property
    def loads_live(self) -> bool:
        """Whether it can serve while its layers arrive. A decode cannot: KV would use the same
        ingress (§5.4)."""
        return self is not Role.DECODE
