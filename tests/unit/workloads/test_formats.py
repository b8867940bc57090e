"""Readers: every public file in full, and what a broken file is answered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
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
    ],
)
def test_a_corrupt_file_is_told_by_name_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "corrupt.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


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
