"""Readers: every public file in full, and what a broken file is answered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import UsageError
from harness.schedule import Provenance, Schedule
from tests.unit.workloads.conftest import Make
from workloads import formats
from workloads.trace import Trace


def read(path: Path) -> Trace:
    return formats.read(path, Provenance("test", "test", False, "", ""))


@pytest.mark.parametrize(
    ("path", "rows"),
    [
        ("azure_llm_2023/AzureLLMInferenceTrace_code.csv", 8_819),
        ("azure_llm_2023/AzureLLMInferenceTrace_conv.csv", 19_366),
        ("burstgpt/BurstGPT_1_first400.csv", 400),
        ("burstgpt/BurstGPT_1_dense_120.csv", 120),
        ("burstgpt/BurstGPT_1_span30s_120.csv", 120),
        ("sharegpt_nanoflow/sharegpt.csv", 58_787),
        ("sharegpt_8k_llama2/sharegpt_8k_filtered_stats_llama2_tokenizer.csv", 30_731),
        ("lmsys_nanoflow/lmsys.csv", 100_000),
        ("lmsys_arena/real_trace.csv", 1_500),
        (
            "arxiv_summarization_vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
            28_257,
        ),
        ("bwb_etalon/bwb_stats_llama2_tokenizer_filtered_v2.csv", 33_768),
        ("mooncake/conversation_trace.jsonl", 12_031),
        ("aegaeon_workloads/synth-16-0.1-1.0-1.0.csv", 156),
    ],
)
def test_every_row_is_read(data_dir: Path, path: str, rows: int) -> None:
    assert len(read(data_dir / path)) == rows


def test_azure_timestamps_keep_their_seventh_digit(data_dir: Path) -> None:
    trace = read(data_dir / "azure_llm_2023/AzureLLMInferenceTrace_code.csv")
    # 18:17:03.9799600, 18:17:04.0319600, 18:17:04.0781490 and the last, 19:14:19.9280160
    assert trace.arrivals()[:3].tolist() == [0.0, 0.052, 0.098189]
    assert trace.arrivals()[-1] == 3435.948056
    assert (trace.prompt_tokens[0], trace.output_tokens[0]) == (4808, 10)


def test_aegaeon_files_replay_exactly(make: Make, data_dir: Path) -> None:
    path = data_dir / "aegaeon_workloads/synth-40-0.5-1.0-1.0.csv"
    frame = pd.read_csv(path)
    clock = frame["Request Time"].str.split(":", expand=True).astype(float)
    seconds = clock[0] * 3600 + clock[1] * 60 + clock[2]
    for schedule in (
        make("aegaeon", f"workload.path={path}"),
        make(
            "aegaeon",
            "workload.dataset.parameters.num_models=40",
            "workload.dataset.parameters.rate_per_s=0.5",
        ),
        make("trace", f"workload.path={path}"),
    ):
        np.testing.assert_allclose(schedule.arrival_s, seconds, rtol=0, atol=1e-9)
        assert schedule.model == frame["Model Name"].tolist()
        assert schedule.prompt_tokens.tolist() == frame["Input Length"].tolist()
        assert schedule.output_tokens.tolist() == frame["Output Length"].tolist()
        assert not schedule.provenance.synthetic
        assert schedule.provenance.steps == []


def test_a_schedule_file_comes_out_identical(make: Make, tmp_path: Path) -> None:
    first = make("lmsys_arena", "workload.scale.rate=1.5", "workload.lengths.scale_prompt=2")
    path = tmp_path / "schedule.parquet"
    first.save(path)
    again = make("trace", f"workload.path={path}")
    assert again.sha256() == first.sha256()
    slots = Provenance.__slots__
    assert [getattr(again.provenance, name) for name in slots] == [
        getattr(first.provenance, name) for name in slots
    ]
    changed = make("trace", f"workload.path={path}", "workload.num_requests=10")
    assert changed.provenance.steps == [*first.provenance.steps, "first 10 requests"]


def test_the_canonical_format_and_rows_out_of_order(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "model,arrival_s,output_tokens,prompt_tokens\nb,2.5,4,3\n\na,0.5,2,1\nb,2.5,6,5\n\n"
    )
    trace = read(path)
    assert trace.arrivals().tolist() == [0.5, 2.5, 2.5]
    assert trace.model is not None
    assert trace.model.tolist() == ["a", "b", "b"]
    assert trace.prompt_tokens.tolist() == [1, 3, 5]
    assert trace.provenance.steps == ["sorted by arrival (1 rows came before an earlier one)"]


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,4,1\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,m,4,1,5,x\n"


MOONCAKE = '{"timestamp": '


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (AZURE + "2023-11-16 18:17:04.0,4808,ten\n", "line 3: GeneratedTokens .* got 'ten'"),
        (AZURE + "2023-11-16 18:17:04.0,-3,1\n", "line 3: ContextTokens .* got '-3'"),
        (AZURE + "2023-11-16 18:17:04.0,1.5,1\n", "line 3: ContextTokens .* got '1.5'"),
        (AZURE + "\n16th of November,4,1\n", "line 4: TIMESTAMP must be a date and time"),
        (AZURE + "2023-11-16 18:17:04.0,4808\n", "line 3: 2 columns where the header has 3"),
        (AZURE + "2023-11-16 18:17:04.0,,1\n", "line 3: ContextTokens .* got ''"),
        (AZURE + f"2023-11-16 18:17:04.0,{'9' * 30},1\n", "line 3: ContextTokens"),
        (BURST + "nan,m,4,1,5,x\n", "line 3: Timestamp must be a number of at least 0"),
        (BURST + "7,,4,1,5,x\n", "line 3: Model must be a name"),
        ("arrival_s,model,prompt_tokens,output_tokens\ninf,a,1,1\n", "line 2: arrival_s"),
        ("Request Time,Model Name,Input Length,Output Length\nsoon,a,1,1\n", "line 2: Request Ti"),
        ('{"timestamp": 1, "input_length": 2, "output_length": 3}\n{"timest\n', "line 2: not JSON"),
        ('{"timestamp": 1, "input_length": 2}\n', "line 1: output_length .* got None"),
        ('{"timestamp": 1, "input_length": 2, "output_length": 1.5}\n', "line 1: output_length"),
        ("when,what\n1,2\n", "no known format: its first line is 'when,what'"),
        ("", "cannot be read as CSV"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "a header but no rows"),
        ("PAR1 but no parquet", "cannot be read as a schedule"),
        ("\n" + AZURE, "cannot be read as CSV: its first line is empty"),
        (AZURE.replace("Context", "Generated"), "two columns called GeneratedTokens"),
        ("model,model\na,b\n", "two columns called model"),
        (AZURE + "2023-11-16 18:17:04.0,5,1,,\n", "line 3: 5 columns where the header has 3"),
        (AZURE + "2300-11-16 18:17:04.0,5,1\n", "line 3: TIMESTAMP must be within 200 years"),
        (AZURE + "2023-11-16 18:17:04.0,٣,1\n", "line 3: ContextTokens .* got '٣'"),
        ("Request Time,Model Name,Input Length,Output Length\n5,a,1,1\n", "a time HH:MM:SS"),
        ("Request Time,Model Name,Input Length,Output Length\n-00:00:05,a,1,1\n", "a time HH:MM"),
        (MOONCAKE + "[" * 100_000, "line 1: not JSON"),
        (MOONCAKE + "9" * 5000 + "}", "line 1: not JSON"),
        (MOONCAKE + "[" * 900 + "]" * 900 + "}", "timestamp must be a number .* got a list"),
        (MOONCAKE + '"' + "x" * 100_000 + '"}', r"got 'x+… \(100002 characters\)"),
    ],
)
def test_a_corrupt_file_is_told_by_name_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "corrupt.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("comma", [",", ", ", " ,", ",  "])
@pytest.mark.parametrize("end", ["\n", "\r\n", ",,\n", ", ,\n", " \n"])
def test_spaces_around_commas_and_columns_without_a_name_are_left_out(
    tmp_path: Path, comma: str, end: str
) -> None:
    path = tmp_path / "spaced.csv"
    rows = [["arrival_s", '"model"', "prompt_tokens", "output_tokens"], ["0.5", "a b", "10", "5"]]
    path.write_text("".join(comma.join(row) + end for row in rows), newline="")
    trace = read(path)
    assert trace.arrivals().tolist() == [0.5]
    assert trace.model is not None
    assert trace.model.tolist() == ["a b"]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([10], [5])


@pytest.mark.parametrize(
    ("name", "column", "says"),
    [
        ("prompt_tokens", pa.array([1.5]), "prompt_tokens: Float value 1.5"),
        ("prompt_tokens", pa.array([None], pa.int64()), "prompt_tokens must be int64 in every row"),
        ("output_tokens", pa.array(["7"]), "output_tokens must be int64 in every row"),
        ("output_tokens", pa.array([2**63], pa.uint64()), "output_tokens: Integer value"),
        ("arrival_s", pa.array([[1.0]]), "arrival_s must be double in every row"),
        ("arrival_s", pa.array([float("nan")]), "arrival_s must be finite"),
        ("model", pa.array([3]), "model must be string in every row"),
        ("model", pa.array([None], pa.string()), "model must be string in every row"),
    ],
)
def test_a_schedule_with_odd_types_is_refused(
    tmp_path: Path, name: str, column: pa.Array, says: str
) -> None:
    path = tmp_path / "odd.parquet"
    Schedule(
        np.array([0.0]), ["m"], np.array([1]), np.array([1]),
        Provenance("test", "test", False, "", ""),
    ).save(path)  # fmt: skip
    table = pq.read_table(path)
    odd = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(odd.replace_schema_metadata(table.schema.metadata), path)
    with pytest.raises(UsageError, match="cannot be read as a schedule") as caught:
        read(path)
    assert says in str(caught.value)


@pytest.mark.parametrize("said", ["", "[]", "{", '{"source": 1}', '{"steps": 5}', "[" * 10_000])
def test_a_schedule_with_an_odd_provenance_is_refused(tmp_path: Path, said: str) -> None:
    tokens = {"prompt_tokens": [1], "output_tokens": [1]}
    table = pa.table({"arrival_s": [0.0], "model": ["m"]} | tokens)
    path = tmp_path / "odd.parquet"
    pq.write_table(table.replace_schema_metadata({"provenance": said}), path)
    with pytest.raises(UsageError, match="its provenance"):
        read(path)


def test_a_missing_file_and_a_binary_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read(tmp_path / "none.csv")
    path = tmp_path / "noise.csv"
    path.write_bytes(bytes(range(256)) * 40)
    with pytest.raises(UsageError, match="cannot be read as CSV"):
        read(path)


def test_a_million_rows(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    rows = pd.DataFrame({"Timestamp": np.arange(1_000_000) // 3, "Model": "ChatGPT"})
    rows = rows.assign(**{"Request tokens": 621, "Response tokens": 126, "Total tokens": 747})
    rows.assign(**{"Log Type": "API log"}).to_csv(path, index=False)
    trace = read(path)
    assert len(trace) == 1_000_000
    assert trace.arrivals()[-1] == 333_333


def test_what_load_writes_save_reads(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "schedule.parquet"
    schedule = make("azure_code", "workload.num_requests=50")
    schedule.save(path)
    assert Schedule.load(path).sha256() == schedule.sha256()
