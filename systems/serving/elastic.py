"""The elastic instances of a run, for systems that serve on no others."""

from __future__ import annotations

from harness.cluster import Cluster
from harness.elastic.cluster import ElasticCluster


def elastic_of(cluster: Cluster, why: str) -> ElasticCluster:
    """Raises ValueError where the engine has none. `why`: which system needs them, and for what."""
    if cluster.elastic is None:
        raise ValueError(f"system {why}: choose engine=torch or engine=sim")
    return cluster.elastic
