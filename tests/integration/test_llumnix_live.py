"""Llumnix's migration of running requests on real workers: the tokens of an undisturbed run."""

from __future__ import annotations

import pytest
import torch

from tests.elastic import check, generated, private, undisturbed
from tests.llumnix import llumnix, move_lopsided

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]
torch.set_num_threads(1)  # of the undisturbed run, in this process


def test_requests_that_migrate_while_they_decode_keep_their_tokens() -> None:
    with private("torch", 2, kv_blocks=80) as bed:
        move_lopsided(bed, llumnix(bed, "system.mode=migration", "system.poll_s=0.005"))
        check(bed)
        moves = [event for event in bed.recorder.events if event["kind"] == "kv_move"]
        assert sum(event["fields"]["bytes"] for event in moves) > 0
        assert generated(bed) == undisturbed(bed)
