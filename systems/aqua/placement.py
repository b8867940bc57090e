"""Which consumers there are to be, with which lenders, and on which devices. Pure.

AQUA-PLACER matches them before models start (section 5); a run has what `system.pairs` names, or
one pair of the models that it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from harness.configuration.checks import refuse
from harness.configuration.config import typed
from harness.cost.hardware import Hardware
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Elastic, Placement
from systems.aqua.config import AquaConfig

Each = TypeVar("Each")


class GroupOf(NamedTuple):
    """Several consumers of one lender, or one consumer of a lender or several."""

    consumers: tuple[ModelSpec, ...]
    lenders: tuple[ModelSpec, ...]
    node: int | None = None  # null: wherever there is room, in their order


def groups_of(config: AquaConfig, models: Mapping[str, ModelSpec]) -> list[GroupOf]:
    """`models`: by the name that requests carry. Raises UsageError for a pair of models that there
    are not, and for a model that no pair serves."""
    specs = {spec.name: spec for spec in models.values()}
    lent: ModelSpec | None = None  # it has the consumer's
    if config.lender.model is not None:
        lent = typed(config.lender.model, ModelSpec, "system.lender.model")
    if config.pairs is None:
        own = [spec for spec in specs.values() if lent is None or spec.name != lent.name]
        if len(own) != 1:
            named = "" if lent is None else f" besides the lender's {lent.name}"
            raise UsageError(
                f"a consumer serves one model, and {len(own)} are asked for{named}; set "
                "model_set=one, or system.lender.model to the other, or name system.pairs"
            )
        return [GroupOf((own[0],), (lent or own[0],))]
    known = specs if lent is None else {**specs, lent.name: lent}
    found = []
    for pair in config.pairs:
        serving = [each.model for each in pair.lenders or () if each.serves]
        for name in (*pair.borrowers, pair.lender, *serving):
            if name is not None and name not in known:
                raise UsageError(
                    f"system.pairs: model {name} is unknown; valid: {', '.join(sorted(known))}"
                )
        consumers = tuple(known[name] for name in pair.borrowers)
        lenders: tuple[ModelSpec, ...]
        if pair.lenders is None:
            lenders = (known[pair.lender] if pair.lender else lent or consumers[0],)
        else:
            lenders = tuple(
                known[each.model] if each.serves else _in_place_of(each.model, consumers[0])
                for each in pair.lenders
            )
        found.append(GroupOf(consumers, lenders, pair.node))
        _check_devices(found[-1], several=pair.lenders is not None)
    served = {spec.name for group in found for spec in (*group.consumers, *group.lenders)}
    for name in specs:
        if name not in served:
            raise UsageError(
                f"system.pairs: none serves model {name}; served: {', '.join(sorted(served))}"
            )
    return found


def _in_place_of(name: str, consumer: ModelSpec) -> ModelSpec:
    """A model that makes images or audio, on one device: no engine here runs it. A layer of the
    consumer's model stands there in its place, and the rest of the memory is what can be lent."""
    return replace(consumer, name=name, num_layers=1, num_kv_layers=None, tp=1)


def _check_devices(group: GroupOf, *, several: bool) -> None:
    """One producer to one consumer, device by device (section 5)."""
    borrowing = sum(spec.tp for spec in group.consumers)
    lending = sum(spec.tp for spec in group.lenders)
    names = ", ".join(spec.name for spec in group.lenders)
    one = group.consumers[0].name
    refuse({
        f"system.pairs: {len(group.consumers)} consumers on {borrowing} devices borrow of {names}, "
        f"which has tp={lending}; a device lends to one consumer's":
            len(group.consumers) > 1 and borrowing > lending,
        f"system.pairs: {one} on {borrowing} devices borrows of {names} on {lending}; valid: a "
        "lender's device for each of its shards": several and borrowing != lending,
    })  # fmt: skip


def split(config: AquaConfig, instances: Sequence[Each]) -> list[tuple[list[Each], list[Each]]]:
    """The consumers and the lenders of each group, of what stands in `placed`'s order."""
    sizes = [(1, 1)]
    if config.pairs:
        sizes = [(len(pair.borrowers), len(pair.lenders or [0])) for pair in config.pairs]
    left = iter(instances)
    found = [
        ([next(left) for _ in range(borrow)], [next(left) for _ in range(lend)])
        for borrow, lend in sizes
    ]
    assert not list(left), "as many as are placed"
    return found


def placed(
    config: AquaConfig, models: Mapping[str, ModelSpec], hardware: Hardware
) -> list[Placement]:
    """Consumers, lender, consumers, lender, ...: each group within a node, node by node."""
    groups = groups_of(config, models)
    names = {spec.name: name for name, spec in models.items()}
    per_node = hardware.devices_per_node
    placements: list[Placement] = []
    at = 0
    for group in groups:
        specs = [*group.consumers, *group.lenders]
        needed = sum(spec.tp for spec in specs)
        within = min(per_node, hardware.num_devices)
        if needed > within:
            raise UsageError(
                f"consumer and lender need {needed} devices of one node for model.tp="
                f"{specs[0].tp}, and hardware={hardware.name} has {within}; memory is lent within "
                "a node"
            )
        if group.node is not None:
            at = max(at, group.node * per_node)
        if at % per_node + needed > per_node:
            at = (at // per_node + 1) * per_node  # the next node
        if group.node is not None and at // per_node != group.node:
            raise UsageError(
                f"system.pairs: node {group.node} has no room for {needed} devices more, or an "
                "earlier pair is of a later node"
            )
        if at + needed > hardware.num_devices:
            raise UsageError(
                f"{len(groups)} pairs do not fit on the {hardware.num_devices} devices of hardware="
                f"{hardware.name}, {per_node} a node; raise hardware.num_devices"
            )
        for number, spec in enumerate(specs):
            # KV that streams does so by layer
            consumes = number < len(group.consumers)
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
