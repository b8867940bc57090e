"""`--help` and `--help keys [PREFIX]`: what can be chosen, and every key with its meaning.

A key's meaning is the comment that conf/'s YAML has at it: behind its value, or in the lines right
above it. Options of one group share most of their keys, and the meaning of each is told once. What
conf/meanings.yaml or a group's base/ says of a key comes first, and comments of up to MAX_REMARKS
options after it. A key of a paper's public code (`variants.artifact`) refers to the paper's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap

import yaml

from harness.configuration.options import GROUPS, available
from harness.errors import UsageError
from harness.files import YamlLoader

WIDTH = 98
COMMENT = re.compile(r"(?:^|\s)#\s?(.*)$")
SILENT = ("_target_", "defaults", "hydra")  # keys that nobody sets
MAX_REMARKS = 3  # of options, beside a meaning that is told once for all
PLUS = ("system", "workload", "experiment")  # groups that conf/config.yaml does not choose for
OVERVIEW = """\
python -m harness +system=NAME +workload=NAME [group=NAME ...] [key=value ...]
Sends requests to a serving system and measures every token: a table, report.html, a W&B run.
  -m, repeat=N         sweep: every combination of comma-separated values (key=1,2,4); N repeats
  +experiment=NAME     take system, workload and keys from conf/experiment/NAME.yaml
  progress=live        show a dashboard while the run lasts
  hydra.run.dir=DIR    put the run's files into DIR
  --config-dir DIR     use options of your own, in folders as in conf/
  --cfg job            print the configuration, and run nothing
  --help keys [PREFIX] explain every key that begins with PREFIX, e.g. --help keys engine.pool

Commands; python -m harness COMMAND --help explains each:
  figures    draws a paper's figures, and runs what they need
  reproduce  makes figures and claims again, and says whether they are the same
  claims     compares every published number with ours
  compare    says whether systems differ: runs paired by seed and request, with intervals
  capacity   finds how many GPUs, or which rate, a condition such as P99 TTFT < 1 s allows
  calibrate  measures this machine, and fits the simulator's iteration times
  fidelity   measures the simulator's error against real engines
  faults     kills and stalls instances of each system, and says what is lost
  plots      draws, compares and reports finished runs and sweeps
  workloads  lists and describes workloads, and writes schedules
  score      scores finished runs under other SLOs
  recover    makes the tables of a killed run from its journal
  export     writes a finished run as another tool would; import reads another tool's result
  explain    says why numbers differ between this harness and other tools
  selftest   tests on this machine whether the harness measures rightly

Groups (+: must be given), and their options:"""


MEANINGS = "meanings.yaml"  # in conf/: of keys that are told once for many files
ANY = re.compile(r"[A-Z]+")  # a part of a name that stands for any


def read_meanings(conf: Path) -> dict[str, str]:
    """What is said once for all keys that a dotted name fits; there is none without the file."""
    path = conf / MEANINGS
    told: dict[str, str] = yaml.safe_load(path.read_text()) if path.is_file() else {}
    return told


def pattern(name: str) -> re.Pattern[str]:
    """The keys that `name` fits: its parts in capitals stand for any name, dots included."""
    parts = (".+" if ANY.fullmatch(part) else re.escape(part) for part in name.split("."))
    return re.compile(r"\.".join(parts))


@dataclass(slots=True)
class Key:
    """A dotted name, and its values and meanings by the options that have it. `known_as`: the
    names that stand behind a name with parts in capitals."""

    name: str
    values: dict[str, str] = field(default_factory=dict)
    meanings: dict[str, str] = field(default_factory=dict)
    told: str = ""  # of all options
    known_as: set[str] = field(default_factory=set)

    @property
    def meaning(self) -> str:
        """What is said of it once where options agree, by option where not; "": nothing is said."""
        each = {said: option for option, said in self.meanings.items() if said != self.told}
        if not self.told and len(each) <= 1:
            return "".join(each)
        shown = each if not self.told or len(each) <= MAX_REMARKS else {}
        said = [f"({option}) {said}" for said, option in shown.items()]
        return "; ".join([*([self.told] if self.told else []), *said])

    def begins(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in (self.name, *self.known_as))


def overview(conf: Path) -> str:
    """What `--help` prints."""
    lines = [OVERVIEW]
    groups = [group for group in GROUPS if available(conf, group)]
    for group in groups:
        head = f"  {'+' if group in PLUS else ''}{group}="
        names = ", ".join(available(conf, group))
        lines += wrap(
            names, WIDTH, initial_indent=f"{head:<12}", subsequent_indent=" " * 12,
            break_on_hyphens=False,
        )  # fmt: skip
    figures = available(conf, "experiment")
    papers = sorted({name.split("_")[0] for name in figures if "_" in name})
    others = [name for name in figures if "_" not in name]
    names = ", ".join([*others, *(f"{paper}_…" for paper in papers)])
    return "\n".join([*lines, f"  +experiment= {names} (ls conf/experiment)"])


def keys(conf: Path) -> list[Key]:
    """The keys of conf/config.yaml and of every option of every group, in the files' order."""
    found: dict[str, Key] = {}
    once = {name: (pattern(name), words) for name, words in read_meanings(conf).items()}
    for prefix, option, path in _files(conf):
        for name, value, meaning in described(path.read_text()):
            own = prefix + name
            fitting = (each for each, (keys, _) in once.items() if keys.fullmatch(own))
            known = next(fitting, own)
            shared = known != own  # it has parts in capitals
            key = found.setdefault(known, Key(known, told=once[known][1] if known in once else ""))
            key.known_as.add(own)
            if not shared:
                key.values.setdefault(option, value)
            if path.parent.name == "base":
                key.told = key.told or meaning
            elif meaning and not shared:
                key.meanings.setdefault(option, meaning)
    for key in found.values():
        papers = key.name.replace(".variants.artifact.", ".variants.paper.")
        if papers != key.name and papers in found:
            key.told = f"as {papers}"
    return list(found.values())


def told(conf: Path, prefix: str) -> str:
    """What `--help keys PREFIX` prints. UsageError where no key begins so."""
    every = keys(conf)
    shown = [key for key in every if key.begins(prefix)]
    if not shown:
        begins = prefix.split(".")[0]
        near = [key.name for key in every if key.name.split(".")[0] == begins]
        valid = near or list(dict.fromkeys(key.name.split(".")[0] for key in every))
        raise UsageError(f"no key begins with {prefix}; valid: {', '.join(valid)}")
    lines = []
    for key in shown:
        lines.append(f"{key.name}{_values(key)}")
        lines += wrap(key.meaning, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _values(key: Key) -> str:
    """Each value once, with the options that have it where not all have the same."""
    of: dict[str, list[str]] = {}
    for option, value in key.values.items():
        of.setdefault(value, []).append(option)
    if not any(of):
        return ""
    if len(of) == 1:
        (value,) = of
        options = [option for option in key.values if option]
        few = f"  [{', '.join(options)}]" if 0 < len(options) <= 3 else ""
        return f" = {value}{few}"
    some = [f"{value} ({options[0]})" for value, options in list(of.items())[:3]]
    return f" = {', '.join(some)}{', …' if len(of) > 3 else ''}"


def _files(conf: Path) -> Iterator[tuple[str, str, Path]]:
    """Yields (what stands before its keys, the option's name, the file) for each file."""
    yield "", "", conf / "config.yaml"
    for group in GROUPS:
        for path in sorted((conf / group).glob("*.yaml")):
            yield f"{group}.", path.stem, path
        for path in sorted((conf / group).glob("*/*.yaml")):
            place = path.parent.name
            here = place in ("base", "device") or group == "system"
            if place != "profile":  # which is read by its name, and not a key
                option = place if group == "system" else path.stem
                yield f"{group}." if here else f"{group}.{place}.", option, path


def described(text: str) -> Iterator[tuple[str, str, str]]:
    """(dotted name, value, comment) of each key of a YAML file; of a mapping, where it has a
    comment, with the value ""."""
    node = yaml.compose(text, Loader=YamlLoader)
    if isinstance(node, yaml.MappingNode):
        yield from _walk(node, "", text.splitlines())


def _walk(
    node: yaml.MappingNode, prefix: str, lines: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    for key, value in node.value:
        name = str(key.value)
        if (name in SILENT and not prefix) or name == "_target_":
            continue
        meaning = _comment(key, value, lines)
        if isinstance(value, yaml.MappingNode) and not value.flow_style and value.value:
            if meaning:
                yield prefix + name, "", meaning
            yield from _walk(value, f"{prefix}{name}.", lines)
        else:
            shown = " ".join(_source(value, lines).split())
            yield prefix + name, shown if len(shown) <= 40 else f"{shown[:39]}…", meaning


def _source(value: yaml.Node, lines: Sequence[str]) -> str:
    """The value as the file has it; of a block, its first line."""
    start, end = value.start_mark, value.end_mark
    if start.line == end.line:
        return lines[start.line][start.column : end.column]
    return lines[start.line][start.column :].partition(" #")[0]


def _comment(key: yaml.Node, value: yaml.Node, lines: Sequence[str]) -> str:
    line = key.start_mark.line
    ends = isinstance(value, yaml.ScalarNode) or getattr(value, "flow_style", False)
    last = value.end_mark.line if ends and value.end_mark.column else line
    after = value.end_mark.column if ends and last < len(lines) and value.end_mark.column else 0
    rest = lines[last][after:] if after else lines[line][key.end_mark.column :]
    beside = COMMENT.search(rest)
    said = [beside.group(1)] if beside else []
    column = key.start_mark.column
    if said and said[-1].endswith((";", ",")):  # it goes on below
        said += _block(lines, range(last + 1, len(lines)), column)
    return " ".join([*_above(lines, line, column), *said]).strip()


def _above(lines: Sequence[str], line: int, column: int) -> list[str]:
    """The comment that ends right above, unless it is the file's heading or goes on from the line
    before it."""
    found = _block(lines, range(line - 1, -1, -1), column)[::-1]
    first = line - len(found)
    before = COMMENT.search(lines[first - 1]) if first > 0 else None
    goes_on = before is not None and before.group(1).endswith((";", ","))
    return [] if first == 0 or goes_on else found


def _block(lines: Sequence[str], numbers: range, column: int) -> list[str]:
    """The comments of lines that are nothing else, indented like the key, up to the first other."""
    found = []
    for number in numbers:
        stripped = lines[number].strip()
        if not stripped.startswith("#") or lines[number].index("#") != column:
            break
        found.append(stripped.lstrip("# "))
    return found
