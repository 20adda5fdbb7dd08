# SPDX-License-Identifier: Apache-2.0
"""A consumer in a process of its own, to be killed: notes what it consumed, then commits that.

Run as ``python -m tests.chaos.group_member ADDRESS TOPIC GROUP LEDGER``; SIGTERM ends it in order.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from kafka import KafkaConsumer
from kafka.errors import KafkaError

SESSION_MS = 1500


class Member:
    """Consumes until it is told to end."""

    def __init__(self, address: str, topic: str, group: str, ledger: str) -> None:
        self._is_over = False
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._consumer = KafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=200,
            max_poll_records=100,
            reconnect_backoff_max_ms=200,
        )
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        self._is_over = True

    def run(self) -> None:
        while not self._is_over:
            records = [one for found in self._consumer.poll(timeout_ms=100).values() for one in found]
            if records:
                self._note_and_commit([one.value for one in records])
        self._consumer.close(autocommit=False)

    def _note_and_commit(self, values: list[bytes]) -> None:
        """Another member consumes again the values that are noted and not committed."""
        os.write(self._ledger, b"".join(value + b"\n" for value in values))
        try:
            self._consumer.commit()
        except KafkaError as error:
            print(f"not committed: {error!r}", file=sys.stderr)


if __name__ == "__main__":
    Member(*sys.argv[1:]).run()
