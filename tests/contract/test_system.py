"""Every system on every engine that it claims: twenty requests, all served, nothing left behind,
and on real workers the tokens of a run alone.

A new system is found by its file in conf/system/. What only a simulation can do says so here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from harness.cluster import Cluster
from harness.errors import UsageError
from harness.placement import Demand
from harness.records.record import Recorder
from harness.running.client import Client
from harness.running.faults import Faults, striking
from harness.running.prepare import Prepared, prepare
from harness.running.testbed import started
from tests.accounts import audit
from tests.exactness import answers, make_clear, plain_tokens
from tests.running import ROOT, composed

pytestmark = pytest.mark.usefixtures("forked_workers")

NO_DEVICE = {"null"}  # answers at once: engine=none alone
SYSTEMS = sorted({path.stem for path in (ROOT / "conf/system").glob("*.yaml")} - NO_DEVICE)
TWO_RANKS = "vllm model.tp=2 hardware=local_x2 hardware.num_devices=4"
# Whose memory a device here has not.
SIMULATED_ONLY = {"muxserve": ("hardware=h800x8",)}
NUM_REQUESTS = 20
SMALL = (
    "+workload=burstgpt", f"workload.num_requests={NUM_REQUESTS}",
    "workload.scale.to_rate_per_s=10", "workload.lengths.max_prompt_tokens=96",
    "workload.lengths.max_output_tokens=24",
)  # fmt: skip
ENGINES = {
    "sim": ("engine=sim", "hardware.num_devices=4", "hardware.devices_per_node=4"),
    "torch": ("engine=torch", "engine.device=cpu", "engine.num_threads=1"),
}


@dataclass(slots=True)
class Served:
    parts: Prepared
    recorder: Recorder
    cluster: Cluster


def serve(system: str, engine: str, *overrides: str, faults: Faults | None = None) -> Served:
    more = SIMULATED_ONLY.get(system, ()) if engine == "sim" else ()
    parts = prepare(composed(f"+system={system}", *SMALL, *ENGINES[engine], *more, *overrides))
    requests = parts.schedule.requests()
    if engine == "torch":
        make_clear(requests, parts.models)
    recorder = Recorder(requests)
    demand = Demand(dict.fromkeys(parts.models, 1.0))
    placements = parts.system.place(parts.system_config, parts.models, parts.hardware, demand)
    of = parts.engine, parts.models, parts.hardware, placements, recorder
    with started(*of) as (cluster, loop):
        built = parts.system(parts.system_config, loop=loop, cluster=cluster)
        client = Client(300.0, loop=loop, recorder=recorder, system=built)

        async def main() -> None:
            loop.spawn(built.serve(), name="system")
            await client.play(requests)

        with striking(faults or Faults(), cluster, {}, loop, recorder):
            loop.run(main())
        return Served(parts, recorder, cluster)


def kv_pools(cluster: Cluster) -> list[Any]:
    elastic = [] if cluster.elastic is None else cluster.elastic.instances
    instances: list[Any] = [*cluster.instances, *elastic]
    pools = [instance.kv for instance in instances]
    return pools + [i.kv(model) for i in cluster.pool for model in i.models]


@pytest.mark.parametrize("engine", ["sim", pytest.param("torch", marks=pytest.mark.live)])
@pytest.mark.parametrize("system", [*SYSTEMS, TWO_RANKS])
def test_a_system_serves_twenty_requests(system: str, engine: str) -> None:
    system, *more = system.split()
    if engine == "torch" and system in SIMULATED_ONLY:
        with pytest.raises(UsageError, match=r"choose engine=sim|cannot find a placement"):
            serve(system, engine)
        return
    served = serve(system, engine, *more)
    records = served.recorder.records.values()
    assert len(records) == NUM_REQUESTS
    for record in records:
        assert record.status == "completed", (record.request, record.error)
        times = record.token_times_s()
        assert len(times) == record.request.output_tokens
        assert (times[1:] >= times[:-1]).all()
        assert times[0] >= record.request.arrival_s
    for pool in kv_pools(served.cluster):
        assert not pool.held
        audit(pool)
    if engine == "torch":
        requests = [record.request for record in records]
        assert answers(*requests) == plain_tokens(requests, served.parts.models)
