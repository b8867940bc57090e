"""Little's law, L = λ·W, on a run's token log.

L is the mean number of requests in the system, which enter when they are sent and leave with their
latest token: the time that they are in it, added up, over the run's duration. λ·W comes from the
latencies that the summary reports: completed requests per second, times their mean end-to-end
latency from the scheduled arrival. Over a run that starts and ends empty the two are the same
number, unless the log contradicts itself: a client that is late, tokens out of order, an end before
its beginning. Knows of no system or engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.records.token_log import TokenLog


def littles_law(log: TokenLog) -> dict[str, Any]:
    """{"l", "lambda_w", "relative_gap", "num_left_out"} of the completed requests of `log`.

    L and λ are over the run's duration. num_left_out: requests that did not complete, of whose end
    the log has no time; they are in neither side. relative_gap: (L − λW) / |λW|, None where λW is
    0; negative latencies make λW negative, which L never is, so that they show as a gap.
    """
    done, duration_s = log.completed & log.started, log.duration_s
    lambda_w = float(log.e2e_s[done].sum()) / duration_s if duration_s > 0 else 0.0
    # The latest token, wherever in its request's list it stands.
    leaves_s = log.largest(log.times_s, np.nan)[done]
    in_system_s = float(np.maximum(leaves_s - log.sent_s[done], 0.0).sum())
    mean_in_system = in_system_s / duration_s if duration_s > 0 else 0.0
    return {
        "l": mean_in_system,
        "lambda_w": lambda_w,
        "relative_gap": (mean_in_system - lambda_w) / abs(lambda_w) if lambda_w else None,
        "num_left_out": int((~done).sum()),
    }
