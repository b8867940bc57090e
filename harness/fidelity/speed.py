"""How fast a real run's decoding iterations were against the profile's: the machine drifts.

Near the knee a few per cent of speed decide whether a queue builds up. A point is therefore
simulated twice: as calibrated, which is the prediction, and with every time of the profile taken
as much longer as the real run's iterations were in all. That takes out drift, and also what the
profile gets wrong of such iterations on the whole: it tells the errors of iteration times from
those of queueing and batching, and is no prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.calibrate.fit import served_errors
from harness.calibrate.lockstep import Budget, Stream, iterations, misplaced, timeline, works
from harness.calibrate.measure_vllm import MISPLACED
from harness.cost.hardware import pair_key
from harness.fidelity.parity_runs import Setting, calibration
from harness.records.run_folder import FinishedRun


def time_scale(served: FinishedRun, setting: Setting) -> float | None:
    """The seconds of the run's iterations over those that the profile has for them: of those with
    decodes, since a prompt's alone has no end before it to count from. None where no answer had a
    second token, or streams do not tick together, so that iterations cannot be told apart."""
    streams = [stream(row) for row in served.requests.to_pylist() if row["token_times_s"]]
    found = timeline(streams)
    if misplaced(streams, found) > MISPLACED * sum(len(stream.times_s) for stream in streams):
        return None
    seen = iterations(works(streams, found, budget(served)), found.ends_s)
    if not len(seen.seconds):
        return None
    known = calibration(served, setting)
    terms = known.measured[pair_key(setting.model, 1)]
    errors = served_errors(terms, known.turnaround_s, seen)
    return float(seen.seconds.sum() / (seen.seconds * (1 + errors)).sum())


def stream(row: Mapping[str, Any]) -> Stream:
    """The stream of a row of requests.parquet, which has every token's time, also where some came
    together."""
    return Stream(row["prompt_tokens"], row["sent_s"], np.array(row["token_times_s"]))


def budget(served: FinishedRun) -> Budget:
    """The budget of one iteration: of a server that schedules by itself what it said, else our
    policy's."""
    limits: Mapping[str, Any] = served.config["system"]
    for server in served.manifest["engine"].get("servers", {}).values():
        limits = server
    return Budget(limits["max_num_seqs"], limits["max_num_batched_tokens"])
