# SPDX-License-Identifier: Apache-2.0
"""Gives one module the code of a mutant when it is imported. No file of the tree changes."""

from __future__ import annotations

import marshal
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


def write_mutant(target: Path, module: str, code: CodeType) -> None:
    """Writes a mutant as the file whose path install() is given."""
    target.write_bytes(marshal.dumps((module, code)))


class MutantLoader(SourceFileLoader):
    """Loads the module's mutant in place of its source."""

    code: CodeType

    def get_code(self, fullname: str) -> CodeType:
        """The code of the mutant."""
        return self.code


class MutantFinder(MetaPathFinder):
    """Finds the one module that has a mutant."""

    def __init__(self, module: str, code: CodeType) -> None:
        self._module = module
        self._code = code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the module with its other loader. None for every other module."""
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        loader = MutantLoader(fullname, str(spec.origin))
        loader.code = self._code
        spec.loader = loader
        return spec


def install(path: str) -> None:
    """Has this process import the mutant that write_mutant() wrote."""
    module, code = marshal.loads(Path(path).read_bytes())
    sys.meta_path.insert(0, MutantFinder(module, code))
