"""Whatever arrives is served, once, whole, and leaves nothing behind."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import ANY

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.records.device_events import host_full
from harness.request import Request
from systems.aegaeon.decode import DecodeBatch, Decoder, Turn
from tests.unit.aegaeon.trial import SLAB_BYTES, Trial, requests_of

MODELS = ["narrow-0", "wide-1", "deep-2", "narrow-3"]
OFF = "system.scaling"
STAGES = {
    "T0": [f"{OFF}.{name}=false" for name in
           ("component_reuse", "explicit_memory", "prefetch", "fine_grained_sync")],
    "T1": [f"{OFF}.{name}=false" for name in ("explicit_memory", "prefetch", "fine_grained_sync")],
    "T2": [f"{OFF}.fine_grained_sync=false"],
    "T3": [],
}  # fmt: skip
VARIATIONS = [
    *STAGES.values(),
    ["system.variant=artifact"],
    ["system.schedule=prefill_first"],
    ["system.schedule=decode_first"],
]

arrivals = st.lists(
    st.tuples(
        st.floats(0, 2), st.sampled_from(MODELS), st.integers(1, 300), st.integers(1, 200)
    ),
    min_size=1,
    max_size=25,
)  # fmt: skip


def assert_all_served(trial: Trial, requests: list[Request]) -> None:
    assert trial.statuses() == {"completed"}
    for request in requests:
        record = trial.recorder.records[request.request_id]
        assert len(record.token_times_s()) == request.output_tokens
        assert record.num_preemptions == 0  # nothing is ever computed twice
    trial.assert_nothing_is_held()


@pytest.mark.parametrize("overrides", VARIATIONS, ids=lambda overrides: " ".join(overrides))
@settings(max_examples=12, deadline=None)
@given(wanted=arrivals)
def test_every_request_finishes(
    overrides: list[str], wanted: list[tuple[float, str, int, int]]
) -> None:
    requests = requests_of(*wanted)
    trial = Trial(*overrides)
    trial.serve(requests)
    assert_all_served(trial, requests)


@pytest.mark.parametrize(
    "overrides", [[], STAGES["T2"], *VARIATIONS[-2:]], ids=lambda overrides: " ".join(overrides)
)
@settings(max_examples=8, deadline=None)
@given(wanted=arrivals)
def test_every_request_finishes_where_the_device_holds_little_more_than_the_longest(
    overrides: list[str], wanted: list[tuple[float, str, int, int]]
) -> None:
    requests = requests_of(*wanted)
    longest = max(request.prompt_tokens + request.output_tokens for request in requests)
    trial = Trial(*overrides, kv_slabs=-(-longest // 16) + 1)
    trial.serve(requests)
    assert_all_served(trial, requests)


@pytest.mark.parametrize("overrides", VARIATIONS, ids=lambda overrides: " ".join(overrides))
@settings(max_examples=8, deadline=None)
@given(wanted=arrivals, spare_slabs=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_every_request_finishes_where_host_memory_is_full(
    overrides: list[str],
    wanted: list[tuple[float, str, int, int]],
    spare_slabs: tuple[int, int],
) -> None:
    """Device and host hold little more than the longest request."""
    requests = requests_of(*wanted)
    longest = max(request.prompt_tokens + request.output_tokens for request in requests)
    device, host = (-(-longest // 16) + spare for spare in spare_slabs)
    trial = Trial(*overrides, kv_slabs=device, host_kv_bytes=host * SLAB_BYTES)
    trial.serve(requests)
    assert trial.statuses() == {"completed"}
    for request in requests:
        assert len(trial.recorder.records[request.request_id].token_times_s()) == (
            request.output_tokens
        )
    trial.assert_nothing_is_held()


def test_a_batch_that_finds_no_room_in_host_memory_keeps_the_device() -> None:
    """The device holds one of the two and so does the host: they cannot change places."""
    trial = Trial(num_models=6, num_instances=2, kv_slabs=70, host_kv_bytes=70 * SLAB_BYTES)
    requests = requests_of((0.0, "deep-2", 600, 400), (0.01, "deep-5", 600, 400))
    trial.serve(requests)
    assert_all_served(trial, requests)
    decodes = [e for e in trial.events("run") if e["fields"]["phase"] == "decode"]
    turns = [e["fields"]["requests"] for e in decodes]
    assert turns == sorted(turns)  # the first to its end, then the second
    assert turns.count([0]) > 1
    (waited,) = host_full(trial.recorder.events).values()
    assert waited == {"num_waits": 1, "seconds": ANY, "host_kv_bytes": 70 * SLAB_BYTES}
    assert waited["seconds"] == pytest.approx(
        sum(e["end_s"] - e["start_s"] for e in decodes[1 : turns.count([0])])
    )


def test_prefills_wait_while_host_memory_is_full() -> None:
    """The device that prefills has room for two prompts, and yet keeps one at a time."""
    trial = Trial(num_models=3, num_instances=2, kv_slabs=100, host_kv_bytes=90 * SLAB_BYTES)
    requests = requests_of(*((0.001 * i, "deep-2", 640, 100) for i in range(8)))
    trial.serve(requests)
    assert_all_served(trial, requests)
    prefills = [e for e in trial.events("run") if e["fields"]["phase"] == "prefill"]
    waits = {e["start_s"]: e["end_s"] for e in trial.events("host_full")}
    waited = [(one, next_) for one, next_ in pairwise(prefills) if one["end_s"] in waits]
    assert waited
    for one, following in waited:
        assert following["start_s"] == waits[one["end_s"]] > one["end_s"]


def test_batches_that_outgrow_the_device_are_split_and_all_of_them_go_on() -> None:
    """Two requests fit when they are dispatched, and not when they have grown by 640 tokens."""
    requests = requests_of((0.0, "deep-2", 320, 640), (0.0, "deep-2", 320, 640))
    trial = Trial(kv_slabs=61, num_models=3, num_instances=2)
    trial.serve(requests)
    assert_all_served(trial, requests)
    assert len(trial.events("swap_out")) > 2  # beyond one each after the prefills


def test_the_newest_leaves_a_batch_that_outgrows_the_device() -> None:
    trial = Trial(kv_slabs=61, num_models=3, num_instances=2)
    trial.serve(requests_of((0.0, "deep-2", 320, 640), (0.01, "deep-2", 320, 640)))
    decoder = trial.pool[1].name
    left = [e["fields"]["request_id"] for e in trial.events("swap_out") if e["instance"] == decoder]
    assert left[0] == 1


@pytest.mark.parametrize(("variant", "merged"), [("paper", False), ("artifact", True)])
def test_only_the_artifact_merges_what_was_split(variant: str, merged: bool) -> None:
    """Three requests outgrow the device and are split; the first one then leaves room for both."""
    requests = requests_of(
        (0.0, "deep-2", 320, 400), (0.01, "deep-2", 320, 800), (0.02, "deep-2", 320, 800)
    )
    trial = Trial(f"system.variant={variant}", kv_slabs=70, num_models=3, num_instances=2)
    trial.serve(requests)
    assert_all_served(trial, requests)
    first_s = trial.recorder.records[0].token_times_s()[-1]
    later = [e["fields"]["requests"] for e in trial.events("run") if e["start_s"] >= first_s]
    assert ([1, 2] in later) == merged
    assert [2] in later  # as all along, or until both outgrow it in their turn


def test_no_request_of_a_batch_starves_while_others_are_loaded_first() -> None:
    """Quotas of a step each, shorter than a swap: each request of the two batches takes part."""
    long, short = [(0.0, "deep-2", 300, 150)] * 4, [(0.0, "narrow-0", 20, 150)] * 2
    trial = Trial("system.max_quota_s=0.0001", num_models=3, num_instances=2)
    requests = requests_of(*long, *short)
    trial.serve(requests)
    deep = [trial.recorder.records[r.request_id] for r in requests if r.model == "deep-2"]
    first_end_s = min(record.token_times_s()[-1] for record in deep)
    done = [sum(record.token_times_s() <= first_end_s) for record in deep]
    assert min(done) > 0.2 * max(done), done


def test_a_turn_ends_after_its_quota_however_many_requests_join_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody's KV is nearly always on its way, so that the batch is hardly ever whole again."""
    quota_s = 0.5
    trial = Trial(f"system.max_quota_s={quota_s}", num_models=3, num_instances=2,
                  kv_slabs=4000, pcie_bytes_per_s=3e7)  # fmt: skip
    begun_s: dict[Turn, float] = {}  # when the batch was there
    ended_s: dict[Turn, float] = {}  # when its last decode began, at the latest
    most: dict[Turn, int] = {}  # requests on their way while it decoded

    class Watched(Decoder):
        def _grown(self, batch: DecodeBatch, ready: list[Request]) -> list[Request]:
            turn, now_s = self._turns[self._turn], self._loop.now
            if not turn.awaited:  # the clock runs
                begun_s.setdefault(turn, now_s)
                ended_s[turn] = now_s
                most[turn] = max(most.get(turn, 0), len(batch.requests) - len(ready))
            return super()._grown(batch, ready)

    monkeypatch.setattr("systems.aegaeon.system.Decoder", Watched)
    joiners = [(0.003 * i, "narrow-0", 10, 100) for i in range(400)]
    trial.serve(requests_of((0.0, "wide-1", 20, 1000), *joiners))
    lengths_s = {turn: ended_s[turn] - begun_s[turn] for turn in begun_s}
    joined = [turn for turn in lengths_s if most[turn] > 20]  # a step of them takes < 50 ms
    assert joined
    assert all(lengths_s[turn] <= quota_s + 0.05 for turn in joined)
    assert all(turn.left_s > -0.05 for turn in joined)


def test_a_batch_alone_decodes_without_a_pause() -> None:
    trial = Trial(num_instances=2)
    trial.serve(requests_of((0.0, "narrow-0", 50, 400)))
    decodes = [e for e in trial.events("run") if e["fields"]["phase"] == "decode"]
    assert len(decodes) == 1


def test_disaggregated_schedules_keep_the_phases_apart_and_unified_ones_do_not() -> None:
    wanted = [(0.1 * i, MODELS[i % 4], 100, 50) for i in range(12)]
    phases: dict[str, dict[str, set[str]]] = {}
    for schedule in ("disaggregated", "prefill_first", "decode_first"):
        trial = Trial(f"system.schedule={schedule}")
        trial.serve(requests_of(*wanted))
        phases[schedule] = {}
        for event in trial.events("run"):
            seen = phases[schedule].setdefault(event["instance"], set())
            seen.add(event["fields"]["phase"])
    assert all(len(seen) == 1 for seen in phases["disaggregated"].values())
    assert all(len(seen) == 2 for seen in phases["prefill_first"].values())
    assert all(len(seen) == 2 for seen in phases["decode_first"].values())


def test_prefill_first_interrupts_decodes_and_decode_first_makes_prompts_wait() -> None:
    """Fig. 6: a long answer is being decoded when a prompt for another model arrives."""
    wanted = [(0.0, "narrow-0", 50, 1000), (0.5, "wide-1", 50, 2)]
    first_token_s = {}
    for schedule in ("prefill_first", "decode_first"):
        trial = Trial(f"system.schedule={schedule}", num_instances=1)
        requests = requests_of(*wanted)
        trial.serve(requests)
        long, late = (trial.recorder.records[r.request_id].token_times_s() for r in requests)
        first_token_s[schedule] = late[0]
        assert (late[0] < long[-1]) == (schedule == "prefill_first")
    assert first_token_s["prefill_first"] < first_token_s["decode_first"]


def test_the_artifacts_models_stay_on_their_nodes() -> None:
    wanted = [(0.05 * i, MODELS[i % 4], 60, 40) for i in range(20)]
    trial = Trial("system.variant=artifact", num_instances=4, per_node=2)
    trial.serve(requests_of(*wanted))
    nodes = {instance.name: instance.node for instance in trial.pool}
    for event in trial.events("run"):
        model = event["fields"]["model"]
        assert nodes[event["instance"]] == MODELS.index(model) % 2
