"""The tables against the recorder's own, slower account of each request."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.records import tables
from harness.records.record import Chunk, Recorder, Segment
from harness.records.tables import events_table, requests_table
from harness.request import Request

times = st.floats(0, 100)
segments = st.one_of(
    st.builds(Segment, times, st.integers(1, 5), st.floats(0, 1), st.floats(0, 0.1)),
    st.builds(Chunk, times, st.integers(1, 5)),
)


@settings(deadline=None)
@given(per_request=st.lists(st.lists(segments, max_size=5), min_size=1, max_size=8))
def test_every_token_and_chunk_is_where_the_record_has_it(
    per_request: list[list[Segment]],
) -> None:
    requests = [Request(i, float(i), "m", 1, 1) for i in range(len(per_request))]
    recorder = Recorder(requests)
    for request, stamped in zip(requests, per_request, strict=True):
        for segment in stamped:
            recorder.segment([request], segment, "gpu0")
    table = requests_table(recorder)
    for row, record in zip(table.to_pylist(), recorder.records.values(), strict=True):
        np.testing.assert_allclose(row["token_times_s"], record.token_times_s())
        assert row["chunk_tokens"] == [
            size
            for each in record.segments
            for size in ([each.num_tokens] if isinstance(each, Chunk) else [1] * each.num_tokens)
        ]


def test_rows_hold_what_was_asked_and_what_became_of_it() -> None:
    requests = [Request(7, 1.5, "a", 10, 2), Request(9, 2.5, "b", 20, 3)]
    recorder = Recorder(requests)
    recorder.sent(requests[0], 1.6)
    recorder.segment([requests[0]], Segment(1.6, 2, 0.5, 0.25), "gpu1")
    recorder.preempted(requests[0], "sim-0", 0.5)
    recorder.completed(requests[0])
    first, second = requests_table(recorder).to_pylist()
    assert first == {
        "request_id": 7,
        "model": "a",
        "instance": "gpu1",
        "arrival_s": 1.5,
        "sent_s": 1.6,
        "prompt_tokens": 10,
        "output_tokens": 2,
        "status": "completed",
        "error": "",
        "num_preemptions": 1,
        "token_times_s": pytest.approx([2.1, 2.85]),
        "chunk_tokens": [1, 1],
        "server_prompt_tokens": None,
        "cached_tokens": None,
        "surplus_tokens": None,
        "buffered": None,
    }
    assert second["sent_s"] is None
    assert second["status"] == "scheduled"
    assert second["token_times_s"] == []


def test_a_run_larger_than_one_batch_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BATCH_REQUESTS", 3)
    requests = [Request(i, float(i), "m", 1, 1) for i in range(8)]
    recorder = Recorder(requests)
    recorder.segment(requests, Segment(0.0, 2, 1.0, 0.0), "gpu0")
    table = requests_table(recorder)
    assert table["request_id"].to_pylist() == list(range(8))
    assert table["token_times_s"].to_pylist() == [[1.0, 2.0]] * 8


def test_events_keep_their_own_fields_as_json() -> None:
    recorder = Recorder([])
    recorder.event("load", "gpu0", 1.0, 2.0, model="a", num_bytes=np.int64(5))
    (row,) = events_table(recorder).to_pylist()
    assert (row["kind"], row["instance"], row["start_s"], row["end_s"]) == ("load", "gpu0", 1, 2)
    assert json.loads(row["fields"]) == {"model": "a", "num_bytes": 5}
    assert events_table(Recorder([])).num_rows == 0
