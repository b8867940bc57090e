"""The group manager of a run, as `conf/system/kunserve.yaml` has it."""

from __future__ import annotations

from harness.clock import Loop
from harness.cluster import Cluster
from harness.elastic.cluster import ElasticCluster
from harness.elastic.instance import ElasticInstance
from harness.elastic.pipeline import Pipeline
from harness.errors import RunError
from systems.kunserve.artifact import limits_of
from systems.kunserve.config import KunServeConfig, check_instances
from systems.kunserve.dispatcher import dispatch_load
from systems.kunserve.exchange import message_bytes
from systems.kunserve.group import Group
from systems.kunserve.group_kv import GroupKv
from systems.kunserve.group_manager import GroupManager
from systems.kunserve.server import Server
from systems.kunserve.weights import Rates

ALL_REQUESTS = 2**31  # victims at a time


def manager_of(
    config: KunServeConfig, loop: Loop, cluster: Cluster, elastic: ElasticCluster
) -> GroupManager:
    """Raises ValueError for instances that cannot drop parameters, or if a host has no room for a
    copy of the weights."""
    instances, chunks, artifact = elastic.instances, config.chunks, config.variant == "artifact"
    check_instances(config, instances)
    victims = ALL_REQUESTS if config.exchange == "blocking" else 0
    kv = GroupKv(
        elastic, loop, retry_s=config.poll_s,
        victims=config.artifact.victims if artifact else victims,
        chunk_bytes=message_bytes(chunks, instances[0], cluster),
    )  # fmt: skip

    def server(group: Group, executor: ElasticInstance | Pipeline) -> Server:
        limits = config.limits
        if artifact:
            limits = limits_of(limits, len(group), config.artifact)
        return Server(
            group, executor, loop, limits=limits, steps_beside=config.steps_beside,
            balanced=artifact,
        )  # fmt: skip

    for host in elastic.hosts.values():
        try:
            host.keep(instances[0].model.name)  # §4.3, fault tolerance
        except RunError as error:
            raise ValueError(
                f"system kunserve keeps a copy of the weights on each host: {error}; raise "
                "hardware.host_memory_bytes"
            ) from error
    rates = Rates(chunks.link_bytes_per_s, cluster.profile.pcie_bytes_per_s)
    return GroupManager(elastic, loop, kv, server, dispatch_load, rates=rates)
