"""The search for the value at which a condition ends, and what it is asked in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from harness.errors import UsageError
from harness.experiments.capacity import (
    Span,
    Try,
    answer,
    default_folder,
    main,
    search,
    span_of,
    terms_of,
    tried_here,
)
from harness.experiments.compose import ROOT
from harness.experiments.probes import Probe, Term, run_probe
from harness.records.folder_lock import locked


def probes_of(holds: Callable[[float], bool], refused_below: float = 0.0) -> Try:
    def probe(value: float) -> Probe:
        if value < refused_below:
            return Probe(value, None, False, Path(), "does not fit")
        return Probe(value, (value,), holds(value), Path())

    return lambda values: [*map(probe, values)]


@pytest.fixture(autouse=True)
def hydra_as_it_was() -> Iterator[None]:
    """A command starts Hydra once for its process; other tests of this one start it anew."""
    GlobalHydra.instance().clear()
    yield
    GlobalHydra.instance().clear()


ODD = "a (b), c=d 'e' {f}"  # what Hydra gives a meaning, in a folder's name
WHOLE = Span("n", 1, 64, True, 0.02)


@pytest.mark.parametrize("edge", [1, 2, 31, 32, 33, 50, 62, 63])
def test_the_edge_is_found_from_either_side(edge: int) -> None:
    rising = search(WHOLE, probes_of(lambda v: v > edge))
    assert answer(WHOLE, rising, "c") == f"c holds from n={edge + 1} on"
    falling = search(WHOLE, probes_of(lambda v: v <= edge))
    assert answer(WHOLE, falling, "c") == f"c holds up to n={edge}"
    assert len(rising) <= 2 + 6
    assert [each.value for each in rising] == sorted({each.value for each in rising})


@pytest.mark.parametrize("at_a_time", [2, 3, 7, 100])
@pytest.mark.parametrize("edge", [1, 2, 32, 62, 63])
def test_values_tried_together_find_the_same_edge_in_fewer_rounds(
    edge: int, at_a_time: int
) -> None:
    rounds: list[Sequence[float]] = []

    def tried(values: Sequence[float]) -> list[Probe]:
        rounds.append(values)
        return probes_of(lambda v: v <= edge)(values)

    found = search(WHOLE, tried, at_a_time)
    assert answer(WHOLE, found, "c") == f"c holds up to n={edge}"
    assert all(len(values) <= max(2, at_a_time) for values in rounds)
    assert len({each.value for each in found}) == len(found)
    most = {2: 5, 3: 4, 7: 3, 100: 2}[at_a_time]  # beside the ends: 64 to less than 2
    assert len(rounds) <= 1 + most


def test_fractions_between_two_divide_them_evenly() -> None:
    span = span_of("rate=0.5..8", 0.01)
    assert span.between(1.0, 2.0, 3) == [1.25, 1.5, 1.75]
    assert span.between(1.0, 2.0, 1) == [1.5]
    assert span.between(1.0, 1.001, 3) == []
    assert WHOLE.between(3, 5, 9) == [4]
    assert WHOLE.between(4, 5, 9) == []


def test_what_is_refused_does_not_hold() -> None:
    found = search(WHOLE, probes_of(lambda v: True, refused_below=20))
    assert answer(WHOLE, found, "c") == "c holds from n=20 on"


def test_ends_that_agree_are_not_searched_between() -> None:
    everywhere = search(WHOLE, probes_of(lambda v: True))
    assert len(everywhere) == 2
    assert answer(WHOLE, everywhere, "c").startswith("c holds everywhere between n 1 and 64")
    assert "nowhere" in answer(WHOLE, search(WHOLE, probes_of(lambda v: False)), "c")


def test_both_ends_refused_is_the_commands_fault() -> None:
    with pytest.raises(UsageError, match="does not fit"):
        search(WHOLE, probes_of(lambda v: True, refused_below=100))


def test_fractions_are_found_to_within_a_share() -> None:
    span = span_of("rate=0.5..8", 0.01)
    found = search(span, probes_of(lambda v: v < 3.3))
    (edge,) = [each.value for each in found if each.holds][-1:]
    assert 3.3 * 0.98 <= edge < 3.3


def test_conditions_are_all_of_their_terms() -> None:
    assert terms_of("models.llama3.1-8b.x<=1") == [Term("models.llama3.1-8b.x", "<=", 1.0)]
    assert terms_of("ttft_s.p99<1 and slo_attainment.token >= 0.9") == [
        Term("ttft_s.p99", "<", 1.0), Term("slo_attainment.token", ">=", 0.9),
    ]  # fmt: skip
    assert Term("x", "<=", 1.0).holds(1.0)
    assert not Term("x", "<", 1.0).holds(1.0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["n=5..2", "until", "a<1", "+system=vllm"], "5 must be below 2"),
        (["n=5", "until", "a<1", "+system=vllm"], "is not KEY=LO..HI"),
        (["n=a..b", "until", "a<1", "+system=vllm"], "must be numbers"),
        (["n=1..2", "until", "a=1", "+system=vllm"], "is not METRIC<NUMBER"),
        (["n=1..2", "until", "a<x", "+system=vllm"], "is not METRIC<NUMBER"),
        (["n=1..2", "until", "a<1", "+system=vllm", "--within", "2"], "--within=2"),
        (["n=1..2", "until", "a<1", "+system=vllm", "--jobs", "2"], "goes with --launcher"),
        (["n=1..2", "until", "a<1", "+system=vllm", "hydra.launcher.a=1"], "name the launcher"),
        (
            ["n=1..2", "until", "a<1", "+system=vllm", "--launcher", "basic", "--jobs", "0"],
            "--jobs 0 must be at least 1",
        ),
        (
            ["n=1..2", "until", "a<1", "+system=vllm", "--launcher", "slurp"],
            "hydra/launcher=slurp does not exist; choose one of: basic",
        ),
    ],
)
def test_a_wrong_question_is_one_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_it_asks_runs_and_repeats_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "seed=1..2", "until", "num_completed>0", "+system=vllm", "+workload=burstgpt",
        "workload.num_requests=20", "engine=sim", "tracking=none", "figure=null",
        "--folder", str(tmp_path),
    ]  # fmt: skip
    assert main(command) == 0
    assert "holds everywhere" in capsys.readouterr().out
    made = [(tmp_path / name / "summary.json").stat().st_mtime_ns for name in ("1", "2")]
    assert main(command) == 0
    assert [(tmp_path / n / "summary.json").stat().st_mtime_ns for n in ("1", "2")] == made
    assert (tmp_path / "capacity.png").is_file()
    capsys.readouterr()
    assert main([*command[:2], "ttft_s.nothing>0", *command[3:]]) == 2
    assert (
        "summary.json has no ttft_s.nothing; valid in place of nothing: " in capsys.readouterr().err
    )


def test_a_launcher_makes_the_same_runs_from_where_the_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hydra's own launcher makes them in this process; it begins each task in another folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [
        "workload.num_requests=2..9", "until", "num_completed<5", "+system=vllm",
        "+workload=burstgpt", "engine=sim", "tracking=none", "figure=null",
    ]  # fmt: skip
    assert main([*command, "--launcher", "basic", "--jobs", "3", "--folder", ODD]) == 0
    assert "num_completed<5 holds up to workload.num_requests=4" in capsys.readouterr().out
    made = {path.parent for path in tmp_path.rglob("summary.json")}
    assert made == {tmp_path / ODD / number for number in ("2", "3", "4", "5", "7", "9")}
    assert (tmp_path / ODD / "capacity.png").is_file()


def test_a_launchers_words_are_no_part_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another launcher goes on with the runs that there are."""
    folders: list[Path] = []

    def searched(span: Span, tried: Try, at_a_time: int) -> list[Probe]:
        raise KeyboardInterrupt

    def noted(key: str, words: Sequence[str]) -> Path:
        folders.append(default_folder(key, words))
        return folders[-1]

    monkeypatch.setattr("harness.experiments.capacity.search", searched)
    monkeypatch.setattr("harness.experiments.capacity.default_folder", noted)
    command = ["seed=1..2", "until", "a<1", "+system=vllm"]
    assert main(command) == main([*command, "--launcher", "basic"]) == 130
    assert folders[0] == folders[1]


def test_live_runs_are_tried_one_after_another_also_on_a_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def searched(span: Span, tried: Try, at_a_time: int) -> list[Probe]:
        asked.append(at_a_time)
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.experiments.capacity.search", searched)
    command = ["seed=1..2", "until", "a<1", "+system=vllm"]
    on = ["--launcher", "basic"]
    for words in ([], on, ["engine=sim"], ["engine=sim", *on], [*on, "--jobs", "3"]):
        main([*command, *words])
    assert asked == [1, 1, 1, 2, 3]


SIMULATED = (
    "+system=vllm", "+workload=burstgpt", "workload.num_requests=8", "engine=sim", "tracking=none",
    "figure=null",
)  # fmt: skip


def probed(folder: Path, word: str) -> Probe:
    terms = terms_of("num_completed>0")
    return run_probe(terms, SIMULATED, folder, Path.cwd(), float(word.partition("=")[2]), word)


def test_a_value_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    probe = probed(tmp_path / ODD, "system.max_num_seqs=-1")
    assert probe.metrics is None
    assert "max_num_seqs=-1" in probe.refused
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_cannot_be_had_says_nothing_of_the_value(tmp_path: Path) -> None:
    with locked(tmp_path / "1", wait=False), pytest.raises(UsageError, match=r"seed=1: .* in use"):
        probed(tmp_path, "seed=1")
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "notes.txt").touch()
    with pytest.raises(UsageError, match=r"seed=2: .*files that are not a run's"):
        probed(tmp_path, "seed=2")


def test_a_cluster_that_is_not_there_says_nothing_of_the_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that has another run, or too few nodes left."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("HARNESS_DEVICE_LOCKS", str(tmp_path))
    words = [
        "+system=vllm", "+workload=burstgpt", "workload.num_requests=2", "+engine.cluster=ray",
        "engine.device=cpu", "engine.num_threads=1", "tracking=none",
    ]  # fmt: skip
    terms, folder = terms_of("num_completed>0"), tmp_path / "runs"
    with pytest.raises(UsageError, match="seed=1: no Ray cluster at RAY_ADDRESS="):
        run_probe(terms, words, folder, Path.cwd(), 1.0, "seed=1")


def test_a_word_that_no_run_takes_is_told(tmp_path: Path) -> None:
    words = ["+system=vllm", "+workload=nothing", "tracking=none", "engine=sim"]
    span = Span("seed", 1, 2, True, 0.1)
    probe = partial(run_probe, terms_of("a<1"), words, tmp_path, Path.cwd())
    with pytest.raises(UsageError, match="nothing"):
        search(span, tried_here(span, probe))
