"""Which of the spare GPUs a scale-up takes: "a subset of GPUs in targets" (§5.1).

The paper does not say which. Here those that parameters reach fastest: first GPUs that NVLink joins
with a copy, or on a host with a copy; then GPUs on a leaf with a copy. Among equals, slots of the
scale-up domain that has the most of them: they load as one chain node, over all their NICs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from systems.blitzscale.chains import Medium, Source
from systems.blitzscale.fabric import Fabric

Slot = tuple[int, ...]  # the GPUs of one instance to be


def chosen(
    fabric: Fabric, sources: Sequence[Source], slots: Sequence[Slot], count: int
) -> list[Slot]:
    """Up to `count` of `slots`, the best first. sources: copies of the parameters."""
    copies = [source for source in sources if source.medium is Medium.GPU]
    domains = {domain for copy in copies for domain in fabric.domains(copy.devices)}
    hosts = {source.node for source in sources if source.medium is Medium.HOST}
    leaves = {fabric.of_node(s.node)[0].leaf for s in sources if s.medium is not Medium.SSD}
    rooms = Counter(fabric.devices[slot[0]].domain for slot in slots)

    def rank(slot: Slot) -> tuple[bool, bool, int, int, Slot]:
        first = fabric.devices[slot[0]]
        beside = first.domain in domains or first.node in hosts
        return not beside, first.leaf not in leaves, -rooms[first.domain], first.domain, slot

    return sorted(slots, key=rank)[:count]
