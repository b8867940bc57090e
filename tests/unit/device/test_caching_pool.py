"""The prefix cache: what is found is what was computed, counts add up, the oldest goes first."""

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.device.block_hashes import block_hashes
from harness.device.caching_pool import CachedPrefix, CachingPool
from harness.device.prompts import prompt_ids
from harness.engine.block_tables import FIRST_BLOCK, BlockTables
from harness.request import Prompt, Request, Segments
from tests.accounts import audit

BLOCK, BLOCKS = 4, 12


def request(request_id: int, prompt_tokens: int, shared: Segments) -> Request:
    made = Request(request_id, 0.0, "m", prompt_tokens, 8)
    made.shared = shared
    return made


def find(pool: CachingPool, one: Request) -> CachedPrefix:
    prefix = pool.cached_prefix(one)
    assert isinstance(prefix, CachedPrefix)
    return prefix


def serve(pool: CachingPool, one: Request, *, finish: bool = True) -> int:
    """Blocks found; computes all of the prompt, and frees it."""
    prefix = find(pool, one)
    assert pool.admit(one, one.prompt_tokens, prefix)
    one.computed_tokens = one.prompt_tokens
    one.generated_tokens = 8 if finish else 1
    pool.release(one)
    if not finish:
        one.computed_tokens = 0
    return prefix.num_blocks


segments = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=3).map(tuple)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 20), segments), min_size=2, max_size=6))
def test_hashes_are_equal_where_all_tokens_so_far_are(rows: list[tuple[int, Segments]]) -> None:
    made = [request(i, *row) for i, row in enumerate(rows)]
    seen: dict[bytes, list[int]] = {}
    by_ids: dict[tuple[int, ...], bytes] = {}
    for one in made:
        ids = prompt_ids(one, 10**6, seed=3)
        for i, name in enumerate(block_hashes(one, BLOCK)):
            before = ids[: (i + 1) * BLOCK]
            assert seen.setdefault(name, before) == before  # never equal for other tokens
            assert by_ids.setdefault(tuple(before), name) == name  # and always for these


def test_real_prompts_are_known_by_their_ids() -> None:
    one, other = (Request(i, 0.0, "m", 9, 8) for i in range(2))
    one.prompt = Prompt.of("x" * 9, list(range(9)), list(range(1, 10)))
    other.prompt = Prompt.of("x" * 9, [*range(4), 99, *range(5, 9)], list(range(1, 10)))
    first, second = block_hashes(one, BLOCK), block_hashes(other, BLOCK)
    assert len(first) == 2
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_the_last_token_is_always_computed() -> None:
    pool = CachingPool(BLOCKS, BLOCK)
    assert serve(pool, request(0, 8, ((5, 8),))) == 0
    assert serve(pool, request(1, 8, ((5, 8),))) == 1
    assert serve(pool, request(2, 9, ((5, 8),))) == 2
    assert serve(pool, request(3, 9, ())) == 0


def test_blocks_that_are_held_are_found_and_counted_once() -> None:
    pool = CachingPool(BLOCKS, BLOCK)
    one, two = request(0, 9, ((5, 8),)), request(1, 10, ((5, 8),))
    for each in (one, two):
        assert pool.admit(each, each.prompt_tokens, find(pool, each))
    assert (pool.held, pool.used_blocks) == ({0: 3, 1: 3}, 4)
    audit(pool)
    for each in (one, two):
        each.computed_tokens = each.prompt_tokens
        pool.release(each)
        audit(pool)
    assert pool.free_blocks == BLOCKS


def test_the_one_free_for_longest_goes_first_and_of_a_request_the_last() -> None:
    pool = CachingPool(BLOCKS, BLOCK)
    old, new = ((1, 16),), ((2, 16),)
    serve(pool, request(0, 16, old))
    serve(pool, request(1, 16, new))
    filler = Request(9, 0.0, "m", 100, 8)
    assert pool.grow(filler, 6 * BLOCK)  # four blocks never had contents, two more are evicted
    assert find(pool, request(2, 17, old)).num_blocks == 2
    assert find(pool, request(3, 17, new)).num_blocks == 4
    assert pool.grow(filler, 9 * BLOCK)
    assert find(pool, request(4, 17, old)).num_blocks == 0
    assert find(pool, request(5, 17, new)).num_blocks == 3


def test_what_is_found_again_becomes_the_newest() -> None:
    pool = CachingPool(BLOCKS, BLOCK)
    for request_id, stream in enumerate((1, 2, 1)):
        serve(pool, request(request_id, 17, ((stream, 16),)))
    pool.grow(Request(9, 0.0, "m", 100, 8), 8 * BLOCK)
    assert find(pool, request(5, 17, ((2, 16),))).num_blocks == 0
    assert find(pool, request(6, 17, ((1, 16),))).num_blocks == 4


def test_a_preempted_request_finds_its_own_blocks_and_nobody_else_does() -> None:
    pool = CachingPool(BLOCKS, BLOCK)
    one = request(0, 17, ((1, 8),))
    serve(pool, one, finish=False)
    assert find(pool, request(1, 17, ((1, 8),))).num_blocks == 2
    assert find(pool, one).num_blocks == 4
    pool.grow(Request(9, 0.0, "m", 100, 8), (BLOCKS - 3) * BLOCK)  # the last of its own goes
    assert find(pool, one).num_blocks == 3


def test_a_reservation_that_is_given_back_evicts_nothing() -> None:
    pool = CachingPool(BLOCKS, BLOCK)
    serve(pool, request(0, 17, ((1, 16),)))
    decode = Request(1, 0.0, "m", 4, 100, computed_tokens=4, generated_tokens=1)
    assert pool.grow(decode, 5)
    grown = pool.grow_steps([decode], 40)
    assert grown is not None
    assert pool.free_blocks == 1
    decode.computed_tokens += 2
    pool.shrink_to_computed(grown)
    assert find(pool, request(2, 17, ((1, 16),))).num_blocks == 4


steps = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["run", "preempt", "finish"]), st.integers(1, 12)),
    max_size=40,
)


@settings(deadline=None)
@given(steps=steps, rows=st.lists(st.tuples(st.integers(1, 24), segments), min_size=5, max_size=5))
def test_a_request_reads_what_its_own_tokens_wrote(
    steps: list[tuple[int, str, int]], rows: list[tuple[int, Segments]]
) -> None:
    """Every place in the tensors is written with the tokens that belong there, by whomever."""
    pool = CachingPool(BLOCKS, BLOCK)
    tables = BlockTables(pool)
    requests = [request(i, *row) for i, row in enumerate(rows)]
    memory: dict[tuple[int, int], int] = {}  # (place, offset) -> token id
    for index, action, tokens in steps:
        one = requests[index]
        ids = prompt_ids(one, 10**6, seed=0) + [10**6 + index] * 8
        if action != "run":
            if one.request_id in pool.held:
                pool.release(one)
                one.computed_tokens = 0
            continue
        if one.request_id not in pool.held:
            prefix = find(pool, one)
            end = min(one.known_tokens, prefix.num_blocks * BLOCK + tokens)
            if not pool.admit(one, end, prefix):
                continue
            one.computed_tokens = prefix.num_blocks * BLOCK
        else:
            end = min(one.known_tokens, one.computed_tokens + tokens)
            if not pool.grow(one, end):
                continue
            pool.remember(one, end)
        tables.reconcile([one])
        audit(pool)
        audit(tables)
        places = tables.ids[one.request_id]
        assert min(places) >= FIRST_BLOCK
        for position in range(one.computed_tokens, end):
            memory[places[position // BLOCK], position % BLOCK] = ids[position]
        one.computed_tokens = end
        read = [memory[places[p // BLOCK], p % BLOCK] for p in range(end)]
        assert read == ids[:end]
        if end == one.known_tokens and one.generated_tokens < 7:
            one.generated_tokens += 1
