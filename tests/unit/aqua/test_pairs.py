"""Several pairs in one run: who pages to whom, who serves what, and what is left of a dead pair."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.configuration.config import settings as config_of
from harness.configuration.options import plain
from harness.elastic.cluster import ElasticCluster
from harness.elastic.device_layout import DeviceLayout
from harness.elastic.kv_region import KvStore
from harness.errors import UsageError
from harness.placement import Demand, Placement
from harness.running.testbed import Bed
from systems.aqua.system import Aqua
from tests.aqua import Asked, Kill, moved, moved_bytes, serve, system
from tests.elastic import check, hardware, private, spec
from tests.running import composed, hardware_profile, run_here

TWO = "system.pairs=[{consumer: tiny-llama},{consumer: tiny-llama}]"
IDLE = "system.lender.every=null"
CROWD = [Asked(0.001 * i, 90 + 7 * i, 40 + 5 * (i % 4)) for i in range(24)]
FOUR = replace(hardware_profile("local_paced"), num_devices=4, devices_per_node=4)


@contextmanager
def bed() -> Iterator[Bed]:
    with private("sim", 4, kv_blocks=128, page_layers=None, on=FOUR) as made:
        yield made
        check(made)


def lent_to_itself_alone(made: Bed) -> bool:
    """Every page-out went to the memory of the consumer's own lender."""
    names = [instance.name for instance in made.instances]
    own = dict(zip(names[::2], names[1::2], strict=True))
    out = moved(made, "page out to lease")
    assert {event["instance"] for event in out} == set(own)
    return all(
        event["fields"]["to"].startswith(f"lent by {own[event['instance']]} ") for event in out
    )


def test_each_consumer_pages_to_its_own_lender() -> None:
    with bed() as made:
        aqua = system(made, "aqua", TWO, IDLE)
        serve(made, aqua, CROWD)
        assert {record.status for record in made.recorder.records.values()} == {"completed"}
        assert lent_to_itself_alone(made)
        out = moved_bytes(made, "page out to lease", "page out to DRAM")
        assert out == moved_bytes(made, "page in from lease", "page in from DRAM")
        assert not made.cluster.directory.wheres


def test_orphans_that_find_their_prefix_at_their_next_consumer_all_end() -> None:
    """Tokens of it count as service there, so that others that came later go before them."""
    prefix = ((7, 100),)
    first = [Asked(0.0, 140, 30, "consumer", prefix)]
    cold = [Asked(1 + 0.001 * i, 150, 150, "any", prefix if i % 2 else ()) for i in range(24)]
    late = [Asked(1.15 + 0.01 * i, 150, 40, "consumer") for i in range(12)]
    with bed() as made:
        aqua = system(made, "aqua", TWO, IDLE, "system.consumer.prefill_caching=true")
        serve(made, aqua, first + cold + late, Kill(3, 1.01), Kill(2, 1.012))
        assert {record.status for record in made.recorder.records.values()} == {"completed"}


def test_two_consumers_have_parts_of_the_nodes_dram_that_do_not_overlap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts: list[range] = []
    make = ElasticCluster.dram_store

    def recorded(
        cluster: ElasticCluster, node: int, num_bytes: int, model: DeviceLayout, *, at_bytes: int
    ) -> KvStore:
        parts.append(range(at_bytes, at_bytes + num_bytes))
        return make(cluster, node, num_bytes, model, at_bytes=at_bytes)

    monkeypatch.setattr(ElasticCluster, "dram_store", recorded)
    with bed() as made:
        aqua = system(made, "vllm_cfs", TWO, IDLE, f"system.dram_bytes={2**26 + 5000}")
        assert parts == [range(2**25), range(2**25, 2**26)]
        serve(made, aqua, CROWD)
        assert {event["instance"] for event in moved(made, "page out to DRAM")} == {
            made.instances[0].name, made.instances[2].name,
        }  # fmt: skip


def test_a_dead_lenders_own_requests_do_not_go_to_a_consumer_of_another_model(
    tmp_path: Path,
) -> None:
    summary = run_here(
        tmp_path / "run", "+experiment=aqua_live_elastic", "engine=sim", "hardware=local_paced",
        "engine.num_kv_blocks=1024", "figure=null", "faults.kill=[{instance: 1, at_s: 8.5}]",
    )  # fmt: skip
    records = pq.read_table(tmp_path / "run" / "requests.parquet").to_pylist()
    failed = [each for each in records if each["status"] != "completed"]
    assert failed
    assert {each["model"] for each in failed} == {"lender"}
    assert summary["num_completed"] + len(failed) == 120


@pytest.mark.parametrize("kills", [[0], [1], [0, 1], [2, 3], [0, 3]])
def test_what_a_dead_pair_leaves_is_served_by_the_other(kills: list[int]) -> None:
    with bed() as made:
        failed: dict[int, str] = {}
        aqua = system(made, "aqua", TWO, IDLE, failed=failed)
        serve(made, aqua, CROWD, *[Kill(each, 0.05 + 0.001 * each) for each in kills])
        assert not failed
        assert {record.status for record in made.recorder.records.values()} == {"completed"}


def test_the_leases_of_a_dead_lender_end_and_those_of_others_stay() -> None:
    with bed() as made:
        aqua = system(made, "aqua", TWO, IDLE)
        serve(made, aqua, CROWD, Kill(1, 0.05))
        assert lent_to_itself_alone(made)
        last_s = max(event["end_s"] for event in moved(made, "page out to lease"))
        later = {e["instance"] for e in moved(made, "page out to lease") if e["start_s"] > 0.06}
        assert last_s > 0.06
        assert later == {made.instances[2].name}


def test_pairs_of_two_models_in_a_run(tmp_path: Path) -> None:
    """Each model has a consumer here and is lent to there."""
    pairs = (
        "system.pairs=[{consumer: tiny-llama, lender: tiny-llama-wide},"
        "{consumer: tiny-llama-wide, lender: tiny-llama}]"
    )
    summary = run_here(
        tmp_path / "run", "+experiment=aqua_live_elastic", "engine=sim", "hardware=local_paced",
        "hardware.num_devices=4", "hardware.devices_per_node=4", "engine.num_kv_blocks=1024",
        "figure=null", pairs,
    )  # fmt: skip
    assert summary["num_completed"] == 120
    assert summary["kv_moves"]["page out to lease"]["bytes"] > 0


# Where they are


def placed(num_devices: int, per_node: int, pairs: str) -> list[Placement]:
    node = composed("+system=aqua", "+workload=burstgpt", f"system.pairs={pairs}").system
    config: Any = config_of(plain(node), Aqua, "system")
    on = replace(hardware(num_devices), devices_per_node=per_node)
    return Aqua.place(config, {"m": spec()}, on, Demand({"m": 1.0}))


def test_a_pair_does_not_cross_nodes() -> None:
    three = f"[{','.join(3 * ['{consumer: tiny-llama}'])}]"
    found = placed(9, 3, three)
    assert [each.devices.start for each in found] == [0, 1, 3, 4, 6, 7]


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("[]", r"pairs=\[\] names none; valid: null, or at least one"),
        ("[{consumer: opt-30b}]", "system.pairs: model opt-30b is unknown; valid: tiny-llama"),
        ("[{consumer: tiny-llama, lender: x}]", "system.pairs: model x is unknown"),
        (f"[{','.join(5 * ['{consumer: tiny-llama}'])}]", "5 pairs do not fit on the 4 devices"),
        ("[{lender: tiny-llama}]", "consumer"),
        ("3", "pairs"),
    ],
)
def test_pairs_that_cannot_be_are_refused(word: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        placed(4, 4, word)
