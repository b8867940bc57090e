"""Who gets how much of the links: max–min fair within a class, strict between classes.

Water-filling (Bertsekas and Gallager, Data Networks, §6.5.2): all flows of a class grow together
until a link is full; its flows stop there, the others grow on. The next class fills what is left.
Pure arithmetic: knows nothing of time or of how much a flow has to send.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from harness.device.topology import Link

# A share that grew by less than this (relatively) since it was queued is the same share, rounded.
ROUNDING = 1e-12


def fair_rates(flows: Sequence[tuple[int, Sequence[Link]]]) -> list[float]:
    """The rate in bytes/s of each flow, given as (priority, the ≥ 1 links that it crosses).

    A higher priority takes all it can before a lower one gets any. A flow that names a link twice
    crosses it twice, at its one rate.
    """
    if len(flows) == 1:
        links = flows[0][1]
        return [min(link.bytes_per_s / links.count(link) for link in links)]
    left = {link: link.bytes_per_s for _, links in flows for link in links}
    rates = [0.0] * len(flows)
    for priority in sorted({priority for priority, _ in flows}, reverse=True):
        members = {i: links for i, (own, links) in enumerate(flows) if own == priority}
        _fill(members, left, rates)
    return rates


def _fill(members: dict[int, Sequence[Link]], left: dict[Link, float], rates: list[float]) -> None:
    """Gives `members` their rates, out of `left`.

    The heap orders links by equal share. A share only grows as other links fill first, so an
    entry that is out of date is too early, never too late: it is queued again.
    """
    growing: dict[Link, dict[int, None]] = {}
    crossings: dict[Link, int] = defaultdict(int)
    for i, links in members.items():
        for link in links:
            growing.setdefault(link, {})[i] = None
            crossings[link] += 1
    heap = [(left[link] / crossings[link], order, link) for order, link in enumerate(growing)]
    heapify(heap)
    while heap:
        queued_share, order, link = heappop(heap)
        on = growing[link]
        if not on:
            continue
        share = left[link] / crossings[link]
        if share > queued_share * (1 + ROUNDING):
            heappush(heap, (share, order, link))
            continue
        for i in list(on):
            rates[i] = share
            for crossed in members[i]:
                left[crossed] = max(0.0, left[crossed] - share)
                crossings[crossed] -= 1
                growing[crossed].pop(i, None)
        left[link] = 0.0
