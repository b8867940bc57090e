"""The matrix of systems: its page has what its tables have, and its cells can be worked out by
hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba

from harness.files import read_json
from harness.records.interval import interval
from plots.conf import read
from plots.figure import PaperFigure
from plots.matrix.__main__ import TABLES, with_tables
from plots.matrix.bands import OF, lines, ties
from plots.matrix.cells import SLOW, WORKLOADS, Cell, cells, leaders, tied
from plots.matrix.figures import REFERENCE, SYSTEMS, burst, many, mark, pooled, tuned

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "matrix.md").read_text()
HALVES = ("burst", "many")
SEEDS = {0, 1, 2, 3, 4}
BAND = read("matrix")["goodput"]


@cache
def table(name: str) -> pd.DataFrame:
    return pd.read_csv(ROOT / f"results/published/matrix/matrix_{name}.csv")


def test_the_page_has_the_tables() -> None:
    assert with_tables(PAGE) == PAGE
    assert all(f"<!-- /{name} -->" in PAGE for name in TABLES)


def test_a_number_that_is_not_of_the_table_is_found() -> None:
    assert with_tables(PAGE.replace(" ± ", " ± 9", 1)) == PAGE


def shares(half: str, hardware: str, workload: str) -> dict[str, int]:
    """Of the best goodput, in %."""
    found = pooled(cells(table(half)), hardware, workload)
    best = max(each.mean for each in found.values())
    return {name: round(100 * each.mean / best) for name, each in found.items()}


def test_the_answers_have_the_shares_of_the_tables() -> None:
    split = [
        shares("burst", on, of) for on in ("h100", "a100") for of in ("burstgpt", "azure_code")
    ]
    low, *_, high = sorted(each[name] for each in split for name in ("blitzscale", "distserve"))
    chat, code = (shares("burst", "h100", "sharegpt"), shares("many", "h100", "azure_code"))
    long, slow = shares("many", "h100", "sharegpt_slow"), shares("burst", "a100", "sharegpt")
    few = [shares("many", "a100", of) for of in dict.fromkeys(table("many").workload)]
    least, most = min(slow.values()), max(slow["llumnix"], slow["distserve"], slow["aqua"])
    page = " ".join(PAGE.split())
    for words in (
        f"BlitzScale and DistServe have {low} to {high} % of the best on BurstGPT and Azure code",
        f"BlitzScale has {chat['blitzscale']} % and DistServe {chat['distserve']} % of the best",
        f"BlitzScale has {chat['blitzscale']} % of the best and DistServe {chat['distserve']} %.",
        f"Aegaeon has {long['aegaeon']} and {code['aegaeon']} % of it",
        f"less than half of the best but on Azure code, {code['serverlessllm']} %",
        f"vLLM and KunServe tie with it, and the others have {least} to {most} %",
        f"ServerlessLLM has at most {max(each['serverlessllm'] for each in few)} % of it and "
        f"Aegaeon at most {max(each['aegaeon'] for each in few)} %",
    ):
        assert words in page


def test_the_page_has_the_base_rates_and_the_loads_of_the_tables() -> None:
    base_s = {half: table(half)[table(half).rate == 1.0] for half in HALVES}
    for workload, name in WORKLOADS.items():
        told = [
            f"{rows[rows.workload.isin([workload, workload + SLOW])].per_s.mean():.3g} /s"
            for rows in base_s.values()
        ]
        (line,) = (each for each in PAGE.splitlines() if each.startswith(f"| {name} | arrivals "))
        assert line.split("|")[3:5] == [f" {each} " for each in told]
    told_of = " ".join(
        PAGE.partition("- A load is a factor")[2].partition("- **goodput**")[0].split()
    )
    burst_h100 = "1, 1.5, 2 and 3 on H100, and 4 and 5 with ShareGPT;"
    burst_a100 = "0.35, 0.5, 0.75 and 1 on A100, 1.5 with BurstGPT and ShareGPT, and 2 for"
    many_h100 = "1, 2 and 3 on H100, 5 and 8 but with BurstGPT, and 0.5 for ServerlessLLM;"
    many_a100 = "0.25, 0.5, 1 and 1.5 on A100, 0.1 for Aegaeon and ServerlessLLM, and 2 and 3"
    sentences = {
        ("burst", "h100"): burst_h100, ("burst", "a100"): burst_a100,
        ("many", "h100"): many_h100, ("many", "a100"): many_a100,
    }  # fmt: skip
    for (half, hardware), sentence in sentences.items():
        assert sentence in told_of
        rows = table(half)[table(half).hardware == hardware]
        numbers = {float(each) for each in re.findall(r"\b\d+(?:\.\d+)?\b", sentence)}
        assert numbers == set(rows.rate), "all loads, and no other"


def test_what_is_said_of_the_links_is_what_the_table_has() -> None:
    rows, page = table("sensitivity"), " ".join(PAGE.split())
    half = rows[rows.change == "links half as fast"]
    share = (100 * half.groupby(["system", "workload"]).request.mean()).round().astype(int)
    for workload, name in {"azure_conv_slow": "Azure conv.", "sharegpt_slow": "ShareGPT"}.items():
        both = f"{share['aegaeon', workload]} against {share['serverlessllm', workload]} %"
        assert f"{name} ({both})" in page
    assert (share["aegaeon", "burstgpt_slow"], share["serverlessllm", "burstgpt_slow"]) == (57, 58)
    moved = rows.groupby(["system", "workload", "seed"]).agg(
        {"request": np.ptp, "ttft_p99_s": np.ptp}
    )
    assert moved.loc["blitzscale"].request.max() < 0.0035
    assert moved.loc["blitzscale"].ttft_p99_s.max() < 0.055
    mean = rows.groupby(["system", "workload", "change"]).request.mean().groupby(level=[0, 1])
    assert 100 * (mean.max() - mean.min())["serverlessllm"].max() < 4.5
    code = rows[rows.workload == "azure_code"].groupby(["system", "change"]).request.mean()
    assert (code["aegaeon"] < code["serverlessllm"]).all()


def test_the_answers_ties_are_those_of_the_tables() -> None:
    found = cells(table("burst"))
    places = dict.fromkeys(key[:2] for key in found)
    best = {place: set(leaders(pooled(found, *place))) for place in places}
    assert best["a100", "sharegpt"] == {"blitzscale", "vllm", "kunserve"}
    assert best["h100", "sharegpt"] == {"vllm", "llumnix", "kunserve", "aqua"}
    for place in places:
        if place != ("a100", "sharegpt"):
            assert {"vllm", "llumnix", "kunserve"} <= best[place]
            assert ("aqua" in best[place]) == (place != ("a100", "azure_code"))
    apart = [
        place for place in places
        if not tied(found[*place, "blitzscale"], found[*place, "distserve"], BAND)
    ]  # fmt: skip
    assert apart == [("h100", "sharegpt"), ("a100", "sharegpt")], "it ties but with ShareGPT"


def test_bands_are_the_worst_errors_that_were_measured() -> None:
    errors = read_json(ROOT / "results/published/fidelity/gpu/errors.json")
    of_gpu = errors["H100-SXM5-80GB"]["vllm_v1"]
    told = read("matrix")
    for name, metric in {"goodput": "tpot", "capacity": "capacity", "ttft": "ttft"}.items():
        assert told[name] == pytest.approx(abs(of_gpu[metric]["worst_error_pct"]) / 100)
    assert set(OF) == set(told)


def test_a_wider_band_has_more_ties_and_names_them() -> None:
    rows = pd.concat(made(*(("a", n, 10.0, 0.9), ("b", n, 8.0, 0.9))) for n in range(3))
    rows = rows.assign(workload="burstgpt", system=rows.system.map({"a": "vllm", "b": "aqua"}))
    assert ties(rows, BAND) == []
    assert ties(rows, 0.3) == [(("many", "h100", "burstgpt"), "aqua")]
    assert [each[2:] for each in lines(rows)] == [
        ["0", "none"], ["0", "none"], ["1", "also AQUA on BurstGPT, H100"],
    ]  # fmt: skip


@pytest.mark.parametrize("name", HALVES)
def test_systems_of_a_table_had_the_same_gpus_schedules_and_seeds(name: str) -> None:
    rows = table(name)
    assert set(rows.gpus) == {4}
    assert set(rows.half) == {name}
    assert set(rows.verdict) == {"VALID"}
    places = rows.groupby(["hardware", "workload", "system", "rate"])
    assert all(set(of_place.seed) == SEEDS for _, of_place in places)
    compared = rows[rows.system != REFERENCE]
    schedules = compared.groupby(["hardware", "workload", "rate", "seed"]).schedule_sha256
    assert set(schedules.nunique()) == {1}
    # The fleet of four models has the others' arrivals: as many requests, as often.
    sizes = rows.groupby(["hardware", "workload", "rate", "seed"])
    assert set(sizes.num_requests.nunique()) == {1}
    assert set(sizes.per_s.nunique()) == {1}


@pytest.mark.parametrize(
    "name", sorted({name for names, *_ in TABLES.values() for name in names.split()})
)
def test_each_row_names_its_own_run(name: str) -> None:
    assert table(name).config_hash.is_unique


def test_a_lower_bound_below_the_best_is_in_no_order_with_it() -> None:
    found = {"a": cell(10, 10, 10), "b": cell(5, 5, 5), "c": cell(5, 5, 5)._replace(bound="≥")}
    assert [mark(found, system) for system in found] == [" *", "", " ?"]


@pytest.mark.parametrize("made", [burst, many], ids=HALVES)
def test_the_numbers_of_the_map_can_be_read_on_their_grey(made: PaperFigure) -> None:
    drawn, _ = made.plot(table(made.name.removeprefix("matrix_")))
    for panel in drawn.axes:
        (image,) = panel.images
        for each in panel.texts:
            x, y = each.get_position()
            cell = image.to_rgba(np.asarray(image.get_array())[int(y), int(x)])
            pair = sorted(map(_luminance, (to_rgba(each.get_color()), cell)))
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, each.get_text()


def test_the_reference_of_the_map_is_hatched_and_in_no_order() -> None:
    drawn, said = many.plot(table("many"))
    assert "not in the order" in said
    for panel in drawn.axes:
        (image,) = panel.images
        assert panel.get_yticklabels()[-1].get_text() == SYSTEMS[REFERENCE]
        assert not np.asarray(image.get_array())[-1].any(), "neither dark nor pale"
        assert [each.get_hatch() for each in panel.patches] == ["////"]
        assert panel.get_title().startswith("goodput at 90 % attainment")


def _luminance(colour: Sequence[float]) -> float:
    """Relative luminance of WCAG 2."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("name", HALVES)
def test_systems_have_the_settings_that_were_found_on_another_seed(name: str) -> None:
    assert not set(table("tuning").seed) & SEEDS
    found, rows = tuned(table("tuning")), table(name)
    for (hardware, system), each in rows.groupby(["hardware", "system"]):
        assert set(each.setting) == {found[name, str(hardware), str(system)]}


def made(*rows: tuple[str, int, float, float]) -> pd.DataFrame:
    """By system, seed, requests/s and share on time."""
    about = {"half": "many", "hardware": "h100", "workload": "w", "rate": 1.0, "ttft_p99_s": 1.0,
             "gpu_s": 8.0}  # fmt: skip
    names = ("system", "seed", "per_s", "request")
    return pd.DataFrame([dict(zip(names, row, strict=True)) | about for row in rows])


def test_goodput_lies_where_a_line_between_two_loads_has_90_percent() -> None:
    cell = cells(made(("a", 0, 1.0, 1.0), ("a", 0, 2.0, 0.8), ("a", 1, 1.0, 0.9)))["h100", "w", "a"]
    assert cell.goodput == {0: pytest.approx(1.5), 1: 1.0}
    assert cell.bound == "≥"


def test_a_system_that_is_late_at_the_lowest_load_has_an_upper_bound() -> None:
    cell = cells(made(("a", 0, 3.0, 0.5), ("a", 0, 6.0, 0.4)))["h100", "w", "a"]
    assert cell.goodput == {0: 3.0}
    assert cell.bound == "<"


def cell(*goodput: float) -> Cell:
    return Cell(dict(enumerate(goodput)), "", interval([1.0, 1.0]), interval([1.0, 1.0]))


def test_within_the_band_or_the_interval_no_system_is_before_another() -> None:
    assert tied(cell(10, 10, 10), cell(11, 11, 11), 0.137)
    assert not tied(cell(10, 10, 10), cell(12, 12, 12), 0.137)
    assert tied(cell(10, 10, 10), cell(5, 10, 25), 0.137)  # the differences' interval holds 0
    found = {"a": cell(10, 10, 10), "b": cell(11, 11, 11), "c": cell(5, 5, 5)}
    assert leaders(found, 0.137) == ["a", "b"]
    assert leaders(found, 0.05) == ["b"]
