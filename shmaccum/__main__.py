# SPDX-License-Identifier: Apache-2.0
"""``python -m shmaccum``: the ``shmaccum`` command."""

from __future__ import annotations

from shmaccum.cli import main

if __name__ == "__main__":
    main(prog_name="shmaccum")
