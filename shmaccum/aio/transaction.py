# SPDX-License-Identifier: Apache-2.0
"""The transaction of `shmaccum.producer.transaction` for asyncio, where tasks wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, final

from shmaccum.exceptions import NoTransactionError, ProducerFencedError, TransactionEndedError
from shmaccum.producer import transaction as threaded
from shmaccum.producer.group_offsets import GroupOffsets
from shmaccum.producer.transaction import COMMIT_TIMEOUT_S

if TYPE_CHECKING:
    from typing_extensions import Self

    from shmaccum.aio.loop_producer import LoopProducer


@final
class Transaction:
    """A transaction for an ``async with`` block; made by `Producer.transaction`.

    ::

        async with producer.transaction() as transaction:
            await producer.send("orders", b"...")

    The block begins the transaction. Its end commits. An exception in the block, or a cancellation of its task, aborts.
    If the task is cancelled in the commit, the commit continues, and `commit` waits for its outcome.
    """

    def __init__(self, producer: LoopProducer, send_offsets: Callable[[GroupOffsets, object], Awaitable[None]]) -> None:
        self._producer = producer
        self._send_offsets = send_offsets
        self._transaction: threaded.Transaction | None = None

    def _begun(self) -> threaded.Transaction:
        if self._transaction is None:
            raise NoTransactionError("the transaction has not begun: use `async with`")
        return self._transaction

    @property
    def number(self) -> int:
        """The number of the transaction in the arena. Workers join by this number (`Producer.join`).

        Raises:
            NoTransactionError: the transaction has not begun.
        """
        return self._begun().number

    @property
    def is_over(self) -> bool:
        """True if this process has read the outcome, or has aborted the transaction."""
        return self._begun().is_over

    async def send_offsets(self, offsets: GroupOffsets, group_metadata: object) -> None:
        """Commits offsets of a consumer group with the transaction, as `Producer.send_offsets_to_transaction`.

        Raises:
            NoTransactionError: the transaction has not begun, or is over.
            Exception: as `Producer.send_offsets_to_transaction`.
        """
        self._begun().check_is_ours()
        await self._send_offsets(offsets, group_metadata)

    async def commit(self, timeout: float | None = COMMIT_TIMEOUT_S) -> None:
        """Commits before the end of the block.

        Args:
            timeout: seconds, or None for no limit.

        Raises:
            Exception: as `Producer.commit_transaction`.
        """
        await self._producer.commit_in_loop(self._begun(), timeout)

    async def abort(self) -> None:
        """Aborts before the end of the block.

        Raises:
            Exception: as `Producer.abort_transaction`.
        """
        self._begun().abort()

    async def __aenter__(self) -> Self:
        self._transaction = await self._producer.begin_in_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._begun().end_block(error)
            return
        if self.is_over:
            self._begun().check_block()
            return
        try:
            await self.commit()
        except (TransactionEndedError, ProducerFencedError):
            self._begun().release()
            raise
