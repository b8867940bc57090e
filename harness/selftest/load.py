"""Conformance tests of the client under load: whether it sends and stamps in time."""

from __future__ import annotations

import numpy as np

from harness.records.evidence import MAX_LAG_S, rate_per_s
from harness.records.run_table import origin
from harness.records.token_log import TokenLog
from harness.selftest.bench import Bench, Found, Skipped, conformance, found
from harness.selftest.script import Play, Script

STALL_S = 1.0
RATE_PER_S, RATE_SPAN_S, MAX_RATE_MISS = 200.0, 60.0, 0.01
LONG_TOKENS, PER_WRITE, WRITE_GAP_S = 100_000, 100, 0.005
CHUNKS, CHUNK_BYTES = 20, 50_000
MAX_BLOCKED = 0.05  # of the stream's time, for which the client did not read
BUSY = 0.01  # of the stream's time, for which the client's thread waits for a core
BURST, IN_FLIGHT = 64, 8
LATE, LATE_STAMPS = "sent in time", "stamped in time"  # rules of the verdict


@conformance(1, "stall", alone=True)
def stall(bench: Bench) -> Found:
    """A server's stop of 1 s shows in P99 TTFT (at least 0.5 s), and later requests are sent
    meanwhile (P99 send lag below 0.5 s).

    The whole server stands still once, as a request comes in: it answers none of those under way
    and takes no new one.
    """
    play = Play(models={"m": Script()}, freeze_at=300, freeze_s=STALL_S)
    run, server = bench.served(play, [(i / RATE_PER_S, "m", 8, 2) for i in range(1000)])
    ttft_s, lag_s = run.number("ttft_s.p99"), run.number("send_lag_s.p99")
    return found(
        f"P99 TTFT {ttft_s:.2f} s, P99 send lag {lag_s * 1e3:.1f} ms",
        {
            "P99 TTFT shows half of the stop": ttft_s >= STALL_S / 2,
            "requests were sent during the stop": lag_s < STALL_S / 2,
            "all 1,000 requests were sent and answered": len(server.answers) == 1000
            and run.summary["num_completed"] == 1000,
        },
    )


@conformance(5, "long stream", alone=True)
def long_stream(bench: Bench) -> Found:
    """A stream of 100,000 tokens at 20,000/s, and chunks of 50,000 characters: the client
    blocks the server for at most 5 % of the time, and P99 of a stamp is at most 5 ms after the
    server's write.

    The stream has 20,000 tokens/s; the server tells for how long the client did not read.
    """
    play = Play(
        models={
            "long": Script(ttft_s=2.0, gap_s=WRITE_GAP_S, events_per_write=PER_WRITE),
            "fat": Script(gap_s=0.02, pad_bytes=CHUNK_BYTES),
        }
    )
    rows = [(0.0, "long", 8, LONG_TOKENS), (0.2, "fat", 8, CHUNKS)]
    run, server = bench.served(play, rows, "model.max_position=200000")
    log = TokenLog.from_table(run.requests)
    sent_s = server.of("long").writes_s[: LONG_TOKENS // PER_WRITE]
    came_s = log.times_s[log.start[0] :][: log.num_tokens[0]][PER_WRITE - 1 :: PER_WRITE]
    if log.num_tokens[0] != LONG_TOKENS:
        return Found(f"{log.num_tokens[0]:,} tokens came", ("100,000 tokens were sent",))
    late_s = came_s - sent_s - np.min(came_s - sent_s)
    p99_s, span_s = float(np.percentile(late_s, 99)), float(sent_s[-1] - sent_s[0])
    blocked = max(server.of(name).blocked_s for name in ("long", "fat")) / span_s
    behind_s = float(np.percentile(server.of("long").lags_s, 99))
    text = (
        f"{LONG_TOKENS / span_s:,.0f} tokens/s, {blocked:.1%} of the time blocked by the client, "
        f"P99 stamp {p99_s * 1e3:.1f} ms after the write; the server was {behind_s * 1e3:.1f} ms "
        "behind its own schedule"
    )
    made = found(
        text,
        {
            "the client blocked the server for at most 5 % of the time": blocked <= MAX_BLOCKED,
            "P99 of a stamp is at most 5 ms after the write": p99_s <= MAX_LAG_S,
            "every token was counted": log.num_tokens.tolist() == [LONG_TOKENS, CHUNKS],
        },
    )
    waited_s = run.summary["receive_lag_s"]["cpu_wait"] or 0.0
    if made.wrong and waited_s > BUSY * span_s:
        raise Skipped(f"this machine is too busy: the client waited {waited_s:.2f} s for a core")
    return made


@conformance(6, "rate", alone=True)
def rate(bench: Bench, span_s: float = RATE_SPAN_S) -> Found:
    """200 requests/s for 60 s: achieved within 1 %, by client and server; P99 send lag at most
    5 ms, or the run is INVALID.

    Poisson arrivals; the rate is also the server's, of requests received.
    """
    num = int(RATE_PER_S * span_s)
    arrivals_s = np.cumsum(np.random.default_rng(0).exponential(1 / RATE_PER_S, num))
    rows = [(float(at), "m", 8, 2) for at in arrivals_s]
    run, server = bench.served(Play(models={"m": Script(ttft_s=0.05)}), rows)
    asked = run.number("asked_rate_per_s")
    received = rate_per_s(np.array([each.received_s for each in server.answers])) or 0.0
    misses = [abs(each / asked - 1) for each in (run.number("achieved_rate_per_s"), received)]
    # A client that was late on a busy machine passes, since it says so, and says nothing else.
    lag_s, broken = run.number("send_lag_s.p99"), run.summary["verdict"].get("rules", [])
    told = LATE in broken and {*broken} <= {LATE, LATE_STAMPS}
    return found(
        f"{received:.2f} of {asked:.2f} requests/s, P99 send lag {lag_s * 1e3:.1f} ms, "
        f"{'INVALID' if run.invalid else 'VALID'}",
        {
            "the rate is the asked one within 1 %": max(misses) <= MAX_RATE_MISS,
            "P99 send lag is at most 5 ms, or the run INVALID for it": lag_s <= MAX_LAG_S or told,
            "every request was received": len(server.answers) == num,
        },
    )


@conformance(14, "concurrency")
def concurrency(bench: Bench) -> Found:
    """64 requests of one moment are open at once, by the server's count; in a closed loop of 8,
    eight are, and the run is labelled so.

    A burst in an open loop, and the same requests in a closed one of IN_FLIGHT. The label is in the
    manifest, and in the line that stands below a run's numbers.
    """
    rows = [(0.0, "m", 8, 2)] * BURST
    opened, burst = bench.served(Play(models={"m": Script(ttft_s=3.0)}), rows)
    play = Play(models={"m": Script(ttft_s=0.5)})
    run, loop = bench.served(play, rows, f"client.concurrency={IN_FLIGHT}")
    return found(
        f"{burst.most_open} of {BURST} requests were open at once by the server's count, and "
        f"{loop.most_open} with client.concurrency={IN_FLIGHT}",
        {
            "all requests of the burst were open at once": burst.most_open == BURST,
            f"a closed loop of {IN_FLIGHT} has as many open": loop.most_open == IN_FLIGHT,
            "all its requests were answered": run.summary["num_completed"] == BURST,
            "it alone is labelled a closed loop": run.manifest["closed_loop"] == IN_FLIGHT
            and f"closed loop, {IN_FLIGHT} in flight" in origin(run.manifest)
            and "closed loop" not in origin(opened.manifest),
        },
    )
