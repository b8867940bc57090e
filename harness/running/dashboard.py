"""`progress=live`: a run on a terminal while it lasts.

Rates, queue, TTFT and TBT of the last ten seconds, and what each instance holds. Drawn inside
`update`, twice a second, so that no thread competes with the client; what one drawing looks at is
bounded, whatever the load. In a simulation all times are simulated.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from harness.cluster import Cluster
from harness.records.numbers import seconds
from harness.records.record import Recorder, TokenRecord
from harness.running.progress import Rates, counts

REDRAW_S = 0.5
WINDOW_S = 10.0
MAX_FOLLOWED = 256  # requests whose tokens are looked at; of more, the first that came
MAX_SAMPLES = 2000  # of TTFT and of TBT in the window
MAX_GAPS = 64  # that one step of many tokens adds to it
KV_CELLS = 20  # of the bar that shows how full an instance's KV memory is
BESIDE = 11  # lines of a terminal that are not rows of instances


@dataclass(frozen=True, slots=True)
class Seen:
    """An instance as it is now. `kv_share`: of its KV memory, in use; None: not known."""

    name: str
    model: str
    state: str
    kv_share: float | None


def instances(cluster: Cluster) -> Iterator[Seen]:
    """All instances of the cluster, of any kind."""
    for each in cluster.instances:
        yield Seen(each.name, each.model.name, "", _used(each.kv.free_blocks, each.kv.num_blocks))
    for pooled in cluster.pool:
        model = pooled.model
        kv = pooled.kv(model) if model is not None else None
        share = None if kv is None else _used(kv.free_blocks, kv.num_blocks)
        loads = "" if pooled.prefetching is None else f"loading {pooled.prefetching}"
        yield Seen(pooled.name, model or "none", loads, share)
    for server in cluster.endpoints:
        yield Seen(server.name, ", ".join(server.models), "", None)
    if cluster.elastic is None:
        return
    for elastic in cluster.elastic.instances:
        here, layers = len(elastic.resident), elastic.model.num_layers
        state = "lost" if elastic.lost is not None else cluster.elastic.role(elastic) or "free"
        some = state if here == layers else f"{state}, {here} of {layers} layers"
        share = _used(elastic.kv.free_pages, elastic.kv.num_pages)
        yield Seen(elastic.name, elastic.model.name, some, share)


def _used(free: int, total: int) -> float:
    return 1 - free / total if total else 0.0


class Window:
    """What the last WINDOW_S seconds had; fed by `look`, as often as one likes."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._coming = iter(recorder.records.values())
        self._next = next(self._coming, None)
        self._followed: dict[int, tuple[TokenRecord, int, float]] = {}  # segments seen, last token
        self.rates = Rates(WINDOW_S)  # of requests sent, requests done, and tokens
        self._num_events = self.num_switches = 0
        self.ttft_s: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)  # (when, value)
        self.tbt_s: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)

    def look(self, now_s: float) -> None:
        recorder = self._recorder
        while self._next is not None and self._next.status != "scheduled":
            if len(self._followed) < MAX_FOLLOWED:
                self._followed[self._next.request.request_id] = self._next, 0, 0.0
            self._next = next(self._coming, None)
        for request_id, seen in list(self._followed.items()):
            self._followed[request_id] = self._tokens(*seen)
            if seen[0].status != "sent":
                del self._followed[request_id]
        events = recorder.events
        new = (events[i]["kind"] == "switch" for i in range(self._num_events, len(events)))
        self.num_switches += sum(new)
        self._num_events = len(events)
        self.rates.look(now_s, recorder.num_sent, recorder.num_done, recorder.num_tokens)
        for samples in (self.ttft_s, self.tbt_s):
            while samples and samples[0][0] < now_s - WINDOW_S:
                samples.popleft()

    def _tokens(
        self, record: TokenRecord, num_seen: int, last_s: float
    ) -> tuple[TokenRecord, int, float]:
        for segment in record.segments[num_seen:]:
            times_s = segment.times_s() if segment.num_tokens > 1 else None
            first_s = segment.start_s + segment.step_s if times_s is None else float(times_s[0])
            end_s = first_s if times_s is None else float(times_s[-1])
            if num_seen == 0:
                self.ttft_s.append((first_s, first_s - record.request.arrival_s))
            else:
                self.tbt_s.append((first_s, first_s - last_s))
            if segment.num_tokens > 1:
                gap = end_s, (end_s - first_s) / (segment.num_tokens - 1)
                self.tbt_s.extend([gap] * min(MAX_GAPS, segment.num_tokens - 1))
            last_s, num_seen = end_s, num_seen + 1
        return record, num_seen, last_s


class Dashboard:
    """A view that `console`, a terminal, shows while it is entered."""

    def __init__(self, title: str, recorder: Recorder, cluster: Cluster, console: Console) -> None:
        self._title, self._recorder, self._cluster = title, recorder, cluster
        self._console = console
        self._window = Window(recorder)
        self._drawn_s = -REDRAW_S
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Dashboard:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, recorder: Recorder, now_s: float) -> None:
        self._window.look(now_s)
        monotonic_s = time.monotonic()
        if monotonic_s - self._drawn_s >= REDRAW_S:
            self._drawn_s = monotonic_s
            self._live.update(self.drawn(now_s), refresh=True)

    def drawn(self, now_s: float) -> Text:
        """The whole dashboard as it is at the loop's time `now_s`: one text, since a table of so
        many rows would take rich longer than a client may be late."""
        lines = [*self._numbers(now_s), "", *self._instances()]
        return Text("\n".join(lines), no_wrap=True, overflow="crop")

    def _numbers(self, now_s: float) -> Iterator[str]:
        window, recorder = self._window, self._recorder
        done, total = recorder.num_done, max(1, len(recorder.records))
        yield f"{self._title}   {now_s:.1f} s   {_bar(done / total, 30)} {done}/{total} done"
        yield ""
        sent, ended, tokens = window.rates.per_s()
        yield f"rate      {sent:.2f} sent/s, {ended:.2f} done/s, {tokens:,.0f} tokens/s"
        yield f"requests  {counts(recorder)}"
        for name, samples in (("TTFT", window.ttft_s), ("TBT", window.tbt_s)):
            yield f"{name:<10}{_spread([value for _, value in samples])}"
        if window.num_switches or self._cluster.pool:
            yield f"switches  {window.num_switches:,}"

    def _instances(self) -> Iterator[str]:
        rows = list(instances(self._cluster))
        name = max((len(seen.name) for seen in rows), default=0) + 2
        model = min(24, max((len(seen.model) for seen in rows), default=0)) + 2
        room = max(1, self._console.size.height - BESIDE)
        if rows:
            yield f"{'':<{name}}{'model':<{model}}{'KV in use':<{KV_CELLS + 6}}"
        for seen in rows[:room]:
            share = seen.kv_share
            full = "" if share is None else f"{_bar(share, KV_CELLS)} {share:4.0%}"
            shown = f"{seen.model[: model - 2]:<{model}}{full:<{KV_CELLS + 6}} {seen.state}"
            yield f"{seen.name:<{name}}{shown}"
        if len(rows) > room:
            yield f"… {len(rows) - room} more"


def _bar(share: float, cells: int) -> str:
    filled = round(min(1.0, max(0.0, share)) * cells)
    return "█" * filled + "░" * (cells - filled)


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "none"
    p50, p90, most = np.percentile(values, (50, 90, 100)).tolist()
    spread = f"P50 {seconds(p50)}, P90 {seconds(p90)}, most {seconds(most)}"
    return f"{spread}, of the last {WINDOW_S:g} s"
