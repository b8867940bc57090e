"""Real prompts: from a dataset's rows to a schedule that every engine replays alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers

from harness.errors import UsageError
from harness.request import Prompt
from harness.running.context_limit import fit_context
from harness.schedule import Schedule
from tests.unit.workloads.conftest import Make
from tests.unit.workloads.texts import (
    ANSWERS,
    PAIR,
    QUESTIONS,
    conversations,
    pairs,
    write_json,
    write_jsonl,
    write_parquet,
)
from workloads.__main__ import main

Writer = Callable[[Path, list[dict[str, Any]]], Path]


TURNS = "workload.text.prompt=conversations"


@pytest.mark.parametrize(
    ("write", "name"),
    [(write_json, "a.json"), (write_jsonl, "a.jsonl"), (write_parquet, "a.parquet")],
)
def test_conversations_become_prompts_and_output_lengths(
    make_hf: Callable[..., Schedule], tmp_path: Path, tokenizer: Path, write: Writer, name: str
) -> None:
    schedule = make_hf(write(tmp_path / name, conversations()), TURNS)
    library = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    assert schedule.prompts is not None
    assert [prompt.text for prompt in schedule.prompts] == QUESTIONS
    for prompt, num_tokens, question in zip(
        schedule.prompts, schedule.prompt_tokens, QUESTIONS, strict=True
    ):
        assert prompt.ids.tolist() == library.encode(question).ids
        assert prompt.ids[0] == 0  # the special token that the model begins with
        assert len(prompt.ids) == num_tokens
        assert library.decode(prompt.ids.tolist()) == question
    expected = [len(library.encode(each, add_special_tokens=False).ids) for each in ANSWERS]
    assert schedule.output_tokens.tolist() == expected
    about = schedule.provenance
    assert about.synthetic == ["arrivals drawn"]
    assert (about.source, about.file) == (name, "local dataset")
    assert len(about.source_sha256) == 64
    assert about.steps[0] == "first 4 rows with prompt and answer, of 6 read"
    assert about.steps[1].startswith(f"tokenised by {tokenizer}, sha256 ")


def test_columns_of_texts_and_a_folder_of_files(
    make_hf: Callable[..., Schedule], tmp_path: Path
) -> None:
    rows = pairs()
    rows[1]["abstract"] = ""
    folder = tmp_path / "set"
    folder.mkdir()
    write_jsonl(folder / "0.jsonl", rows[:2])
    write_jsonl(folder / "1.jsonl", rows[2:])
    schedule = make_hf(folder, *PAIR, "workload.num_requests=3")
    assert schedule.prompts is not None
    assert [prompt.text for prompt in schedule.prompts] == [QUESTIONS[i] for i in (0, 2, 3)]
    assert schedule.provenance.steps[0] == "first 3 rows with prompt and answer, of 4 read"


def test_no_more_rows_are_read_than_asked_for(
    make_hf: Callable[..., Schedule], tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", pairs())
    assert len(make_hf(path, *PAIR, "workload.num_requests=2")) == 2
    steps = make_hf(path, *PAIR, "workload.num_requests=2").provenance.steps
    assert steps[0] == "first 2 rows with prompt and answer, of 2 read"
    every = make_hf(path, *PAIR, "workload.text.num_rows=null", "workload.num_requests=null")
    assert len(every) == 4


def test_sampled_requests_have_the_lengths_of_their_own_prompts(
    make_hf: Callable[..., Schedule], tmp_path: Path
) -> None:
    path = write_parquet(tmp_path / "a.parquet", pairs())
    sampled = make_hf(
        path, *PAIR, "workload.num_requests=40", "workload.lengths.order=sample",
        "workload.text.num_rows=null",
    )  # fmt: skip
    assert sampled.prompts is not None
    answers = dict(zip(QUESTIONS, make_hf(path, *PAIR).output_tokens, strict=True))
    assert {prompt.text for prompt in sampled.prompts} == set(QUESTIONS)
    for prompt, output in zip(sampled.prompts, sampled.output_tokens, strict=True):
        assert output == answers[prompt.text]
    assert sampled.provenance.synthetic == ["arrivals drawn", "lengths drawn"]


def test_a_cut_prompt_is_cut_in_text_and_in_tokens(
    make_hf: Callable[..., Schedule], tmp_path: Path, tokenizer: Path
) -> None:
    path = write_json(tmp_path / "a.json", pairs())
    whole = make_hf(path, *PAIR)
    models = {"default": SimpleNamespace(name="small", max_position=12)}
    for cut in (
        make_hf(path, *PAIR, "workload.lengths.max_prompt_tokens=6"),
        make_hf(path, *PAIR, "workload.lengths.scale_prompt=0.25"),
        fit_context(whole, models, "truncate"),  # type: ignore[arg-type]
    ):
        assert cut.prompts is not None
        assert whole.prompts is not None
        assert cut.prompt_tokens.sum() < whole.prompt_tokens.sum()
        for short, full, size in zip(cut.prompts, whole.prompts, cut.prompt_tokens, strict=True):
            assert short.ids.tolist() == full.ids[:size].tolist()
            assert full.text.startswith(short.text)
            assert short.text == full.text[: full.ends[size - 1]]


def test_a_schedule_file_carries_the_prompts_to_any_engine(
    make_hf: Callable[..., Schedule], make_bare: Make, tmp_path: Path
) -> None:
    first = make_hf(write_json(tmp_path / "a.json", pairs()), *PAIR)
    path = tmp_path / "schedule.parquet"
    first.save(path)
    again = make_bare("trace", f"workload.path={path}")
    assert again.sha256() == first.sha256()
    requests = zip(first.requests(), again.requests(), strict=True)
    for one, other in requests:
        assert one.prompt is not None
        assert other.prompt is not None
        assert one.prompt.text == other.prompt.text
        assert one.prompt.ids.tolist() == other.prompt.ids.tolist()
        assert one.prompt.ends.tolist() == other.prompt.ends.tolist()
    changed = Schedule.load(path)
    assert changed.prompts is not None
    changed.prompts[0].ids[1] += 1
    assert changed.sha256() != first.sha256()


def test_another_traces_arrivals_with_these_prompts(
    make_hf: Callable[..., Schedule], make_bare: Make, tmp_path: Path
) -> None:
    path = tmp_path / "schedule.parquet"
    first = make_hf(write_json(tmp_path / "a.json", pairs()), *PAIR)
    first.save(path)
    mixed = make_bare("burstgpt", "workload.num_requests=4", f"workload.lengths.path={path}")
    own = make_bare("burstgpt", "workload.num_requests=4")
    assert mixed.arrival_s.tolist() == own.arrival_s.tolist()
    assert mixed.prompts is not None
    assert [prompt.text for prompt in mixed.prompts] == QUESTIONS
    assert mixed.provenance.synthetic == ["lengths of other requests"]


def test_lengths_alone_have_no_prompts(make_bare: Make) -> None:
    schedule = make_bare("burstgpt")
    assert schedule.prompts is None
    assert all(request.prompt is None for request in schedule.requests())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["dataset=/none/such.json"], "dataset=/none/such.json is no file, no folder and no OWNER"),
        (
            ["dataset=someone/papers"],
            "someone/papers, split train is not in the cache, and data.do",
        ),
        (["tokenizer=/none/such"], "tokenizer=/none/such is no tokenizer.json, no folder with one"),
        (["tokenizer=someone/model"], "the tokenizer someone/model cannot be read: "),
        (["tokenizer=null"], "workload.text.tokenizer has no default where the model has no path"),
        (["tokenizer={rows}"], "cannot be read: "),
        (
            ["prompt=null"],
            "prompt must name the column of the prompts; {rows}, split train has art",
        ),
        (["prompt=title"], "has no column title; it has article, abstract"),
        (
            ["output=null"],
            "column article of {rows}, split train holds no lists of turns: name the",
        ),
        (["dataset={broken}"], "{broken}, split train cannot be read: "),
        (["dataset={empty}"], "empty.jsonl, split train"),
        (
            ["dataset={folder}"],
            "must be a file or a folder of files of one kind: .json, .jsonl, .p",
        ),
        (["num_rows=0"], "workload.text.num_rows=0 must be at least 1"),
        (["num_rows=many"], "text.num_rows: Value 'many'"),
        (["colour=red"], "colour"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_and_exit_2(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str], changes: list[str],
    message: str,
) -> None:  # fmt: skip
    paths = {
        "rows": write_jsonl(tmp_path / "rows.jsonl", pairs()),
        "broken": tmp_path / "broken.json",
        "empty": write_jsonl(tmp_path / "empty.jsonl", [{"article": "", "abstract": ""}]),
        "folder": tmp_path / "folder",
    }
    paths["broken"].write_text('[{"article": "x", ')
    paths["folder"].mkdir()
    words = [
        f"dataset={paths['rows']}", "prompt=article", "output=abstract", f"tokenizer={tokenizer}",
        *(change.format(**paths) for change in changes),
    ]  # fmt: skip
    away = [f"data.cache_dir={tmp_path / 'cache'}", "data.download=false", "data.dir=null"]
    keys = [f"workload.text.{word}" for word in words]
    assert main(["describe", "hf", "workload.num_requests=4", *away, *keys]) == 2
    said = capsys.readouterr().err
    assert message.format(**paths) in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").rglob("*.parquet"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("workload.lengths.scale_prompt=2", "real prompts can be cut, not lengthened"),
        ("workload.lengths.path={lengths}", "a.json has prompts, but l has lengths alone"),
        ("workload.path={lengths}", "a workload of texts reads workload.text.dataset, not its pa"),
        ("workload.num_requests=5", "5 is more than the 4 requests of a.json: ask for fewer, or"),
        ("workload.arrivals={{kind: trace, rate_per_s: null}}", "a.json has no timestamps, only"),
    ],
)
def test_what_prompts_cannot_do(
    make_hf: Callable[..., Schedule], tmp_path: Path, override: str, message: str
) -> None:
    path = write_json(tmp_path / "a.json", pairs())
    lengths = tmp_path / "l.csv"
    lengths.write_text("num_prefill_tokens,num_decode_tokens\n" + "5,6\n" * 9)
    with pytest.raises(UsageError, match=message):
        make_hf(path, *PAIR, override.format(lengths=lengths))


def test_texts_that_are_not_texts_are_left_out(
    make_hf: Callable[..., Schedule], tmp_path: Path
) -> None:
    odd: list[Any] = [
        [], [{"from": "human", "value": "?"}], [{"role": "user"}, {"role": "assistant"}],
        [{"role": "user", "content": ""}, {"role": "assistant", "content": "x"}],
        [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
        [{"role": "system", "content": "s"}, {"role": "user", "content": "q"},
         {"role": "assistant", "content": "kept"}],
    ]  # fmt: skip
    rows = [{"c": turns} for turns in odd]
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    schedule = make_hf(path, "workload.text.prompt=c", "workload.num_requests=1")
    assert schedule.prompts is not None
    assert [prompt.text for prompt in schedule.prompts] == ["q"]
    assert schedule.provenance.steps[0].endswith("of 6 read")


def test_prompts_must_fit_their_lengths(make_bare: Make) -> None:
    schedule = make_bare("burstgpt", "workload.num_requests=2")
    prompts = [Prompt.of("x", [1], [1]) for _ in range(2)]
    with pytest.raises(ValueError, match="prompts must be one for each row"):
        Schedule(
            schedule.arrival_s, schedule.model, np.array([1, 2]), schedule.output_tokens,
            schedule.provenance, prompts,
        )  # fmt: skip
