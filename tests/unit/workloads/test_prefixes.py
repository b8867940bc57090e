"""Which prompts begin alike: from hash ids or made, in schedules, token ids, bodies and results."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.device.prompts import prompt_ids
from harness.drivers.body import chat_body, completion_body
from harness.errors import UsageError
from harness.request import Request
from harness.schedule import Schedule, Synthetic
from tests.running import model_spec, run_here
from tests.unit.workloads.conftest import Make

ROWS = (
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]},
    {"timestamp": 1000, "input_length": 700, "output_length": 5, "hash_ids": [7, 3]},
    {"timestamp": 2000, "input_length": 20, "output_length": 5, "hash_ids": [4]},
)


@pytest.fixture
def mooncake(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return f"workload.path={path}"


def ids(request: Request) -> list[int]:
    return prompt_ids(request, 1000, seed=0)


def test_hash_ids_of_mooncake_are_what_prompts_share(
    mooncake: str, tmp_path: Path, make_bare: Make
) -> None:
    schedule = make_bare("trace", mooncake)
    first, second, third = schedule.requests()
    assert first.shared == ((7, 512), (8, 512), (9, 512))
    assert ids(first)[:512] == ids(second)[:512]
    assert ids(first)[512:520] != ids(second)[512:520]
    assert [len(ids(r)) for r in (first, second, third)] == [1100, 700, 20]
    schedule.save(tmp_path / "s.parquet")
    again = Schedule.load(tmp_path / "s.parquet")
    assert again.shared == schedule.shared
    assert again.sha256() == schedule.sha256()
    apart = make_bare("trace", mooncake, "workload.prefixes.trace=false")
    assert apart.shared is None
    assert apart.sha256() != schedule.sha256()


def test_scaled_prompts_share_in_proportion(mooncake: str, make_bare: Make) -> None:
    schedule = make_bare("trace", mooncake, "workload.lengths.scale_prompt=0.25")
    first, second, _ = schedule.requests()
    assert first.shared == ((7, 128), (8, 128), (9, 128))
    assert ids(first)[:128] == ids(second)[:128]
    assert ids(first)[128:136] != ids(second)[128:136]


def test_distinct_prompts_come_by_turns(mooncake: str, make_bare: Make) -> None:
    schedule = make_bare("trace", mooncake, "workload.prefixes.distinct_prompts=2")
    first, second, third = schedule.requests()
    assert ids(first)[:20] == ids(third)
    assert ids(first)[:20] != ids(second)[:20]
    assert Synthetic.PREFIXES_MADE in schedule.provenance.synthetic


def test_system_prompts_begin_each_prompt_and_lengths_stay(mooncake: str, make_bare: Make) -> None:
    words = ("workload.prefixes.system_prompts=1", "workload.prefixes.system_prompt_tokens=300")
    first, second, third = make_bare("trace", mooncake, *words).requests()
    assert ids(first)[:300] == ids(second)[:300]
    assert ids(first)[300:310] != ids(second)[300:310]
    assert ids(third) == ids(first)[:20]


DOCUMENT = "workload.document={tokens: 500, question_tokens: 20, every: 2}"


def test_a_document_is_asked_about_by_one_request_in_so_many(
    mooncake: str, make_bare: Make
) -> None:
    """Its tokens are the same each time, the question's are not; other prompts stay."""
    words = (mooncake, "workload.prefixes.trace=false", DOCUMENT)
    schedule = make_bare("trace", *words)
    first, other, second = schedule.requests()
    assert [r.prompt_tokens for r in (first, other, second)] == [520, 700, 520]
    assert [r.output_tokens for r in (first, other, second)] == [5, 5, 5]
    assert ids(first)[:500] == ids(second)[:500]
    assert ids(first)[500:] != ids(second)[500:]
    assert not other.shared
    assert Synthetic.PREFIXES_MADE in schedule.provenance.synthetic


def test_a_document_beside_other_prefixes_is_refused(mooncake: str, make_bare: Make) -> None:
    with pytest.raises(UsageError, match=r"leave out workload\.document"):
        make_bare("trace", mooncake, DOCUMENT)
    with pytest.raises(UsageError, match=r"workload\.document\.every=0 must be at least 1"):
        make_bare("trace", mooncake, DOCUMENT.replace("every: 2", "every: 0"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("distinct_prompts=0",), "workload.prefixes.distinct_prompts=0 must be at least 1"),
        (("system_prompts=2",), "system_prompts and system_prompt_tokens go together"),
        (
            ("system_prompts=2", "system_prompt_tokens=9", "distinct_prompts=3"),
            "distinct_prompts or system_prompts, not both",
        ),
        (("system_prompts=1", "system_prompt_tokens=1100"), "the longest has 1100 tokens"),
    ],
)
def test_what_cannot_be_shared_is_said(
    words: tuple[str, ...], said: str, mooncake: str, make_bare: Make
) -> None:
    with pytest.raises(UsageError, match=said):
        make_bare("trace", mooncake, *(f"workload.prefixes.{word}" for word in words))


def test_random_prompts_are_what_they_were_where_nothing_is_shared() -> None:
    plain, empty = (Request(3, 0.0, "m", 40, 1, shared=shared) for shared in (None, ()))
    assert ids(plain) == ids(empty)


def test_http_bodies_share_the_same_tokens_and_words() -> None:
    made = [Request(i, 0.0, "m", 30, 1, shared=((5, 20),)) for i in range(2)]
    bodies = [
        json.loads(completion_body({"m": model_spec("tiny-llama")}, None, 0, {})(r)) for r in made
    ]
    assert bodies[0]["prompt"][:20] == bodies[1]["prompt"][:20]
    assert bodies[0]["prompt"][20:] != bodies[1]["prompt"][20:]
    chats = [json.loads(chat_body(None, 0, {})(r))["messages"][0]["content"] for r in made]
    first, second = (text.split() for text in chats)
    assert first[:20] == second[:20]
    assert first[20:] != second[20:]


@pytest.mark.parametrize("caching", [True, False])
def test_a_run_records_what_was_found(caching: bool, mooncake: str, tmp_path: Path) -> None:
    run_here(
        tmp_path / "run", "+system=vllm", "+workload=trace", mooncake, "engine=sim",
        "hardware=a100x1", "model=llama2-7b", "figure=null",
        f"system.enable_prefix_caching={str(caching).lower()}",
    )  # fmt: skip
    found = pq.read_table(tmp_path / "run" / "requests.parquet")["cached_tokens"].to_pylist()
    assert found == ([0, 512, 0] if caching else [None] * 3)
