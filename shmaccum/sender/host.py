# SPDX-License-Identifier: Apache-2.0
"""The sender as its sink sees it (sender/sinks/sink.py: SinkHost)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from shmaccum._native import SenderHalf
from shmaccum.arena import Arena
from shmaccum.arena.places import Places
from shmaccum.arena.reports import Kind, Report
from shmaccum.arena.results import TransactionReason
from shmaccum.arena.wake_fifo import WakeFifo
from shmaccum.common.units import format_count
from shmaccum.config import SenderOptions
from shmaccum.sender.systemd import Supervisor

logger = logging.getLogger("shmaccum.sender")

REPEAT_NS = 60 * 10**9
SENTENCES_MAX = 256


class Repeats:
    """Limits the repetition of sentences. Otherwise, a disk that stays full would fill another one with log lines."""

    def __init__(self) -> None:
        self._reported: dict[str, tuple[int, int]] = {}
        """Sentence -> the time of its last report, and its count since then."""

    def count_to_report(self, sentence: str, now_ns: int) -> int:
        """Return the count of the sentence since its last report, including this one; 0 if that is too recent."""
        reported_ns, count = self._reported.get(sentence, (None, 0))
        if reported_ns is not None and now_ns - reported_ns < REPEAT_NS:
            self._reported[sentence] = (reported_ns, count + 1)
            return 0
        if len(self._reported) >= SENTENCES_MAX:
            self._reported.clear()
        self._reported[sentence] = (now_ns, 0)
        return count + 1


class ArenaTransactions:
    """The transactions of an arena, as the sink sees them (sender/sinks/sink.py: HostTransactions).

    Args:
        half: has the role.
        arena: it has a transactional_id.
        report: takes the reason of a failure.
    """

    def __init__(self, half: SenderHalf, arena: Arena, report: Callable[[Report], object]) -> None:
        assert arena.transactional_id is not None
        self._half = half
        self._native = arena.native
        self._report = report
        self.transactional_id = arena.transactional_id
        self.timeout_ms = arena.transaction_timeout_ms

    @property
    def number(self) -> int:
        return self._native.transaction[0]

    @property
    def state(self) -> str:
        return self._native.transaction[1]

    @property
    def producer_identity(self) -> tuple[int, int, bytes]:
        return self._native.producer_identity

    @property
    def recovery_state(self) -> int:
        return self._native.transaction_recovery_state

    def save_recovery_state(self, recovery_state: int) -> None:
        self._half.store_recovery_state(recovery_state)

    def fail(self, why: TransactionReason, sentence: str) -> None:
        # The report comes first, because a producer whose commit fails reads the reason.
        self._report(Report(Kind.FAILED_TRANSACTION, sentence))
        self._half.fail_transaction(why)


class Host:
    """The sender, as its sink sees it.

    Raises:
        CorruptArenaError: the arena's transactional_id cannot be read.
    """

    def __init__(
        self,
        half: SenderHalf,
        arena: Arena,
        places: Places,
        wake_fifo: WakeFifo,
        options: SenderOptions,
        supervisor: Supervisor,
    ) -> None:
        self._half = half
        self.arena = arena
        self._places = places
        self._wake_fifo = wake_fifo
        self._options = options
        self._supervisor = supervisor
        self._repeats = Repeats()
        self.on_end_backoff: Callable[[int], object] = half.end_backoff
        """Called with the index of a partition whose pause has no reason any more."""
        self.last_trouble = ("", 0)
        """The last report and its time, in nanoseconds of the arena's clock."""
        self.last_failures: dict[int, str] = {}
        """Partition index -> why a batch of it was retried or failed the last time."""
        has_transactions = arena.transactional_id is not None
        self.transactions = ArenaTransactions(half, arena, self.report) if has_transactions else None

    @property
    def arena_name(self) -> str:
        return self.arena.name

    @property
    def durability(self) -> str:
        return self.arena.durability

    @property
    def sync_interval_ms(self) -> int | None:
        return self.arena.geometry["sync_interval_ms"] or None

    @property
    def permissions(self) -> tuple[int, int, int]:
        return self.arena.permissions

    @property
    def batch_size_max(self) -> int:
        """Bytes of the largest batch that the arena can hold, header included."""
        geometry = self.arena.geometry
        return max(geometry["batch_size"], geometry["record_size_max"])

    @property
    def options(self) -> SenderOptions:
        return self._options

    def topic_partition(self, partition_index: int) -> tuple[str, int]:
        return self._places[partition_index]

    def partition_count(self, topic: str) -> int:
        return self.arena.native.topic_partition_count(topic)

    def report(self, report: Report | str) -> None:
        report = Report(Kind.SENTENCE, report) if isinstance(report, str) else report
        sentence, now_ns = report.sentence, self.arena.native.now_ns()
        if report.kind is not Kind.EXPIRED:  # an expiry is not the cause of later expiries
            self.last_trouble = (sentence, now_ns)
        report.record(self.arena.native)
        if (count := self._repeats.count_to_report(sentence, now_ns)) == 1:
            logger.warning("%s", sentence)
        elif count:
            logger.warning("%s (%s more)", sentence, format_count(count, "time"))

    def show_life(self) -> None:
        self._half.show_life()
        self._supervisor.show_life()

    def end_backoff(self, partition_index: int) -> None:
        self.on_end_backoff(partition_index)

    def set_available(self, partition_index: int, is_available: bool) -> None:
        self._half.set_available(partition_index, is_available)

    def wake(self) -> None:
        self._wake_fifo.wake()
