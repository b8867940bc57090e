"""Goodput by setup and the fits of appendix A.2, from rows that can be worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.calibrate import profiles
from harness.calibrate.profiles import Cells
from harness.errors import UsageError
from plots.aegaeon import numbers
from plots.aegaeon.goodput import goodputs
from plots.aegaeon.numbers import explained, lowest


def runs(experiment: str, lengths: str | None, system: str, *token: float) -> pd.DataFrame:
    rows = pd.DataFrame({"num_models": 10 * np.arange(1, len(token) + 1), "token": token})
    return rows.assign(
        time=rows.token,
        experiment=experiment,
        lengths=lengths,
        system=system,
        seed=0,
        mechanism=math.nan if system == "muxserve" else 5,
    )


def test_goodput_is_found_in_each_setup_and_set_against_aegaeons() -> None:
    nan = math.nan
    found = goodputs(
        pd.concat(
            [
                runs("aegaeon_fig11a", None, "aegaeon", 1.0, 1.0, 0.8),
                runs("aegaeon_fig11a", None, "muxserve", 1.0, nan, nan),
                runs("aegaeon_fig11a", None, "serverlessllm", 0.5, 0.4, 0.3),
                runs("aegaeon_fig12_rps01", "ix2", "aegaeon", 1.0, 0.8, 0.6),
                runs("aegaeon_fig12_rps01", "ox2", "aegaeon", 1.0, 0.9, 0.9),
            ]
        )
    )
    token = found[found.metric == "token"].set_index(["setup", "system"])
    assert token.goodput["0.1/s", "aegaeon"] == pytest.approx(25.0)
    assert token.goodput["0.1/s, inputs x 2", "aegaeon"] == pytest.approx(15.0)
    assert math.isnan(token.goodput["0.1/s, outputs x 2", "aegaeon"])  # never below 90 %
    assert token.ratio["0.1/s", "muxserve"] == pytest.approx(2.5)
    assert math.isnan(token.ratio["0.1/s", "serverlessllm"])
    assert len(token) == 5


def cells(tp: int, decode_s: float) -> Cells:
    """Prefill times of exactly eq. 5, decode times `decode_s` for each request of the batch."""
    length, batch = (x.ravel() for x in np.meshgrid([16.0, 64.0, 256.0], [1.0, 2.0, 8.0]))
    prefill_s = 0.01 + 1e-4 * batch * length + 1e-7 * batch * length**2
    return Cells("m", "d", tp, length, batch, prefill_s, 0.01 + decode_s * batch)


def test_equation_6_explains_a_batchs_own_cost_only_with_the_term_for_it() -> None:
    fits = explained(cells(1, 1e-3))
    assert fits["eq. 5 (prefill)"] == pytest.approx(1.0)
    assert fits["eq. 6 and C6 B (decode)"] == pytest.approx(1.0)
    assert fits["eq. 6 (decode)"] < 0.9


def test_the_lowest_is_taken_over_all_pairs_and_over_those_of_one_gpu() -> None:
    noisy = cells(4, 1e-3)
    noisy.prefill_s[0] += 1.0
    found = lowest([cells(1, 1e-3), noisy])
    assert found["R2 of eq. 5 (prefill), lowest of TP 1"] == pytest.approx(1.0)
    assert found["R2 of eq. 5 (prefill), lowest of every pair"] < 0.9


def test_without_the_profiles_the_estimators_rows_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(profiles, "DATA_DIR", tmp_path)
    with pytest.raises(UsageError, match="profiles are missing"):
        profiles.read_profiles()
    assert not numbers.estimators()
    rows = pd.DataFrame({"quantity": ["M / m"], "value": [2.2], "inputs": ["paper"]})
    said = numbers.table_numbers.plot(rows)[1]
    assert "profiles are missing (HARNESS_DATA_DIR)" in said
