# SPDX-License-Identifier: Apache-2.0
"""Former names of modules, for existing pickles and programs.

``shmaccum.serving`` is now ``shmaccum.log.server``. An import of the former name gives a module with the attributes of
the current module, so both names lead to the same classes. The finder comes after all others, so it costs other
imports nothing.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

PACKAGE = "shmaccum."
FORMER = {
    "consumer": "log.consumer",
    "format": "common.format",
    "groups": "log.groups",
    "keeper": "supervisor",
    "kept_producer": "supervisor.kept_producer",
    "segment_log": "log.files",
    "serving": "log.server",
    "shipping": "sender.shipping",
    "sinks": "sender.sinks",
    "units": "common.units",
}
"""Maps the first part of a former name, after ``shmaccum.``, to the current part."""


class FormerNames:
    """A finder and loader of `sys.meta_path`. Its base classes in importlib.abc would load pathlib and tempfile."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of a former name, or None for any other name."""
        del path, target
        if not fullname.startswith(PACKAGE) or fullname.split(".")[1] not in FORMER:
            return None
        return ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Returns None, which makes an ordinary module."""
        del spec

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module the attributes of the current module."""
        first, _, rest = module.__name__.removeprefix(PACKAGE).partition(".")
        today = importlib.import_module(f"{PACKAGE}{FORMER[first]}{rest and '.' + rest}")
        module.__doc__ = today.__doc__
        module.__dict__["__getattr__"] = functools.partial(getattr, today)


def install() -> None:
    """Makes former names importable, once in a process."""
    if not any(type(finder).__name__ == FormerNames.__name__ for finder in sys.meta_path):
        sys.meta_path.append(FormerNames())
