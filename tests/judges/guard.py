# SPDX-License-Identifier: Apache-2.0
"""A command that ends with the process that started it, and leaves no child process.

::

    this process ──pipe──> python guard.py STOP_S COMMAND... ──session of its own──> the command and its children

When this process ends, even by Ctrl-C or kill -9, the kernel closes the pipe. The guard then ends the session. It does
the same when the command exits.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

STOP_S = 10.0


@contextlib.contextmanager
def guarded(command: Sequence[str], *, stop_s: float = STOP_S, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start the guard of a command, which ends with the block. Its exit code is the command's.

    Args:
        command: the program and its arguments.
        stop_s: how long the command may take to exit after SIGTERM.
        options: options of `subprocess.Popen`.
    """
    guard = [sys.executable, __file__, str(stop_s), *command]
    with subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True, **options) as process:
        assert process.stdin is not None
        try:
            yield process
        finally:
            process.stdin.close()


def main(stop_s: float, command: Sequence[str]) -> int:
    """Runs the command until it or the pipe ends, and returns its exit code."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    ending = os.pidfd_open(process.pid)
    select.select([ending, sys.stdin], [], [])
    os.killpg(process.pid, signal.SIGTERM)
    select.select([ending], [], [], stop_s)
    os.killpg(process.pid, signal.SIGKILL)  # the pid is not reused before wait()
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
