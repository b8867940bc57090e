"""A hardware profile refuses constants that no device has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.running import hardware_profile

PROFILE = hardware_profile("a100x1")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("memory_bytes", 0),
        ("dense_flop_per_s", float("inf")),
        ("leaf_oversubscription", 0.0),
        ("nic_latency_s", -1e-6),
        ("ssd_bytes_per_s", float("nan")),
    ],
)
def test_a_constant_that_is_negative_infinite_or_missing_is_named(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{key}={value} must be a finite number"):
        replace(PROFILE, **{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [("decode_s", -5.0), ("prefill_s", float("nan")), ("kv_efficiency", 0.0)],
)
def test_so_is_one_of_the_calibration(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{key}={value} must be a finite number"):
        replace(PROFILE.calibration, **{key: value})


def test_and_one_of_a_measured_model() -> None:
    pair, measured = next(iter(PROFILE.calibration.measured.items()))
    broken = {pair: replace(measured, token_s=-1.0)}
    with pytest.raises(ValueError, match=rf"measured\.{pair}\.token_s=-1.0 must be"):
        replace(PROFILE.calibration, measured=broken)


def test_what_a_device_does_not_have_is_0() -> None:
    assert replace(PROFILE, nvlink_bytes_per_s=0.0).nvlink_bytes_per_s == 0
