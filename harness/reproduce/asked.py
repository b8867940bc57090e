"""Which figures and claims a command asks for, by tier.

smoke  one live run, and one simulated figure with its claims: SMOKE_RUN, SMOKE_FIGURE
quick  of a paper the simulated figures that claims rest on, but for those that are described with
       `quick=False` because one seed of them takes long or tells nothing. A figure that is named
       is made
full   everything
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import filter as matching

from harness.claims.ledger import Claim, load
from harness.configuration.options import available
from harness.errors import UsageError
from harness.experiments.compose import CONF, ROOT, composing, groups, sweep
from harness.experiments.figures import described, figures, published
from harness.files import read_json

CLAIMS = ROOT / "results/claims"
TIERS = ("smoke", "quick", "full")
WORLDS = ("sim", "torch", "vllm")
SMOKE_RUN, SMOKE_FIGURE = "demo", "aegaeon_fig16"
GPU = "experiment/aegaeon/machine@_global_=gpu"  # models and memory of Aegaeon's live figures there
ON_VLLM = {"aqua_fig01": "aqua_vllm_burst"}  # by figure: its live version on vLLM, an experiment


def asked(words: Sequence[str], tier: str) -> tuple[list[str], list[Claim], dict[str, int]]:
    """The figures that words name, and the claims that rest on them; of PAPER/CLAIM that claim
    alone. Then the figures that the tier leaves out, with how many claims rest on each. No word:
    all papers. Raises UsageError for a word that names nothing."""
    papers = {path.stem: load(path).claims for path in sorted(CLAIMS.glob("*.yaml"))}
    if tier == "smoke":
        if words:
            raise UsageError(f"{words[0]}: --tier smoke has its own figure, {SMOKE_FIGURE}")
        words = [SMOKE_FIGURE]
    known, names, chosen = figures(), dict[str, None](), dict[tuple[str, str], Claim]()
    out = dict[str, None]()
    every = [each for claims in papers.values() for each in claims]
    claimed = {each.figure for each in every if each.value is not None}
    for word in words or papers:
        paper, _, claim = word.partition("/")
        if claim:
            of_paper = {each.id: each for each in papers.get(paper, ())}
            if claim not in of_paper:
                raise UsageError(f"{word} names no claim; results/claims/{paper}.json has them all")
            if of_paper[claim].figure is None:
                raise UsageError(f"{word} rests on no figure: {of_paper[claim].reason}")
            names[str(of_paper[claim].figure)] = None
            chosen[paper, claim] = of_paper[claim]
            continue
        found = matching(known, f"{word}_*" if word in papers else word)
        if not found:
            valid = ", ".join([*papers, *known])
            raise UsageError(f"{word} names no paper, figure or claim; valid: {valid}")
        if tier == "quick" and word in papers:
            found = [name for name in found if name in claimed]
            out |= dict.fromkeys(name for name in found if not described(name).quick)
            found = [name for name in found if described(name).quick]
        names |= dict.fromkeys(found)
        chosen |= {(each.paper, each.id): each for each in every if each.figure in found}
    left = {name: sum(each.figure == name for each in every) for name in out if name not in names}
    return list(names), list(chosen.values()), left


def live_versions(
    names: Sequence[str], claims: Sequence[Claim], world: str
) -> tuple[list[str], list[Claim]]:
    """The figures among `names` with runs on a real engine, and NAME_live beside NAME, with their
    claims. `world`: which engine; "sim": any. Raises UsageError where there is none."""
    paths = {name: published(name) / f"{name}.json" for name in figures()}
    engines = {
        name: set(read_json(path)["engines"]) - {"sim"}
        for name, path in paths.items()
        if path.is_file()
    }
    live = [name for name, of in engines.items() if (of if world == "sim" else world in of)]
    found = [name for name in live if {name, name.removesuffix("_live")} & set(names)]
    if not found:
        valid = ", ".join(f"{name} ({', '.join(of)})" for name, of in engines.items() if of)
        on = "a real engine" if world == "sim" else world
        raise UsageError(f"{_told(names)}: no version on {on}; figures that have one: {valid}")
    beside = [name for name in found if name not in names]
    more = asked(beside, "full")[1] if beside else []
    return found, [*(claim for claim in claims if claim.figure in found), *more]


def on_vllm(names: Sequence[str]) -> list[str]:
    """The experiments on vLLM's engine that are live versions of the figures `names`; they are no
    figures. Raises UsageError where there is none."""
    found = [experiment for figure, experiment in ON_VLLM.items() if figure in names]
    if not found:
        valid = ", ".join(f"{figure} ({experiment})" for figure, experiment in ON_VLLM.items())
        raise UsageError(f"{_told(names)}: no version on vllm; figures that have one: {valid}")
    return found


def _told(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"none of {len(names)} figures"


def live_words(figure: str, hardware: str | None) -> list[str]:
    """Overrides of a figure's live runs on the profile `hardware`; None: none, they stay as they
    are published."""
    if hardware is None:
        return []
    gpu = composing([f"hardware={hardware}"]).hardware.device != "cpu"
    return [*([GPU] if gpu and figure.startswith("aegaeon_") else []), f"hardware={hardware}"]


def check_hardware(names: Sequence[str], hardware: str) -> None:
    """Composes the live runs of the figures `names` on the profile `hardware`. Raises UsageError
    where that fails, and where a figure has more devices than the profile."""
    for name in names:
        *machine, _ = live_words(name, hardware)
        for experiment in described(name).experiments:
            engine, runs = sweep(experiment)
            if engine != "sim":
                check_runs(experiment, runs, hardware, name, machine)


def check_runs(
    experiment: str, runs: Sequence[Sequence[str]], hardware: str, name: str,
    machine: Sequence[str] = (),
) -> None:  # fmt: skip
    """The same of `runs` of an experiment, live versions of the figure `name`."""
    has = _num_devices(hardware)
    for of_run in dict.fromkeys(map(groups, runs)):
        words = [f"+experiment={experiment}", *of_run, *machine]
        composing([*words, f"hardware={hardware}"])
        if (needs := composing(words).hardware.num_devices) > has:
            fit = [p for p in available(CONF, "hardware") if _num_devices(p) >= needs]
            raise UsageError(
                f"--hardware {hardware} has {has} of the {needs} devices of {name}; "
                f"profiles that have them: {', '.join(fit)}"
            )


def _num_devices(hardware: str) -> int:
    return int(composing([f"hardware={hardware}"]).hardware.num_devices)
