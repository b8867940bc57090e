"""Overrides: whatever is put in a key's place, a run ends well or is refused in one sentence.

Runs go through the command line's own `main`, in this process, in the simulator.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hydra.errors import HydraException
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from harness.__main__ import main
from harness.configuration.options import config_sentence, named_options
from harness.errors import UsageError
from harness.placement import Demand
from harness.running.prepare import prepare
from harness.running.sweep_points import failed
from tests.fuzz.conftest import inputs
from tests.fuzz.guards import check_sentence, no_hang, partial_files
from tests.fuzz.values import NUMBERS, SCALARS, TEXTS
from tests.running import ROOT, composed
from workloads.__main__ import main as workloads_main

TRACE = "arrival_s,model,prompt_tokens,output_tokens\n0,a,10,5\n0.5,b,700,40\n2,a,30,1\n2,a,9,90\n"
ALWAYS = ("+workload=trace", "tracking=none", "progress=false", "figure=null",
          "data.download=false", "workload.num_requests=20")  # fmt: skip
SIMULATED = (
    ("+system=vllm", "engine=sim", "hardware=a100x1", "model=llama2-7b",
     "workload.models.kind=single"),
    ("+system=aegaeon", "engine=sim"),
    ("+system=aegaeon", "engine=sim", "hardware=h800x16", "model_set=aegaeon"),
    ("+system=serverlessllm", "engine=sim", "hardware=h800x8", "model_set=aegaeon"),
    ("+system=serverlessllm", "engine=sim", "system.variant=artifact", "hardware=h800x8"),
    ("+system=muxserve", "engine=sim", "hardware=a100x2", "model_set=aegaeon_small"),
    ("+system='null'", "engine=none"),
)  # fmt: skip
REAL = (
    ("+system=vllm", "engine=torch"),
    ("+system=aegaeon", "engine=torch"),
    ("+system=vllm", "engine=vllm"),
    ("+system=vllm", "engine=openai", "engine.url=http://127.0.0.1:1/v1"),
)
# What names code to call or a folder to write to; these have tests of their own.
LEFT_OUT = ("_target_", "figure", "runs_dir", "tracking", "cache_dir", "path", "baseline")
OPTIONS = (
    "--resolve", "--cfg", "--package", "--info", "-m", "--nonsense", "--config-name=x", "=1", "a",
    "+", "~", "++seed", "seed", "+experiment=x", "seed=[", "engine={a", "hydra.x=1", "basis=1",
    "hydra.run.dir=/dev/null/x", "hydra.run.dir=" + "x" * 300, "runs_dir=" + "y" * 300,
)  # fmt: skip


@cache
def values(base: tuple[str, ...]) -> dict[str, Any]:
    """Every key of the composed configuration with its value; None: a group of keys, or a list."""
    found: dict[str, Any] = {}

    def walk(node: Any, prefix: str) -> None:
        for name in node:
            if str(name) in LEFT_OUT or "-" in str(name) or "." in str(name):
                continue
            key, child = f"{prefix}{name}", node._get_node(name)
            inner = isinstance(child, DictConfig) and not child._is_interpolation()
            found[key] = None if inner or child._is_interpolation() else child._value()
            if inner:
                walk(child, f"{key}.")

    walk(composed(*base, "+workload=trace"), "")
    return found


@cache
def numbers(base: tuple[str, ...]) -> list[str]:
    kinds = int | float
    return [
        key
        for key, value in values(base).items()
        if isinstance(value, kinds) and not isinstance(value, bool)
    ]


def quoted(value: Any) -> str:
    """In the override grammar."""
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, list):
        return "[" + ",".join(map(quoted, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{quoted(v)}" for k, v in value.items()) + "}"
    return str(value)


LISTS = st.lists(SCALARS, max_size=3)
MAPS = st.dictionaries(st.sampled_from(["rows", "seconds", "a", "1"]), SCALARS, max_size=2)
VALUES = st.one_of(NUMBERS, NUMBERS, SCALARS, TEXTS, LISTS, MAPS).map(quoted)
FACTORS = (0, 1e-9, 1e-3, 0.1, 0.5, 0.99, 1.01, 2, 10, 1e3, 1e6, 1e9, -1)
RAW = st.sampled_from(["???", "${seed}", "${nope}", "${oc.env:HOME}", "", "{}", "[]", "nan", "inf"])


@st.composite
def override(draw: st.DrawFn, base: tuple[str, ...]) -> str:
    """Half of them a number of the type that belongs there, which only what reads it can judge."""
    if draw(st.booleans()):
        key = draw(st.sampled_from(numbers(base)))
        old = values(base)[key]
        number = draw(st.one_of(st.sampled_from(FACTORS).map(lambda f: old * f), NUMBERS))
        fits = isinstance(old, float) or number != number or abs(number) == float("inf")
        return f"{key}={number if fits else int(number)}"
    key = draw(st.sampled_from(list(values(base))))
    kind = draw(st.sampled_from(["", "", "", "", "", "~", "+", "++", "new"]))
    if kind == "~":
        return f"~{key}"
    if kind == "new":
        return f"+{key}.{draw(st.sampled_from(['x', '0', 'seed']))}={draw(VALUES)}"
    return f"{kind}{key}={draw(st.one_of(VALUES, VALUES, RAW))}"


# Of keys whose values are lists of maps: maps with most of the right keys.
PARTS: dict[str, tuple[str, ...]] = {
    "faults.kill": ("instance", "host", "part", "at_s", "after_requests"),
    "faults.stall": ("instance", "link", "part", "at_s", "after_requests", "for_s", "factor"),
    "workload.arrivals.stages": ("seconds", "rate"),
}
CHOICES: dict[str, list[Any]] = {
    "engine.attention": ["auto", "torch", "vllm"],
    "system.router": ["round_robin", "least_loaded", "prefix_aware"],
    "client.concurrency": [1, 2, 20],
    "workload.arrivals.kind": ["poisson", "gamma", "ramp"],
    "slo.goodput": ["ttft:200 tbt_p99:100", "a/e2el:500", "tpot:50 tpot:60", "a/:1", "x/ttft:nan"],
    "+load_share": [0.2, 1, 1.5],
}
REPEATS = st.sampled_from([f"repeat={count}" for count in ("2", "0", "-1", "2x", "", "9" * 18)])


@st.composite
def newer(draw: st.DrawFn) -> str:
    """A key that takes a list of maps, or one of a few words; or a number of repeats."""
    if draw(st.integers(0, 9)) == 0:
        return draw(REPEATS)
    if draw(st.integers(0, 2)) == 0:
        key = draw(st.sampled_from(list(CHOICES)))
        return f"{key}={draw(st.one_of(st.sampled_from(CHOICES[key]), SCALARS).map(quoted))}"
    key = draw(st.sampled_from(list(PARTS)))
    values = st.one_of(st.integers(0, 3), st.integers(0, 3), SCALARS)
    parts = st.dictionaries(st.sampled_from(PARTS[key]), values, max_size=4)
    return f"{key}={quoted(draw(st.lists(parts, max_size=2)))}"


@st.composite
def command(draw: st.DrawFn, bases: tuple[tuple[str, ...], ...]) -> list[str]:
    base = draw(st.sampled_from(bases))
    words = draw(st.lists(override(base), min_size=1, max_size=2))
    return [*base, *words]


@contextmanager
def logging_kept() -> Iterator[None]:
    """Hydra, told to log where it cannot, silences this process for good."""
    level = logging.root.level
    try:
        yield
    finally:
        logging.root.setLevel(level)
        for logger in logging.root.manager.loggerDict.values():
            if isinstance(logger, logging.Logger):
                logger.disabled = False


def answer(words: list[str]) -> tuple[int, str]:
    """Exit status and what was said to stderr."""
    said, before = StringIO(), list(sys.argv)
    sys.argv = ["harness", *words]
    failed.clear()
    try:
        with logging_kept(), no_hang(), redirect_stderr(said), redirect_stdout(StringIO()):
            main()
    except SystemExit as end:
        return int(end.code or 0), said.getvalue()
    finally:
        sys.argv = before
    raise AssertionError("main always exits")


def check(words: list[str]) -> None:
    with TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "t.csv").write_text(TRACE)
        repeated = any(word.startswith("repeat=") for word in words)
        files = [f"workload.path={folder / 't.csv'}", f"data.cache_dir={folder / 'cache'}"]
        where = [f"hydra.sweep.dir={folder / 'runs'}"] if repeated else [
            f"hydra.run.dir={folder / 'runs' / 'one'}"]  # fmt: skip
        code, said = answer([*ALWAYS, *files, *where, *words])
        assert code in (0, 2), said
        if code == 2:
            check_sentence(said)
            assert sorted(path.name for path in folder.iterdir()) == ["t.csv"], said
        else:
            runs = [path for path in (folder / "runs").glob("[!.]*") if path.is_dir()]
            assert all((path / "summary.json").is_file() for path in runs)
        assert not partial_files(folder)


@inputs(0.05)
@given(command(SIMULATED))
def test_a_simulated_run_ends_well_or_is_refused(words: list[str]) -> None:
    check(words)


@inputs(0.1)
@given(st.sampled_from(SIMULATED), st.lists(newer(), min_size=1, max_size=2))
def test_faults_stages_loops_limits_and_repeats_end_well_or_are_refused(
    base: tuple[str, ...], words: list[str]
) -> None:
    check([*base, *words])


@inputs(0.02)
@given(st.lists(st.sampled_from(OPTIONS), min_size=1, max_size=2))
def test_a_wrong_command_is_refused(words: list[str]) -> None:
    check([*SIMULATED[0], *words])


@inputs(0.05)
@given(command(REAL))
def test_what_a_real_engine_is_told_is_checked_before_it_starts(words: list[str]) -> None:
    with TemporaryDirectory() as made:
        path = Path(made) / "t.csv"
        path.write_text(TRACE)
        code, said = prepared([*ALWAYS, f"workload.path={path}", *words])
        assert code in (0, 2)
        if code:
            check_sentence(said)
        assert [found.name for found in Path(made).iterdir()] == ["t.csv"]


def prepared(words: list[str]) -> tuple[int, str]:
    """As `main` would, up to the engine's start. Hydra raises ValueError for an odd option, and for
    a list in an option's place TypeError, unless it is refused before."""
    try:
        named_options(words)
        config = composed(*words)
    except (UsageError, HydraException, OmegaConfBaseException, ValueError) as error:
        return 2, config_sentence(error, ROOT / "conf")
    try:
        with no_hang():
            parts = prepare(config)
            demand = Demand(dict.fromkeys(parts.models, 0.1))
            parts.system.place(parts.system_config, parts.models, parts.hardware, demand)
    except (UsageError, OmegaConfBaseException) as error:
        return 2, config_sentence(error, ROOT / "conf")
    return 0, ""


@inputs(0.05)
@given(st.lists(override(SIMULATED[0]), min_size=1, max_size=2))
def test_the_workloads_command_makes_a_schedule_or_refuses(words: list[str]) -> None:
    with TemporaryDirectory() as made:
        path, out = Path(made) / "t.csv", Path(made) / "out.parquet"
        path.write_text(TRACE)
        given_words = [f"workload.path={path}", "data.download=false", *words]
        said = StringIO()
        with no_hang(), redirect_stderr(said), redirect_stdout(StringIO()):
            status = workloads_main(["schedule", "trace", str(out), *given_words])
        assert status in (0, 2)
        assert out.is_file() == (status == 0)
        if status == 2:
            check_sentence(said.getvalue())
        assert not partial_files(Path(made))
