"""The token log as flat arrays, and every latency that is read off it.

Every convention comes from this one log and carries its own name; peers give "ITL" and "TPOT"
four meanings. Latencies are anchored on the scheduled arrival, so a client that falls behind
cannot hide the wait (no coordinated omission); send-anchored values stand beside them.
Knows nothing of SLOs or files. Times are seconds since the schedule's start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class TokenLog:
    """One entry per request, in the table's order; `times_s` holds all tokens, request by request.

    The tokens of request i are times_s[start[i] : start[i] + num_tokens[i]].
    """

    arrival_s: Floats
    sent_s: Floats  # nan: never sent
    asked_tokens: Ints
    num_tokens: Ints  # produced
    start: Ints
    times_s: Floats
    chunk_tokens: Ints  # of every streamed chunk, request by request
    status: npt.NDArray[np.str_]
    models: list[str]  # the names that requests carry, as they first appear
    of_model: Ints  # each request's place in `models`

    @staticmethod
    def from_table(table: pa.Table) -> TokenLog:
        """Reads a table of `harness.records.run_folder.requests_table`."""
        num_tokens = ints(pc.list_value_length(table["token_times_s"]))
        model = table["model"].combine_chunks().dictionary_encode()
        return TokenLog(
            arrival_s=floats(table["arrival_s"]),
            sent_s=floats(table["sent_s"]),
            asked_tokens=ints(table["output_tokens"]),
            num_tokens=num_tokens,
            start=np.cumsum(num_tokens) - num_tokens,
            times_s=floats(pc.list_flatten(table["token_times_s"])),
            chunk_tokens=ints(pc.list_flatten(table["chunk_tokens"])),
            status=np.array(table["status"].to_pylist(), dtype=np.str_),
            models=model.dictionary.to_pylist(),
            of_model=ints(model.indices),
        )

    def of(self, rows: Bools) -> TokenLog:
        """The log of those requests alone for which `rows` is true."""
        of_token = np.repeat(rows, self.num_tokens)
        first_of_chunk = np.cumsum(self.chunk_tokens) - self.chunk_tokens
        num_tokens = self.num_tokens[rows]
        of_request = ("arrival_s", "sent_s", "asked_tokens", "status", "of_model")
        return replace(
            self,
            **{name: getattr(self, name)[rows] for name in of_request},
            num_tokens=num_tokens,
            start=np.cumsum(num_tokens) - num_tokens,
            times_s=self.times_s[of_token],
            chunk_tokens=self.chunk_tokens[of_token[first_of_chunk]],
        )

    def as_ended(self) -> TokenLog:
        """The log as if completed requests had asked for no more than they got."""
        had = np.minimum(self.asked_tokens, self.num_tokens)
        return replace(self, asked_tokens=np.where(self.completed, had, self.asked_tokens))

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def completed(self) -> Bools:
        return np.equal(self.status, "completed")

    @property
    def failed(self) -> Bools:
        """Which requests failed, with an error or by a time-out."""
        return np.isin(self.status, ("failed", "timeout"))

    @property
    def duration_s(self) -> float:
        """The time from the first scheduled arrival to the last token of any request, the drain
        included."""
        last_s = max(np.max(self.times_s, initial=0.0), self.arrival_s.max())
        return float(last_s) - float(self.arrival_s.min())

    @property
    def started(self) -> Bools:
        return self.num_tokens > 0

    @property
    def first_s(self) -> Floats:
        """Time of each request's first token; nan: none came."""
        return self._token(self.start)

    @property
    def last_s(self) -> Floats:
        """Time of each request's last token so far; nan: none came."""
        return self._token(self.start + self.num_tokens - 1)

    @property
    def ttft_s(self) -> Floats:
        """First token − scheduled arrival; nan without a token."""
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> Floats:
        """(last − first token) / (n − 1), of completed requests; nan for others, and for fewer than
        two tokens."""
        span_s = np.where(self.completed, self.last_s - self.first_s, np.nan)
        return _divide(span_s, self.num_tokens - 1)

    @property
    def e2e_s(self) -> Floats:
        """Last token − scheduled arrival, of completed requests; nan for others."""
        return np.where(self.completed, self.last_s - self.arrival_s, np.nan)

    @property
    def tpot_incl_first_s(self) -> Floats:
        """e2e / n, of completed requests; nan for others."""
        return _divide(self.e2e_s, self.num_tokens)

    @property
    def send_lag_s(self) -> Floats:
        """Sent − scheduled arrival; nan: never sent."""
        return self.sent_s - self.arrival_s

    def rank(self) -> Ints:
        """Each token's place in its request: 0, 1, …"""
        rank = np.arange(len(self.times_s))
        rank -= np.repeat(self.start, self.num_tokens)
        return rank

    def largest(self, values: Floats, absent: float) -> Floats:
        """The largest of each request's `values`, one a token; `absent`: it has no token."""
        found = np.full(len(self), absent)
        if len(values):
            found[self.started] = np.maximum.reduceat(values, self.start[self.started])
        return found

    @property
    def tbt_counts(self) -> Ints:
        """How many gaps between tokens each request has."""
        return np.maximum(self.num_tokens - 1, 0)

    @property
    def token_chunks(self) -> bool:
        """Whether each chunk has one token, so that gaps of both kinds are the same."""
        return len(self.chunk_tokens) == len(self.times_s)

    def tbt_s(self) -> Floats:
        """Gaps between consecutive tokens of a request, pooled: 0 between tokens of one chunk."""
        return _gaps(self.times_s, self.start[self.started])

    def tbt_s_by_model(self) -> list[Floats]:
        """The gaps of each of `models`."""
        of_gap = np.repeat(self.of_model, self.tbt_counts)
        order = np.argsort(of_gap, kind="stable")
        counts = np.bincount(of_gap, minlength=len(self.models))
        return np.split(self.tbt_s()[order], np.cumsum(counts)[:-1])

    def tbt_quantile_s(self, share: float) -> Floats:
        """The quantile of each request's own gaps, linear between order statistics; nan for fewer
        than two tokens."""
        gaps_s, counts = self.tbt_s(), self.tbt_counts
        ordered_s = gaps_s[np.lexsort((gaps_s, np.repeat(np.arange(len(self)), counts)))]
        some = counts > 0
        rank = share * (counts[some] - 1)
        low = (np.cumsum(counts) - counts)[some] + rank.astype(np.int64)
        high = np.minimum(low + 1, np.cumsum(counts)[some] - 1)
        found = np.full(len(self), np.nan)
        found[some] = ordered_s[low] + rank % 1 * (ordered_s[high] - ordered_s[low])
        return found

    def itl_chunk_s(self) -> Floats:
        """Gaps between consecutive streamed chunks of a request, pooled."""
        first_of_chunk, firsts = self._chunks()
        return _gaps(self.times_s[first_of_chunk], firsts)

    def itl_chunk_counts(self) -> Ints:
        """How many gaps between chunks each request has."""
        first_of_chunk, firsts = self._chunks()
        found = np.zeros(len(self), np.int64)
        found[self.started] = np.diff(firsts, append=len(first_of_chunk)) - 1
        return found

    def _chunks(self) -> tuple[Ints, Ints]:
        """The place of each chunk's first token, and of each started request's first chunk."""
        first_of_chunk = np.cumsum(self.chunk_tokens) - self.chunk_tokens
        return first_of_chunk, np.searchsorted(first_of_chunk, self.start[self.started])

    def _token(self, index: Ints) -> Floats:
        found = np.full(len(self), np.nan)
        found[self.started] = self.times_s[index[self.started]]
        return found


def floats(column: pa.Array | pa.ChunkedArray) -> Floats:
    return np.asarray(column.to_numpy(), np.float64)


def ints(column: pa.Array | pa.ChunkedArray) -> Ints:
    return np.asarray(column.to_numpy(), np.int64)


def _divide(values_s: Floats, counts: Ints) -> Floats:
    """nan where the count is not above 0."""
    quotient = np.full(len(values_s), np.nan)
    np.divide(values_s, counts, out=quotient, where=counts > 0)
    return quotient


def _gaps(times_s: Floats, firsts: Ints) -> Floats:
    """`firsts`: where each request's times begin."""
    return np.delete(np.diff(times_s), firsts[1:] - 1)
