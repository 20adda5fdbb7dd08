# SPDX-License-Identifier: Apache-2.0
"""A sender that counts the calls of its pump, for tests that check the path of their batches.

``python -m tests.kafka.noted_sender FILE ARENA ...``: FILE grows by a byte before each call. The other arguments are
``shmaccum.sender``'s.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from shmaccum.sender.__main__ import main
from shmaccum.sender.pump import PumpRunner
from shmaccum.sender.sinks.sink import BorrowedSocket


def note_calls(path: str) -> None:
    """Append a byte to the file before each call of the pump. Many processes may do so."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    plan = PumpRunner._plan

    def note(self: PumpRunner, handed_over: Sequence[BorrowedSocket]) -> tuple[Any, ...]:
        os.write(descriptor, b"!")
        return plan(self, handed_over)

    PumpRunner._plan = note  # type: ignore[method-assign]


if __name__ == "__main__":
    note_calls(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
