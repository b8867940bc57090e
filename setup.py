"""Wheels: the sources, as pyproject.toml says, and beside them what mypyc makes of the simulator's
modules, where it and a C compiler are (`harness.compiled`). HARNESS_PURE=1: the sources alone."""

import os
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))
from harness.compiled.__main__ import carry


class Wheel(bdist_wheel):
    """A wheel for this Python and platform alone, where it has binaries."""

    def run(self) -> None:
        self.run_command("build")
        self.root_is_pure = not self.get_finalized_command("build_py").has_binaries
        super().run()


class Build(build_py):
    has_binaries = False

    def run(self) -> None:
        super().run()
        if not self.editable_mode and os.environ.get("HARNESS_PURE") != "1":
            self.has_binaries = carry(Path(self.build_lib).resolve())


setup(cmdclass={"bdist_wheel": Wheel, "build_py": Build})
