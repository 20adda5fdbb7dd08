# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that imports one module of shmaccum with a mutant.

POWER_MUTANT=NAME python -m pytest -p tests.power_images.planted ...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from tests.power_images.mutants import MUTANTS, planted


class PlantedLoader(SourceFileLoader):
    """Compile the module with the mutant, and store no bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        return compile(planted(MUTANTS[os.environ["POWER_MUTANT"]]), self.path, "exec", dont_inherit=True)


class PlantedFinder:
    """Find the module of the mutant, and no other one."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the specification of the module."""
        if name != MUTANTS[os.environ["POWER_MUTANT"]].module:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = PlantedLoader(name, spec.origin)
        return spec


sys.meta_path.insert(0, PlantedFinder)
