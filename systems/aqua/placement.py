"""Which pairs of models there are to be, and on which devices. Pure.

AQUA-PLACER matches them before models start (section 5); a run has what `system.pairs` names, or
one pair of the models that it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.config import typed
from harness.cost.hardware import Hardware
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Elastic, Placement
from systems.aqua.config import AquaConfig

PairOf = tuple[ModelSpec, ModelSpec]  # the consumer's and the lender's


def lender_model(config: AquaConfig) -> ModelSpec | None:
    """None: it has the consumer's."""
    if config.lender.model is None:
        return None
    found: ModelSpec = typed(config.lender.model, ModelSpec, "system.lender.model")
    return found


def pairs_of(config: AquaConfig, models: Mapping[str, ModelSpec]) -> list[PairOf]:
    """`models`: by the name that requests carry. Raises UsageError for a pair of models that there
    are not, and for a model that no pair serves."""
    specs = {spec.name: spec for spec in models.values()}
    lent = lender_model(config)
    if config.pairs is None:
        own = [spec for spec in specs.values() if lent is None or spec.name != lent.name]
        if len(own) != 1:
            named = "" if lent is None else f" besides the lender's {lent.name}"
            raise UsageError(
                f"a consumer serves one model, and {len(own)} are asked for{named}; set "
                "model_set=one, or system.lender.model to the other, or name system.pairs"
            )
        return [(own[0], lent or own[0])]
    known = specs if lent is None else {**specs, lent.name: lent}
    found = []
    for pair in config.pairs:
        for name in (pair.consumer, pair.lender):
            if name is not None and name not in known:
                raise UsageError(
                    f"system.pairs: model {name} is unknown; valid: {', '.join(sorted(known))}"
                )
        own_spec = known[pair.consumer]
        found.append((own_spec, known[pair.lender] if pair.lender else lent or own_spec))
    served = {spec.name for pair_of in found for spec in pair_of}
    for name in specs:
        if name not in served:
            raise UsageError(
                f"system.pairs: none serves model {name}; served: {', '.join(sorted(served))}"
            )
    return found


def placed(
    config: AquaConfig, pairs: Sequence[PairOf], models: Mapping[str, ModelSpec],
    hardware: Hardware,
) -> list[Placement]:  # fmt: skip
    """Consumer, lender, consumer, lender, ...: each pair within a node, node by node."""
    names = {spec.name: name for name, spec in models.items()}
    per_node = hardware.devices_per_node
    placements: list[Placement] = []
    at = 0
    for pair in pairs:
        needed = sum(spec.tp for spec in pair)
        within = min(per_node, hardware.num_devices)
        if needed > within:
            raise UsageError(
                f"consumer and lender need {needed} devices of one node for model.tp="
                f"{pair[0].tp}, and hardware={hardware.name} has {within}; memory is lent within a "
                "node"
            )
        if at % per_node + needed > per_node:
            at = (at // per_node + 1) * per_node  # the next node
        if at + needed > hardware.num_devices:
            raise UsageError(
                f"{len(pairs)} pairs do not fit on the {hardware.num_devices} devices of hardware="
                f"{hardware.name}, {per_node} a node; raise hardware.num_devices"
            )
        for consumes, spec in zip((True, False), pair, strict=True):
            # KV that streams does so by layer
            page_layers = 1 if config.consumer.streams and consumes else None
            placements.append(
                Placement(
                    devices=range(at, at + spec.tp), model=names.get(spec.name, spec.name),
                    own=None if spec.name in names else spec,
                    elastic=Elastic(page_layers=page_layers),
                )
            )  # fmt: skip
            at += spec.tp
    return placements
