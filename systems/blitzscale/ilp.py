"""ZigZag's pipeline configuration as an integer linear program (§5.2, eq. 1), solved by HiGHS.

The formulas are missing in our text; this reading follows the sentences around them. Batch i has
layer time w_i. The target runs T_i of its layers, the source S_i. The source takes the batches in
order, and begins batch i at time b_i:

    minimise  sum of (b_i + w_i S_i)                  the latencies: own time and the queue's
    C1        T_i + S_i = L,  T_i >= 1                (every batch begins on the target: step 2)
              b_i >= b_(i-1) + w_(i-1) S_(i-1)
    C2        b_i >= sum of w_j T_j over j <= i       the target has run what it should
    C3        b_i >= r_1 + load (T_i - 1) + w_i       the last of these layers was loaded, and run

where r_1 is when the first layer was there. In the paper all w_i are equal, and b_i follows from
the sums of S. Here b_i is a variable, so that the source may wait a fraction of a layer, which the
unequal batches of §5.4 need. T_i >= 1 requires the first layer to be there.

The paper leaves out the time h_i that activations take to the source; adding it is ours. C2 and C3
then have h_i on their right side, and the source may run a whole batch (T_i = 0). z_i says whether
a batch begins on the target: z_i <= T_i <= L z_i, and C2 and C3 hold if it does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp

from systems.blitzscale.timeline import PairTimes, replay

GAP = 1e-3  # of the objective: a plan this near the optimum is taken; it saves half of the time
ROUNDING_S = 1e-9
NODE_LIMIT = 1000  # of the search, not seconds: a plan must not depend on the machine. One is usual
SOLVE_ERROR = 4  # scipy's status for "other": not solved, infeasible or out of time


def ilp(times: PairTimes) -> Sequence[int | None]:
    """T of each batch; None of a batch: the ILP-free rule.

    The best plan found within `NODE_LIMIT` is taken. The caller charges the time of solving.

    The program does not know that a layer which has begun is not broken off: a very long batch can
    hold up others on the target. If the plan's replay ends later than the source alone would, the
    ILP-free rule is returned instead.

    Raises ValueError if the first layer is not loaded yet; RuntimeError if no plan is found in
    so many nodes.
    """
    if times.ready_s[0] > 0:
        raise ValueError(f"the first layer is loaded in {times.ready_s[0]} s only")
    count = len(times.layer_s)
    if not count:
        return []
    result = _solved(times)
    if result.status == SOLVE_ERROR:  # of rounding: the same program in another unit of time
        result = _solved(times, unit_s=max(times.layer_s))
    if result.x is None:
        raise RuntimeError(f"no pipeline configuration found: {result.message}")
    limits = [round(each) for each in result.x[:count]]
    ends_s = sorted(replay(times, limits).ends_s)
    alone_s = sorted(replay(times, [0] * count).ends_s)  # the source alone
    worse = any(a > b + ROUNDING_S for a, b in zip(ends_s, alone_s, strict=True))
    return [None] * count if worse else limits


def _solved(times: PairTimes, unit_s: float = 1.0) -> OptimizeResult:
    """unit_s: the unit of time of the program, in seconds."""
    count, layers = len(times.layer_s), times.num_layers
    work = np.asarray(times.layer_s) / unit_s
    ready_s = np.asarray(times.ready_s) / unit_s
    # The load time of one layer: at this constant rate no layer would arrive earlier than it does.
    load_s = max([0.0, *((ready_s[1:] - ready_s[0]) / np.arange(1, layers))])
    identity = np.eye(count)
    before = np.eye(count, k=-1)
    # Among equal plans, prefer fewer layers on the target if the source need not wait. The whole
    # term is less than a quarter of a layer.
    rather_less = 1 / (4 * count * layers)
    # Variables are T_1 ... T_n, b_1 ... b_n, z_1 ... z_n.
    hop_s = np.asarray(times.hop_s or [0.0] * count) / unit_s
    never_s = layers * (work.sum() + load_s) + ready_s[0] + hop_s.max()  # frees C2, C3
    none = np.zeros((count, count))
    begun = -never_s * identity
    in_order = np.hstack([before * work, identity - before, none])
    order_s = layers * (before @ work)
    order_s[0] = times.source_free_s / unit_s
    on_target = np.hstack([-np.tril(np.ones((count, count))) * work, identity, begun])
    loaded = np.hstack([-load_s * identity, identity, begun])
    some = np.hstack([identity, none, -identity])
    only = np.hstack([-identity, none, layers * identity])
    matrix = np.vstack([in_order, on_target, loaded, some, only])
    loaded_s = ready_s[0] + work - load_s + hop_s - never_s
    least = np.concatenate([order_s, hop_s - never_s, loaded_s, np.zeros(2 * count)])
    begins = np.full(count, 0.0 if any(times.hop_s) else 1.0)
    return milp(
        np.concatenate([rather_less * work - work, np.ones(count), np.zeros(count)]),
        integrality=np.concatenate([np.ones(count), np.zeros(count), np.ones(count)]),
        bounds=Bounds(
            np.concatenate([begins, np.zeros(count), begins]),
            np.concatenate([np.full(count, layers), np.full(count, np.inf), np.ones(count)]),
        ),
        constraints=LinearConstraint(matrix, least, np.inf),
        options={"node_limit": NODE_LIMIT, "mip_rel_gap": GAP},
    )
