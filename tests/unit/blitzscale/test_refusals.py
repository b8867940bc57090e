"""Bad input of BlitzScale: exit code 2 and one sentence that names the value."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.test_overrides import answer

QUICK = ("+system=blitzscale", "+workload=burstgpt", "engine=sim", "workload.num_requests=3",
         "tracking=none", "figure=null", "progress=false")  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            ["system.scheduler=new"],
            "scheduler=new is unknown; valid: overlap, best_effort, ilp, ilp_free",
        ),
        (["system.spares=far"], "system.spares=far is unknown; valid: near, spread"),
        (
            ["system.variants.paper.decode={lower: 0.9, upper: 0.5}"],
            "bounds lower=0.9, upper=0.5 must be 0 < lower < upper <= 1",
        ),
        (
            ["system.min_prefills=3", "system.max_prefills=2"],
            "system.max_prefills=2 must be at least system.min_prefills=3",
        ),
        (["system.ttl_s=-1"], "error: system: system.ttl_s=-1 must be at least 0"),
        (["system.ilp_solving_s=-1"], "system.ilp_solving_s=-1 must be at least 0"),
        (["system.live_batches=0"], "system.live_batches=0 must be at least 1"),
        (
            ["system.variants.paper.in_flight={most: 1, least: 2, step_s: 1}"],
            "in_flight most=1, least=2, step_s=1.0 must be 1 <= least <= most",
        ),
        (["system.min_prefills=4"], "4 prefill and 1 decode instances do not fit in 4"),
        (["hardware.host_memory_bytes=1000"], "fits in no host: each has 1000 bytes"),
        (["hardware.nic_bytes_per_s=0"], "has no network between its 4 nodes"),
        (
            ["model.tp=2", "hardware.devices_per_node=2", "engine=torch_paced"],
            "model.tp=2 with engine=torch is for instances that have one model for good",
        ),
        (["engine=vllm"], "moves weights and KV between instances, which this engine cannot do"),
        (["system.variant=new"], "system.variant=new is unknown; valid: paper, artifact"),
        (["system.parameters=tape"], "system.parameters=tape is unknown"),
        (["system.parameters=all_cache"], "zigzag=true needs system.parameters=network"),
        (["system.interval_s=0"], "system.interval_s=0 must be above 0"),
        (
            ["system.min_prefills=0", "system.min_decodes=0", "system.variant=artifact"],
            "needs system.variant=paper",
        ),
        (["system.max_prefills=0"], "system.max_prefills=0 must be at least 1"),
        (["system.instances=5"], "room for 4 instances"),
        (["system.variants.paper.prefill.lower=0.9"], "0 < lower < upper"),
        (["system.significant_growth=1"], "must be above 1"),
        (
            ["system.min_prefills=0"],
            "system.min_prefills=0 needs system.min_decodes=0, not 1",
        ),
        (
            [
                "workload.num_requests=60",
                "model_set=tiny",
                "workload.models={kind: zipf, num_models: 3, alpha: 1.0}",
            ],
            "1 prefill and 1 decode instances for each of 3 models do not fit in 4",
        ),
    ],
    ids=lambda value: value[0].partition("=")[0] if isinstance(value, list) else "",
)
def test_exit_code_2_and_one_sentence(wrong: list[str], says: str, tmp_path: Path) -> None:
    code, said = answer([*QUICK, f"hydra.run.dir={tmp_path}", *wrong])
    assert code == 2
    assert says in said
    assert said.count("\n") == 1
