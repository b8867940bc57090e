"""The ledger as a CSV, and verdicts on tables that somebody else made."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pandas as pd
import pytest

from harness.claims import __main__ as command
from harness.claims.data import COLUMNS, VERSION
from tests.unit.claims.test_ledger import ABOUT

LEDGER = """title: A Paper
venue: X'99
short: A
claims:
- {id: a, section: '1', quantity: q, published: 2, unit: x, figure: p_fig01,
   tolerance: 0.1, value: {mean: {column: y}}}
- {id: range, section: '2', quantity: r, published: [1, 3], unit: s, figure: p_fig01, given: a,
   value: [{mean: {column: y}}, {mean: {column: z}}]}
- {id: none, section: '3', quantity: w, published: 7, unit: '', cause: inputs, reason: because}
"""


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    claims = tmp_path / "claims"
    claims.mkdir()
    (claims / "p.yaml").write_text(LEDGER)
    monkeypatch.setattr(command, "CLAIMS", claims)
    return claims


def tables(folder: Path, y: list[float], z: list[float]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rows = pd.DataFrame({"seed": range(len(y)), "y": y, "z": z, "config_hash": "h"})
    rows.to_csv(folder / "p_fig01.csv", index=False)
    git = [{"revision": "0123456789abcdef", "dirty": True}]
    about = ABOUT | {"runs_git": git, "engines": ["torch"], "hardware": ["h200_x1"]}
    (folder / "p_fig01.json").write_text(json.dumps(about))
    return folder


def rows(path: Path) -> dict[str, dict[str, str]]:
    with path.open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("below", ["", "p"])
def test_tables_of_another_folder_are_judged_and_kept_in_one_file(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], below: str
) -> None:
    theirs = tables(tmp_path / "theirs" / below, [1.98, 2.0, 2.02], [2.9, 3.0, 3.1])
    out = tmp_path / "mine.csv"
    before = {path: path.read_bytes() for path in ledger.iterdir()}
    assert command.main(["--of", str(tmp_path / "theirs"), "--out", str(out)]) == 0
    assert {path: path.read_bytes() for path in ledger.iterdir()} == before
    assert "| p/a | 2 x | 2 x (1.95, 2.05) | reproduced" in capsys.readouterr().out
    found = rows(out)
    assert set(found) == {"a", "range"}, "a claim without a value has no row"
    one = found["a"]
    assert list(one) == list(COLUMNS)
    assert (one["published"], one["ours"], one["values"]) == ("2.0", "2", "1.98;2.0;2.02")
    assert (one["verdict"], one["rests_on"], one["engine"]) == ("reproduced", "live, GPU", "torch")
    assert (one["hardware"], one["code"], one["version"]) == (
        "h200_x1", "0123456789ab+dirty", VERSION,
    )  # fmt: skip
    assert (found["range"]["published_to"], found["range"]["ours_to"]) == ("3.0", "3")
    assert command.main(["--of", str(out)]) == 0
    assert "2 claims: each verdict is what its values give" in capsys.readouterr().out
    assert theirs.is_dir()


def changed(path: Path, claim: str, **fields: str) -> Path:
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    for name, value in fields.items():
        table.loc[table["id"] == claim, name] = value
    table.to_csv(path, index=False)
    return path


def test_a_verdict_that_the_values_do_not_give_is_found(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tables(tmp_path / "t", [4.0, 4.0, 4.1], [3.0, 3.0, 3.0]), tmp_path / "mine.csv"
    assert command.main(["--of", str(folder), "--out", str(out)]) == 0
    assert rows(out)["range"]["verdict"] == "not reproduced", "its condition does not hold"
    assert command.main(["--of", str(out)]) == 0
    assert command.main(["--of", str(changed(out, "a", verdict="reproduced"))]) == 1
    said = capsys.readouterr().out
    assert "p/a: reproduced, its values give not reproduced" in said
    assert command.main(["--of", str(changed(out, "a", values="2.0;2.0"))]) == 1
    assert "its values give not attempted" in capsys.readouterr().out, "two seeds are too few"
    assert command.main(["--of", str(changed(out, "a", values=""))]) == 1
    assert "p/a: reproduced, and no value" in capsys.readouterr().out
    believed = changed(out, "a", values="1.0;1.0;1.0", verdict="not exercised")
    changed(believed, "range", verdict="not exercised")
    assert command.main(["--of", str(believed)]) == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"id": "b"}, "p/b is no claim"),
        ({"id": "range"}, "p/range has two rows"),
        ({"verdict": "great"}, "p/a: great is none of reproduced, trend only"),
        ({"version": "0.1"}, f"p/a is of version 0.1, not {VERSION}"),
        ({"values": "1;two"}, "p/a: 1;two are no numbers by ;"),
    ],
)
def test_a_file_that_is_none_is_refused(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    fields: dict[str, str], said: str,
) -> None:  # fmt: skip
    folder, out = tables(tmp_path / "t", [2.0, 2.0, 2.1], [3.0, 3.0, 3.0]), tmp_path / "mine.csv"
    command.main(["--of", str(folder), "--out", str(out)])
    assert command.main(["--of", str(changed(out, "a", **fields))]) == 2
    assert said in capsys.readouterr().err


def test_wrong_words_are_told(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    for words, said in (
        (["--of", str(tmp_path / "empty")], "empty has no FIGURE.csv and FIGURE.json"),
        (["--of", str(tmp_path / "gone.csv")], "gone.csv cannot be read"),
        (["--of", str(tmp_path / "other.csv")], "other.csv lacks paper, id, values"),
        (["--of", str(tmp_path / "other.csv"), "--out", "x.csv"], "is no folder"),
        (["--out", "x.csv"], "--out x.csv goes with --of DIR or --since VERSION"),
    ):
        assert command.main(words) == 2
        assert said in capsys.readouterr().err


def test_values_beyond_what_was_tried_stay_so(ledger: Path, tmp_path: Path) -> None:
    (ledger / "p.yaml").write_text(
        LEDGER.partition("- {id: range")[0].replace(
            "{mean: {column: y}}", "{crossing: {x: rate, y: share}}"
        )
    )
    folder = tables(tmp_path / "t", [1.0] * 3, [1.0] * 3)
    held = pd.DataFrame({"seed": [0, 1, 2], "rate": 9.0, "share": 1.0, "config_hash": "h"})
    held.to_csv(folder / "p_fig01.csv", index=False)
    out = tmp_path / "mine.csv"
    assert command.main(["--of", str(folder), "--out", str(out)]) == 0
    assert rows(out)["a"]["values"] == ">=9.0;>=9.0;>=9.0"
    assert command.main(["--of", str(out)]) == 0


def test_what_changed_since_an_earlier_version_is_a_page(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    was, now = tmp_path / "was.csv", ledger / "claims.csv"
    folder = tables(tmp_path / "t", [1.98, 2.0, 2.02], [2.9, 3.0, 3.1])
    assert command.main(["--of", str(folder), "--out", str(was)]) == 0
    tables(tmp_path / "t", [1.5, 1.5, 1.5], [3.0, 3.0, 3.1])
    assert command.main(["--of", str(folder), "--out", str(now)]) == 0
    changed(now, "range", id="other")
    page = tmp_path / "since.md"
    assert command.main(["--since", str(was), "--out", str(page)]) == 0
    told = page.read_text()
    assert "1 verdicts of 1; 0 more values." in told
    assert "| p/a | q | 2.0 x | 2: reproduced | 1.5: not reproduced |" in told
    assert "## New\n\np/other\n" in told
    assert "## Gone\n\np/range\n" in told
    assert "| reproduced | 1 | 0 |" in told
    assert command.main(["--since", str(now)]) == 0
    assert "0 verdicts of 2; 0 more values." in capsys.readouterr().out
    assert command.main(["--since", "no-such-revision"]) == 2
    assert "no-such-revision is no file, and no revision of git" in capsys.readouterr().err
    assert command.main(["--since", "["]) == 2  # half of a path to git
    assert "no revision of git" in capsys.readouterr().err


def test_the_committed_ledger_holds_what_its_values_give() -> None:
    """Every row of results/claims/claims.csv, judged again."""
    found = rows(command.CLAIMS / "claims.csv")
    assert len(found) > 400
    assert command.main(["--of", str(command.CLAIMS / "claims.csv")]) == 0
