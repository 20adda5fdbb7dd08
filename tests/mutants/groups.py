# SPDX-License-Identifier: Apache-2.0
"""Runs a command in a group of processes that ends with it, with its deadline, and with the process that began it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from setup import ROOT


def run_group(
    command: Sequence[str], variables: dict[str, str], output: TextIO | None = None, deadline_s: float | None = None
) -> int | None:
    """Runs a command to its end: its status, or None if the deadline passes first."""
    with (
        subprocess.Popen(
            command, env=variables, cwd=ROOT, stdout=output, stderr=output, start_new_session=True
        ) as process,
        _killed_at_the_end(process.pid),
    ):
        try:
            return process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return None


@contextmanager
def _killed_at_the_end(group: int) -> Iterator[None]:
    """Kills a group of processes at the end of the block, and also when this process is killed within it."""
    guard = ["sh", "-c", 'cat; kill -s KILL -- "-$0"', str(group)]
    with subprocess.Popen(guard, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True):
        yield
