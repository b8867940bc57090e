"""Compiles modules of the simulator, if their sources have changed: `python -m harness.compiled`.

Those that the papers' runs spend their time in; the others stay Python and run beside them. The
binaries lie in a folder of their own for each build. The index is replaced last, so that
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.compiled import FOLDER, IN_WHEEL, INDEX, PROJECT, sha256, why_python

BASE = ("kernel", "devices", "serving", "vllm")  # each needs those before it
# {group: its modules}. A system's binaries call those of BASE. What carried no weight
# in profiles of the papers' runs is left out: its C code takes longer to compile than it saves.
GROUPS = {
    "kernel": [
        "harness/clock.py", "harness/running/client.py", "harness/cost/model.py",
        "harness/cost/served.py",
        "harness/device/base.py", "harness/device/block_hashes.py",
        "harness/device/block_pool.py", "harness/device/caching_pool.py",
        "harness/records/record.py",
        "harness/request.py", "harness/sim/compute.py", "harness/sim/instance.py",
    ],
    "devices": [
        "harness/pooled/blocks.py", "harness/pooled/device.py", "harness/elastic/instance.py",
        "harness/pooled/host.py",
        "harness/elastic/kv_directory.py", "harness/elastic/kv_moves.py",
        "harness/elastic/page_pool.py", "harness/elastic/layerwise.py",
        "harness/pooled/instance.py", "harness/pooled/kv.py", "harness/pooled/slab.py",
        "harness/pooled/weights.py", "harness/sim/device.py", "harness/sim/fabric.py",
        "harness/sim/fair_share.py", "harness/sim/fluid.py", "harness/sim/network.py",
        "harness/elastic/pipeline.py", "harness/sim/layerwise.py", "harness/sim/pipeline.py",
    ],
    "serving": [
        "systems/serving/iteration.py", "systems/serving/load.py", "systems/serving/replica.py",
    ],
    "vllm": ["systems/baselines/vllm.py"],
    "aegaeon": [
        "systems/aegaeon/decode.py", "systems/aegaeon/estimate.py", "systems/aegaeon/prefill.py",
        "systems/aegaeon/quota.py", "systems/aegaeon/scaling.py", "systems/aegaeon/variants.py",
    ],
    "muxserve": [
        "systems/muxserve/adbs.py", "systems/muxserve/mesh.py", "systems/muxserve/resident.py",
    ],
    "serverlessllm": [
        "systems/serverlessllm/oracle.py", "systems/serverlessllm/paper.py",
        "systems/serverlessllm/queues.py", "systems/serverlessllm/worker.py",
    ],
    "blitzscale": [
        "systems/blitzscale/handover.py", "systems/blitzscale/instances.py",
        "systems/blitzscale/policy.py", "systems/blitzscale/scaler.py",
        "systems/blitzscale/service.py", "systems/blitzscale/serving.py",
    ],
    "aqua": [
        "systems/aqua/artifact_scheduler.py", "systems/aqua/consumer.py",
        "systems/aqua/fair_scheduler.py", "systems/aqua/paging.py", "systems/aqua/prompt.py",
        "systems/aqua/service_order.py", "systems/aqua/turn.py",
    ],
    "kunserve": [
        "systems/kunserve/dispatcher.py", "systems/kunserve/monitor.py",
        "systems/kunserve/moves.py", "systems/kunserve/server.py", "systems/kunserve/trigger.py",
    ],
}  # fmt: skip


def build(groups: Mapping[str, Sequence[str]], into: Path) -> dict[str, str]:
    """{module: its binary in `into`}, of mypyc and the C compiler that Python was built with. The
    binaries of a group that its modules share are among them."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    os.chdir(PROJECT)
    work = into.with_name(into.name + ".work")
    apart: list[tuple[list[str], str | None]] = [(list(of), name) for name, of in groups.items()]
    extensions = mypycify(
        [f"--cache-dir={FOLDER / 'mypy_cache'}", *(path for of in groups.values() for path in of)],
        opt_level="1", debug_level="0", target_dir=str(work),
        separate=apart,
    )  # fmt: skip
    command = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp, command.parallel = str(into), str(work), True
    command.ensure_finalized()
    command.run()
    shutil.rmtree(work, ignore_errors=True)
    return {e.name: command.get_ext_filename(e.name) for e in extensions}


def described(groups: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """The groups as the index has them, without the binaries."""
    return {
        name: {
            "needs": list(BASE[: BASE.index(name)] if name in BASE else BASE),
            "sources": {path: sha256(path) for path in paths},
        }
        for name, paths in groups.items()
    }


def carry(root: Path) -> bool:
    """Lays what can be built into the packages at `root`, which a wheel is made of. False: nothing
    could be, and the wheel is Python alone."""
    main()
    carried = root / IN_WHEEL.relative_to(PROJECT)
    shutil.rmtree(carried, ignore_errors=True)
    if not (FOLDER / INDEX).is_file():
        return False
    index = json.loads((FOLDER / INDEX).read_bytes())
    if why_python(index):  # of an earlier build, and there is no compiler now
        return False
    shutil.copytree(FOLDER / index["folder"], carried / index["folder"])
    shutil.copy(FOLDER / INDEX, carried)
    return True


def main() -> int:
    started_s = time.monotonic()
    groups = described(GROUPS)
    soabi = sysconfig.get_config_var("SOABI")
    index_file = FOLDER / INDEX
    before: dict[str, Any] = json.loads(index_file.read_bytes()) if index_file.is_file() else {}
    built = {
        name: {key: group[key] for key in ("needs", "sources")}
        for name, group in before.get("groups", {}).items()
    }
    if built == groups and before.get("soabi") == soabi:
        return 0
    folder = f"{os.getpid()}-{time.time_ns()}"
    try:
        files = build(GROUPS, FOLDER / folder)
    except (Exception, SystemExit) as error:
        shutil.rmtree(FOLDER / folder, ignore_errors=True)
        shutil.rmtree(FOLDER / f"{folder}.work", ignore_errors=True)
        print(f"the simulator stays Python, about three times as slow: {error}")
        return 0
    for name, paths in GROUPS.items():
        modules = [path.removesuffix(".py").replace("/", ".") for path in paths]
        groups[name]["modules"] = {m: files[m] for m in [f"{name}__mypyc", *modules]}
    index = {"folder": folder, "soabi": soabi, "groups": groups}
    partial = index_file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(index, indent=1) + "\n")
    partial.replace(index_file)
    for old in FOLDER.glob("*-*"):
        if old.name not in (folder, before.get("folder")):
            shutil.rmtree(old, ignore_errors=True)
    num_modules = sum(map(len, GROUPS.values()))
    print(
        f"{num_modules} modules of the simulator compiled in {time.monotonic() - started_s:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
