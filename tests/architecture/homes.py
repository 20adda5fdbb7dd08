# SPDX-License-Identifier: Apache-2.0
"""The table of the modules that define the public names, which the package imports when they are first used.

``shmaccum/__init__.py`` imports these names for type checkers and editors. Only this list is written by hand.
``python -m tests.architecture.homes`` prints the source of the table, generated from these imports.
"""

from __future__ import annotations

import ast
import sys

from setup import ROOT

HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""The module that defines each public name which is imported when it is first used.

Do not edit: ``python -m tests.architecture.homes`` writes this file from the imports of ``shmaccum/__init__.py``.
"""

HOMES = {
'''


def homes(package: ast.Module) -> dict[str, str]:
    """Map each name that ``shmaccum/__init__.py`` imports for type checkers to the module that defines it."""
    found: dict[str, str] = {}
    for block in package.body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for line in block.body:
                assert isinstance(line, ast.ImportFrom), f"line {line.lineno} is no import of public names"
                found.update((alias.name, str(line.module)) for alias in line.names)
    return found


def homes_source() -> str:
    """Return the source of ``shmaccum/common/homes.py``."""
    package = ast.parse((ROOT / "shmaccum/__init__.py").read_text(encoding="utf-8"))
    lines = (f'    "{name}": "{module}",\n' for name, module in sorted(homes(package).items()))
    return f"{HEAD}{''.join(lines)}}}\n"


if __name__ == "__main__":
    sys.stdout.write(homes_source())
