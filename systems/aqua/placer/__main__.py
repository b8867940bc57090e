"""`python -m systems.aqua.placer PROFILE=NUMBER ... --servers S --gpus-per-server G --out FILE`:
places so many models of each profile on servers (section 5), matches producers to consumers, and
writes the pairs that a run reads by 'system.pairs=${in_file:FILE,pairs}'. Exit status 2, and a
sentence, for what cannot be."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from harness.errors import UsageError
from harness.files import write_text
from systems.aqua.placer.assignment import ModelType, Servers, assign
from systems.aqua.placer.pairs import placed
from systems.aqua.profiler.profile import MemoryProfile, read_profile

# As conf/system/aqua/constants.yaml has them.
TIME_LIMIT_S = 5.0
GPU_MEMORY_BYTES = 80_000_000_000


def asked(words: Sequence[str]) -> list[tuple[MemoryProfile, int]]:
    """Profiles, and how many models there are of each. Raises UsageError for a word that is no
    file, or FILE=NUMBER."""
    found: list[tuple[MemoryProfile, int]] = []
    for word in words:
        path, sign, number = word.rpartition("=")
        if not sign:
            path, number = word, "1"
        if not number.isdecimal() or not int(number):
            raise UsageError(f"{word}: {number!r} models; valid: a whole number, at least 1")
        profile = read_profile(Path(path))
        if any(each.model == profile.model for each, _ in found):
            raise UsageError(f"{word}: model {profile.model} has a profile already")
        found.append((profile, int(number)))
    return found


def run(arguments: argparse.Namespace) -> None:
    """Places, writes the file, and says how good it is."""
    limit_s = arguments.time_limit_s
    if not limit_s > 0:
        raise UsageError(f"--time-limit-s={limit_s:g}; valid: above 0")
    try:
        servers = Servers(
            num_servers=arguments.servers, gpus_per_server=arguments.gpus_per_server,
            gpu_memory_bytes=arguments.gpu_memory_bytes,
        )  # fmt: skip
    except ValueError as error:
        raise UsageError(str(error)) from error
    models = asked(arguments.profiles)
    types = [ModelType(each.model, each.memory_balance, each.shards) for each, _ in models]
    made = assign(types, [number for _, number in models], servers, time_limit_s=limit_s)
    generators = {each.model for each, _ in models if each.peak_batch is not None}
    found = placed(made.counts, types, generators)
    content = {
        "pairs": found.pairs,  # what a run reads
        "left": [each._asdict() for each in found.left],
        "servers": asdict(servers),
        "models": {each.model: number for each, number in models},
        "objective_bytes": made.objective_bytes,
        "bound_bytes": made.bound_bytes,
    }
    try:
        write_text(arguments.out, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise UsageError(f"{arguments.out} cannot be written: {error.strerror}") from error
    print(f"{len(found.pairs)} pairs, {100 * made.gap:.2g} % from optimal at most")
    for why, number in Counter(each.reason for each in found.left).items():
        print(f"left over: {number}, {why}")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m systems.aqua.placer", description=__doc__)
    add, profiles = parser.add_argument, "a profiler's file, of so many models (1)"
    add("profiles", nargs="+", metavar="PROFILE[=NUMBER]", help=profiles)
    add("--servers", type=int, required=True)
    add("--gpus-per-server", type=int, required=True)
    add("--gpu-memory-bytes", type=int, default=GPU_MEMORY_BYTES, help="%(default)s")
    add("--time-limit-s", type=float, default=TIME_LIMIT_S, help="%(default)s")
    add("--out", type=Path, required=True, metavar="FILE")
    try:
        run(parser.parse_args(words))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
