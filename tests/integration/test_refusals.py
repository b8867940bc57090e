"""Overrides that are valid YAML and wrong values: each refused in one sentence that names it.

In this process, for speed; `test_cli.py` runs the command itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.test_overrides import TRACE, answer

SIM = ("+system=vllm", "+workload=trace", "engine=sim", "hardware=a100x1", "model=llama2-7b",
       "workload.models.kind=single", "tracking=none", "figure=null", "progress=false")  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["data=1"], "data=1 is no option of data; valid keys: data.dir, data.cache_dir, "),
        (
            ["client=abc"],
            "client=abc is no option of client; valid keys: client.drain_s, client.concurrency",
        ),
        (["faults=1"], "faults=1 is no option of faults; valid keys: faults.kill"),
        (["data=[1]"], "data: Cannot merge DictConfig with ListConfig; valid keys: data.dir, "),
        (["~engine"], "engine is missing, and nothing can be run without it"),
        (["~seed"], "config: seed is missing: give it a value"),
        (["basis=1"], "unknown key basis; valid keys there: hydra, model, model_set, hardware"),
        (["hardware.calibration.basis=1"], "basis=1 is unknown; valid: device law, datasheet"),
        (["~hardware.device"], "hardware.device=None is unknown; valid: cpu, A10"),
        (["--resolve"], "The --resolve flag can only be used in conjunction with --cfg"),
        (["model=0"], "model=0 does not exist; choose one of: baichuan-7b, "),
        (["model=[null]"], "model=[null] does not exist; choose one of: baichuan-7b, "),
        (["engine.pool.host_kv_bytes=-1"], "engine: pool.host_kv_bytes=-1 must be a number of 64"),
        (["engine.pool.slab_bytes=0"], "engine: slab_bytes=0 must be at least 1"),
        (["engine.pool.chunk_bytes=0"], "engine: chunk_bytes=0 must be above 0"),
        (["~model_set.cycle"], "model_set: cycle is missing: give it a value"),
        (["+system=aegaeon", "engine.pool.slab_bytes=1"], "slabs of 1 bytes divide"),
        (
            ["+system=aegaeon", "hardware=h800x16", "system.store.path=/dev/null/x"],
            "system.store.path=/dev/null/x cannot be opened as a store",
        ),
        (
            ["+system=llumnix", "hardware=a100x2", "engine.num_kv_blocks=2"],
            "but sim-0 has room for 32; raise engine.num_kv_blocks",
        ),
        (["+system=muxserve", "system.quotas.window_s=1e-300"], "quotas.window_s=1e-300 must be"),
        (["hardware.num_devices=9223372036854775808"], "num_devices=9223372036854775808 must be a"),
        (["hardware.num_devices=70000"], "num_devices=70000 must be at most 65536"),
        (["hardware.devices_per_node=1000000000000"], "devices_per_node=1000000000000 must be at"),
        (["engine=torch", "engine.num_threads=1000000"], "engine.num_threads=1000000 must be at m"),
        (["workload.lengths.scale_output=1e18"], "scale_output=1e+18 makes lengths of"),
        (
            ["workload.scale.rate=1e12"],
            "workload.scale.rate=1e+12 asks for 4e+12 requests; at most",
        ),
        (
            ["workload.scale.rate=1e308"],
            "workload.scale.rate=1e+308 asks for endlessly many requests; ",
        ),
        (["workload.scale={how: stretch, rate: 1e-15}"], "later than 100,000,000 s"),
        (["workload.scale.to_rate_per_s=1e-300"], "later than 100,000,000 s"),
        (["workload.num_requests=1000000000000"], "requests; at most 100,000,000"),
        (
            ["workload.models={kind: zipf, num_models: 1000000000, alpha: 1}"],
            "num_models=1000000000 must be at most 1,000,000",
        ),
        (["workload.scale={how: stretch, rate: 1e-320}"], "arrival_s must be finite numbers"),
        (["model.max_position=4294967296"], "max_position=4294967296 must be at most 2147483647"),
        ([f"model.name={'x' * 300}"], "… (305 characters) must be printable"),
        (["model.path=/nowhere"], "model.path=/nowhere holds no config.json"),
        ([f"workload.arrivals.kind={'x' * 100_000}"], "x… (100023 characters) is unknown; valid k"),
        ([f"runs_dir={'x' * 300}"], "File name too long"),
        (["engine._target_=subprocess.Popen"], "_target_=subprocess.Popen cannot be configured"),
        (["engine=openai", "engine.url='http://h:x/v1'"], "engine.url must be a base URL such as"),
        (["engine=openai", "engine.url='http://127.0.0.1:1/v1'"], "v1 cannot be reached"),
    ],
)
def test_a_wrong_value_is_named_in_one_sentence(
    tmp_path: Path, wrong: list[str], says: str
) -> None:
    groups = {word.split("=")[0] for word in wrong}
    right = [word for word in SIM if word.split("=")[0] not in groups]
    (tmp_path / "t.csv").write_text(TRACE)
    files = [f"workload.path={tmp_path / 't.csv'}", f"hydra.run.dir={tmp_path / 'new' / 'run'}"]
    code, said = answer([*right, *files, *wrong])
    assert code == 2
    *before, sentence = said.strip().splitlines()
    assert sentence.startswith("error: ")
    assert says in sentence
    assert all("requests there are: fewer than" in line or "sending to" in line for line in before)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


SMALL = ("workload=burstgpt", "engine=sim", "hardware=local_cluster_x4", "engine.num_kv_blocks=192",
         "tracking=none", "figure=null", "progress=false")  # fmt: skip
ARTIFACT = "system.variant=artifact"
EIGHT, UNLIMITED = "system.artifact.group_size=8", "system.max_group_size=null"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["model_set=tiny", "hardware.num_devices=8"], "serves one model with one tp, not "),
        ([ARTIFACT, "hardware.num_devices=8", EIGHT, UNLIMITED], "at most 4, the m"),
        ([ARTIFACT, EIGHT], "system.max_group_size=2 allows 2: set system.max_group_size=null"),
        (["system.chunks.link_bytes_per_s=0"], "must be above 0: without a link"),
        (["hardware.host_memory_bytes=1000"], "keeps a copy of the weights on each host: DRAM of"),
        (["system.artifact.restore_usage=0.99"], "restore_usage=0.99 and system.artifact.drop_us"),
        ([ARTIFACT, "system.plan=memory"], "system.plan=memory is for variant=paper"),
        ([ARTIFACT, "system.exchange=blocking"], "exchange=blocking is an ablation of variant=pa"),
        (["system.plan=exhaustive", "hardware.num_devices=9"], "for up to 8 instances; there"),
        (["system.monitor.queue=last"], "monitor.queue=last is unknown; valid: all, first, plan"),
        (["system.restore=no"], "system.restore=no is unknown; valid: live, drain, never"),
        (["engine=vllm"], "choose engine=torch or engine=sim"),
        (["+system=llumnix", "system.mode=x"], "mode=x is unknown; valid: replication, migration"),
        (["+system=llumnix", "system.mode=pipeline", "system.stages=3"], "cannot form groups of 3"),
        (["+system=llumnix", "system.stages=2"], "stages=2 is for mode=pipeline, not mode=replic"),
        (["+system=vllm", "system.preemption=x"], "preemption=x is unknown; valid: recompute, kv"),
        (["+system=vllm", "system.swap.requests=0"], "system.swap.requests=0 must be at least 1"),
        (
            ["+system=vllm", "system.preemption=parameter_swap"],
            "536870912 bytes are more than streaming the model's 4 layers frees: ",
        ),
        (
            ["+system=vllm", "system.preemption=parameter_swap", "engine=torch"],
            "engine=torch cannot stream layers from host memory",
        ),
    ],
)
def test_kunserve_and_its_baselines_refuse_in_one_sentence(
    tmp_path: Path, wrong: list[str], says: str
) -> None:
    given = wrong if wrong[0].startswith("+system") else ["+system=kunserve", *wrong]
    real = any(word in ("engine=vllm", "engine=torch") for word in wrong)
    right = [f"+{SMALL[0]}", *SMALL[2 if real else 1 :]]
    words = [w for w in right if not (real and w.startswith("engine"))]
    words = [word for word in words if word.split("=")[0] not in {w.split("=")[0] for w in wrong}]
    code, said = answer([*words, f"hydra.run.dir={tmp_path / 'run'}", *given])
    assert code == 2
    sentence = said.strip().splitlines()[-1]
    assert sentence.startswith("error: ")
    assert says in sentence
