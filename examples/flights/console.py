# SPDX-License-Identifier: Apache-2.0
"""The console on which the examples print."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

from shmaccum.exceptions import PackageMissingError

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_OF_A_PIPE = 110


def make_console() -> Console:
    """Returns standard output. A pipe has no width, so it gets a width at which nothing is cut.

    Raises:
        PackageMissingError: the package that draws is not installed.
    """
    if importlib.util.find_spec("rich") is None:
        raise PackageMissingError("the example draws with the package rich: pip install rich")
    from rich.console import Console

    class OurConsole(Console):
        """A console that ends, like every command, when its reader is gone."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return OurConsole(highlight=False, width=None if has_width else WIDTH_OF_A_PIPE)
