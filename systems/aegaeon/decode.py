"""Batched decoding-phase scheduling: Algorithm 2 (§4.3), a weighted round-robin over batches.

Each instance has a rotating work list of batches; a batch has requests of one model. A round gives
every batch of the list a turn of q_i seconds (eq. 2 and 3). Knows nothing of prefills.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from mypy_extensions import mypyc_attr

from harness.clock import Loop
from harness.device.block_pool import BlockPool
from harness.pooled.instance import PooledInstance
from harness.request import Batch, Request
from systems.aegaeon.estimate import Estimator
from systems.aegaeon.quota import quotas
from systems.aegaeon.scaling import Scaler


class DecodeBatch:
    """Requests of one model that decode together, oldest first."""

    def __init__(self, model: str, requests: list[Request]) -> None:
        self.model, self.requests = model, requests

    @property
    def context_tokens(self) -> int:
        """Tokens of all requests so far."""
        return sum(request.known_tokens for request in self.requests)


class Turn:
    """One batch's turn in a round. left_s: of the quota; decoding uses it up once `awaited` is
    empty: requests of the batch at the start of the turn whose KV is not here yet; None: not begun.
    """

    # Not a dataclass: their constructors stay Python, and each round makes turns.
    def __init__(self, batch: DecodeBatch, left_s: float) -> None:
        self.batch, self.left_s = batch, left_s
        self.awaited: list[Request] | None = None

    def starts(self, arrived: Sequence[Request]) -> bool:
        """Whether the turn's clock runs: the KV of every request that was in the batch at its start
        has arrived. A request that joins later does not stop the clock."""
        if self.awaited is None:
            self.awaited = self.batch.requests
        if self.awaited:
            waited_for = set(self.batch.requests).difference(arrived)
            self.awaited = [request for request in self.awaited if request in waited_for]
        return not self.awaited


@dataclass(kw_only=True, slots=True)
class RoundLimits:
    """Constants of a round."""

    tbt_s: float  # d of eq. 2 and 3
    max_quota_s: float  # Q_MAX
    min_alpha: float  # eq. 3
    lookahead_tokens: int  # a batch has room for so many more tokens of each request


def fits(batch: DecodeBatch, request: Request, kv: BlockPool, lookahead_tokens: int) -> bool:
    """Line 2: whether the KV of the batch with `request` fits if the batch is alone on the device.

    lookahead_tokens: by how much each request may still grow. kv: blocks of the model's shape.
    """
    grown = [*batch.requests, request]
    blocks = sum([kv.blocks_for(r.known_tokens + lookahead_tokens) for r in grown])
    return blocks <= kv.num_blocks


def first_with_room(
    batches: Iterable[DecodeBatch], request: Request, kv: BlockPool, lookahead_tokens: int
) -> DecodeBatch | None:
    """The first batch of the request's model that has room for it; None if there is none."""
    for batch in batches:
        if batch.model == request.model and fits(batch, request, kv, lookahead_tokens):
            return batch
    return None


def grouped(batches: Sequence[DecodeBatch]) -> list[DecodeBatch]:
    """Line 6: batches of one model side by side, models by their first batch in the list."""
    models = list(dict.fromkeys(batch.model for batch in batches))
    return sorted(batches, key=lambda batch: models.index(batch.model))


def round_quotas(
    batches: Sequence[DecodeBatch], estimator: Estimator, limits: RoundLimits
) -> list[float]:
    """Line 7: the quota of each batch in seconds.

    c is the sum of switching times over models, since batches of one model need no switch.
    """
    step_s = [estimator.decode_s(b.model, len(b.requests), b.context_tokens) for b in batches]
    switching_s = sum(estimator.switch_s(model) for model in {b.model for b in batches})
    found = quotas(
        step_s,
        switching_s=switching_s,
        tbt_s=limits.tbt_s,
        max_quota_s=limits.max_quota_s,
        min_alpha=limits.min_alpha,
    )
    return found.turns_s


@mypyc_attr(allow_interpreted_subclasses=True)
class Decoder:
    """The work list of one instance, and its execution.

    reorder: line 6, at the start of a round. done: takes each request that has finished; again: one
    whose KV is to be computed again, for it has no room.
    prefills_first: on an instance that also prefills, awaited before any decoding; else None.
    """

    def __init__(
        self,
        scaler: Scaler,
        loop: Loop,
        limits: RoundLimits,
        estimator: Estimator,
        *,
        reorder: Callable[[Sequence[DecodeBatch]], list[DecodeBatch]],
        done: Callable[[Request], None],
        again: Callable[[Request], None],
    ) -> None:
        self.scaler = scaler
        self.instance: PooledInstance = scaler.instance
        self.work_list: list[DecodeBatch] = []  # rotating: the batch whose turn ends goes last
        self._of_model: dict[str, dict[DecodeBatch, None]] = {}  # the same, in the same order
        self._turns: list[Turn] = []  # of this round
        self._turn = 0  # the running one
        self._loop, self._limits, self._estimator = loop, limits, estimator
        self._reorder, self._done, self._again = reorder, done, again
        self.prefills_first: Callable[[], Awaitable[None]] | None = None

    @property
    def held(self) -> list[Request]:
        """All requests of the work list."""
        return [request for batch in self.work_list for request in batch.requests]

    def joinable(self, request: Request, but: DecodeBatch | None = None) -> DecodeBatch | None:
        """The first batch of the request's model that has room for it, other than `but`; None if
        there is none."""
        of_model = self._of_model.get(request.model)
        if not of_model:
            return None
        same = [batch for batch in of_model if batch is not but]
        kv = self.instance.kv(request.model)
        return first_with_room(same, request, kv, self._limits.lookahead_tokens)

    def add(self, request: Request, batch: DecodeBatch | None) -> None:
        """Adds the request to `batch`, or to a new batch at the end of the work list if None.

        If it is the batch's turn, the request takes part in it.
        """
        its_turn = self._turn < len(self._turns) and self._turns[self._turn].batch is batch
        if its_turn or len(self.work_list) <= 1:  # else the running turn does not change
            self.scaler.wake.set()
        if batch is None:
            batch = DecodeBatch(request.model, [])
            self.work_list.append(batch)
            self._of_model.setdefault(batch.model, {})[batch] = None
        batch.requests.append(request)

    def forget(self, request: Request) -> None:
        """The request leaves its batch: its KV, or this instance, is lost."""
        batch = next(batch for batch in self.work_list if request in batch.requests)
        batch.requests = [other for other in batch.requests if other is not request]
        self._shrunk(batch)
        self.scaler.forget(request)

    async def serve(self) -> None:
        """Runs Algorithm 2 from line 3 on; does not return."""
        await self._may_decode()
        while True:  # line 4
            while not self.work_list:
                await self._loop.wait(self.scaler.wake)
                await self._may_decode()
            self.work_list = self._reorder(self.work_list)  # line 6
            self._of_model = {}
            for batch in self.work_list:
                self._of_model.setdefault(batch.model, {})[batch] = None
            quotas_s = round_quotas(self.work_list, self._estimator, self._limits)  # line 7
            each = zip(self.work_list, quotas_s, strict=True)
            self._turns = [Turn(batch, left_s) for batch, left_s in each]  # line 8
            passed_over = True
            for k, turn in enumerate(self._turns):  # line 9
                self._turn = k
                passed_over &= not await self._decode(turn)  # line 11
                self._rotate(turn.batch)
            # A batch that is new has its turn in the next round.
            if passed_over and {t.batch for t in self._turns}.issuperset(self.work_list):
                await self._make_way()

    async def _decode(self, turn: Turn) -> bool:
        """Line 11: decodes the turn's batch for q_i seconds, or until its last request ends. False:
        it is passed over, for the KV of another batch cannot leave; that one's turn will come."""
        while turn.batch.requests and turn.left_s > 0:
            stepped = await self._step(turn)
            if self.scaler.crowded:
                return False
            if not stepped:
                await self._loop.wait(self.scaler.wake)
            await self._may_decode()
        return True

    async def _make_way(self) -> None:
        """No batch could have its turn: KV of several lies here, and host memory is full. The
        newest is computed again."""
        newest = self.scaler.newest()
        if newest is None:
            await self._loop.wait(self.scaler.wake)
        else:
            self.forget(newest)
            self._again(newest)
        await self._may_decode()

    async def _may_decode(self) -> None:
        """Called before each look at the work list. `wake` is set by what happens after this."""
        self.scaler.wake.clear()
        if self.prefills_first is not None:
            await self.prefills_first()

    async def _step(self, turn: Turn) -> bool:
        """Continues the running turn. False if no request can decode yet; `wake` is set when to try
        again."""
        batch, scaler = turn.batch, self.scaler
        in_place = scaler.switch_to(batch.model, keep=batch.requests)
        if scaler.crowded:
            return False
        overflow = scaler.bring_in(batch.requests)
        if overflow is not None:
            self._split(batch, overflow)
        if in_place:
            scaler.prefetch(self._upcoming())
        arrived = scaler.ready(batch.requests) if in_place else []
        charged = turn.starts(arrived)
        ready = self._grown(batch, arrived)
        if not ready:
            return False
        alone = len(self.work_list) == 1  # no round to share: until something arrives
        begun_s = self._loop.now
        await self.instance.execute(
            Batch(decodes=ready), until=inf if alone else begun_s + turn.left_s, stop=scaler.wake
        )
        if charged:
            turn.left_s -= self._loop.now - begun_s
        self._drop_finished(batch)
        return True

    def _rotate(self, batch: DecodeBatch) -> None:
        """Moves the batch to the end of the work list after its turn, if it has requests left."""
        if batch.requests:
            self.work_list.remove(batch)
            self.work_list.append(batch)
            same = self._of_model[batch.model]
            del same[batch]
            same[batch] = None

    def _drop_finished(self, batch: DecodeBatch) -> None:
        finished = [request for request in batch.requests if request.finished]
        if finished:
            batch.requests = [request for request in batch.requests if not request.finished]
        self._shrunk(batch)
        for request in finished:
            self._done(request)

    def _shrunk(self, batch: DecodeBatch) -> None:
        """The batch leaves the work list if it has no request left."""
        if not batch.requests:
            self.work_list.remove(batch)
            del self._of_model[batch.model][batch]

    def _upcoming(self) -> Iterator[str]:
        """The models of the turns left in this round and, in the paper's variant, of the next."""
        for turn in range(self._turn, len(self._turns)):
            yield self._turns[turn].batch.model
        if not self.scaler.prefetch_once:
            for batch in self.work_list:
                yield batch.model

    def _grown(self, batch: DecodeBatch, ready: list[Request]) -> list[Request]:
        """The requests of `ready` that have room for one more token.

        If some have no room and no room is about to come free, the newest request leaves the
        batch: its KV is swapped out, and it continues in another batch of the model. Where host
        memory is full its KV is computed again.
        """
        kv = self.instance.kv(batch.model)
        grown = [r for r in ready if kv.grow(r, r.computed_tokens + 1)]
        if len(grown) == len(ready) or self.scaler.room_is_coming():
            return grown
        newest = ready[-1]
        if self.instance.claim([newest]):
            self.scaler.save(newest)
            self.scaler.room_is_coming()
            self._split(batch, newest)
        else:
            self.forget(newest)
            self._again(newest)
        return [r for r in grown if r is not newest]

    def _split(self, batch: DecodeBatch, request: Request) -> None:
        """`batch` has outgrown the device: `request` joins another batch of the model, or makes a
        new one, "if a single batch requires more KV cache space than is available" (§4.3)."""
        assert len(batch.requests) > 1, f"request {request.request_id} alone does not fit"
        batch.requests.remove(request)
        self.add(request, self.joinable(request, but=batch))


def first_joinable(
    decoders: Iterable[Decoder], request: Request
) -> tuple[Decoder, DecodeBatch] | None:
    """Line 2: the first batch of the request's model with room, instance by instance, and whose it
    is; None: there is none."""
    for decoder in decoders:
        batch = decoder.joinable(request)
        if batch is not None:
            return decoder, batch
    return None
