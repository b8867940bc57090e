"""Compiles modules of the simulator, if their sources have changed: `python -m harness.compiled`.

Those that an unstaged run of system vllm spends its time in; the others stay Python and run beside
them. The binaries lie in a folder of their own for each build. The index is replaced last, so that
a process that starts meanwhile finds those of before or the new ones. Without mypyc or a C
compiler nothing is built, and one line says so.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.compiled import FOLDER, INDEX, PROJECT, sha256

PATHS = [
    "harness/clock.py", "harness/client.py", "harness/cost/model.py", "harness/cost/served.py",
    "harness/device/base.py", "harness/device/block_pool.py", "harness/record.py",
    "harness/request.py", "harness/sim/compute.py", "harness/sim/instance.py",
    "systems/baselines/vllm.py",
]  # fmt: skip


def build(paths: Sequence[str], into: Path) -> dict[str, str]:
    """{module: its binary in `into`}, of mypyc and the C compiler that Python was built with."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    os.chdir(PROJECT)
    work = into.with_name(into.name + ".work")
    extensions = mypycify(
        [f"--cache-dir={FOLDER / 'mypy_cache'}", *paths],
        opt_level="2", debug_level="0", target_dir=str(work),
    )  # fmt: skip
    command = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp, command.parallel = str(into), str(work), True
    command.ensure_finalized()
    command.run()
    shutil.rmtree(work, ignore_errors=True)
    return {e.name: command.get_ext_filename(e.name) for e in extensions}


def main() -> int:
    started_s = time.monotonic()
    sources = {path: sha256(path) for path in PATHS}
    soabi = sysconfig.get_config_var("SOABI")
    index_file = FOLDER / INDEX
    before: dict[str, Any] = json.loads(index_file.read_bytes()) if index_file.is_file() else {}
    if before.get("sources") == sources and before.get("soabi") == soabi:
        return 0
    folder = f"{os.getpid()}-{time.time_ns()}"
    index: dict[str, Any] = {"folder": folder, "soabi": soabi, "sources": sources}
    try:
        index["modules"] = build(PATHS, FOLDER / folder)
    except (Exception, SystemExit) as error:
        shutil.rmtree(FOLDER / folder, ignore_errors=True)
        shutil.rmtree(FOLDER / f"{folder}.work", ignore_errors=True)
        print(f"the simulator stays Python, about three times as slow: {error}")
        return 0
    partial = index_file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(index, indent=1) + "\n")
    partial.replace(index_file)
    for old in FOLDER.glob("*-*"):
        if old.name not in (folder, before.get("folder")):
            shutil.rmtree(old, ignore_errors=True)
    print(f"{len(PATHS)} modules of the simulator compiled in {time.monotonic() - started_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
