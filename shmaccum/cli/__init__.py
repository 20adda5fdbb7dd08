# SPDX-License-Identifier: Apache-2.0
"""The ``shmaccum`` command: one module per command, imported when it is asked for."""

from shmaccum.cli.group import main

__all__ = ["main"]
