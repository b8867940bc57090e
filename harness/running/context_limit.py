"""Makes a schedule fit the models that will serve it, and says so in its provenance.

A trace's prompts may be longer than a model's context. Cutting them is a choice that changes
the workload, so it is labelled, and can be refused instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from harness.configuration.checks import one_of
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.schedule import Schedule
from harness.sessions import Sessions

FIT_CONTEXT = ("truncate", "refuse")


def models_of_schedule(
    schedule: Schedule,
    specs: Mapping[str, ModelSpec],
    cycle: Sequence[str],
    *,
    shared_checkpoints: bool,
) -> dict[str, ModelSpec]:
    """The model behind each name in the schedule, in order of first appearance: `specs` by the
    names in `cycle`, over and over; or, where `specs` has all of the schedule's names, its own.
    Two names with one architecture are two models, each with
    weights of its own unless they share a checkpoint; a cycle of one spec is one model under many
    names."""
    names = list(dict.fromkeys(schedule.model))
    if len(cycle) == 1:
        return dict.fromkeys(names, specs[cycle[0]])
    if set(names) <= specs.keys():
        return {name: spec for name, spec in specs.items() if name in names}
    return {
        name: replace(spec, seed=spec.seed + (0 if shared_checkpoints else index))
        for index, name in enumerate(names)
        for spec in [specs[cycle[index % len(cycle)]]]
    }


def fit_context(schedule: Schedule, models: Mapping[str, ModelSpec], fit_context: str) -> Schedule:
    """Cuts outputs to half of the model's positions and prompts to what the output leaves. A
    session ends before its first turn that does not fit.

    Unchanged where everything fits. With "refuse", a request that does not fit is a UsageError.
    """
    one_of(fit_context, FIT_CONTEXT, "fit_context", "choose one of")
    positions = np.array([models[name].max_position for name in schedule.model])
    over = schedule.prompt_tokens + schedule.output_tokens > positions
    if not over.any():
        return schedule
    row = int(np.argmax(over))
    if fit_context == "refuse":
        raise UsageError(
            f"request {row} asks for {schedule.prompt_tokens[row]} + {schedule.output_tokens[row]} "
            f"tokens, more than the {positions[row]} positions of model "
            f"{models[schedule.model[row]].name} ({int(over.sum())} requests do); set "
            "fit_context=truncate or a longer model.max_position"
        )
    if schedule.sessions is not None:
        return _shortened(schedule, schedule.sessions, over, int(positions[row]))
    prompt, output = schedule.prompt_tokens, schedule.output_tokens
    output = np.where(over, np.minimum(output, positions // 2), output)
    prompt = np.where(over, np.minimum(prompt, positions - output), prompt)
    step = (
        f"{int(over.sum())} of {len(schedule)} requests cut to the model's "
        f"{int(positions[row])} positions"
    )
    provenance = replace(schedule.provenance, steps=[*schedule.provenance.steps, step])
    prompts = None
    if schedule.prompts is not None:
        cut = zip(schedule.prompts, prompt.tolist(), strict=True)
        prompts = [each.first(num_tokens) for each, num_tokens in cut]
    return replace(
        schedule, prompt_tokens=prompt, output_tokens=output, provenance=provenance, prompts=prompts
    )


def _shortened(
    schedule: Schedule, sessions: Sessions, over: npt.NDArray[np.bool_], positions: int
) -> Schedule:
    """The schedule without the turns that are `over` and all that these begin."""
    keep, left = sessions.without(over)
    if not len(keep):
        raise UsageError(f"no session's first turn fits the model's {positions} positions")
    num_out = len(schedule) - len(keep)
    step = f"{num_out} turns left out: with them sessions exceed {positions} positions"
    if num_out > over.sum():
        step += f" ({num_out - over.sum()} of them fit, and begin behind one that does not)"
    provenance = replace(schedule.provenance, steps=[*schedule.provenance.steps, step])
    assert schedule.shared is not None, "sessions have streams"
    return replace(
        schedule, arrival_s=schedule.arrival_s[keep], model=[schedule.model[i] for i in keep],
        prompt_tokens=schedule.prompt_tokens[keep], output_tokens=schedule.output_tokens[keep],
        shared=[schedule.shared[i] for i in keep], provenance=provenance,
        sessions=left,
    )  # fmt: skip
