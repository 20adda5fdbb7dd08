# SPDX-License-Identifier: Apache-2.0
"""The core's transaction calls for Python."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shmaccum.arena import Arena
from shmaccum.arena import arena as arena_module
from shmaccum.arena.results import BatchResult
from shmaccum.exceptions import ArenaBusyError, InvalidArgumentError, NoTransactionError, TransactionEndedError
from tests.support.accumulator import Accumulator

TOPIC = "t"
TIMEOUT_NS = 60 * 10**9


@pytest.fixture
def transactional(arena_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arena]:
    """An arena with transactions."""
    plain = arena_module._geometry
    monkeypatch.setattr(arena_module, "_geometry", lambda options: plain(options) | {"is_transactional": 1})
    with Arena.create(arena_name, buffer_memory=8 * 512, batch_size=512, process_count=4, waiter_count=4) as arena:
        yield arena


def deliver(accumulator: Accumulator) -> int:
    indices, _ = accumulator.ready(0, True)
    batches, _ = accumulator.drain(indices, 1 << 20)
    for batch in batches:
        accumulator.complete(batch, BatchResult.SUCCEEDED, 0)
    return len(batches)


def test_a_transaction_is_begun_filled_and_committed(transactional: Arena) -> None:
    native = transactional.native
    with Accumulator(transactional) as accumulator:
        accumulator.become_sender()
        sender = accumulator.half
        with pytest.raises(NoTransactionError, match="begin one before you send"):
            accumulator.append(TOPIC, 0, 1, None, b"value")
        assert native.begin_transaction() == 1
        with pytest.raises(ArenaBusyError, match="another transaction"):
            native.begin_transaction()
        accumulator.append(TOPIC, 0, 1, None, b"value")
        native.commit_transaction(1)
        assert native.transaction == (1, "committing", "")
        assert sender.next_transaction_task(TIMEOUT_NS) is None
        assert deliver(accumulator) == 1
        assert sender.next_transaction_task(TIMEOUT_NS) == (True, 1)
        sender.end_transaction(1)
        assert native.transaction == (1, "none", "")
        native.leave_transaction()
        assert native.begin_transaction() == 2
        accumulator.append(TOPIC, 0, 1, None, b"value")
        native.abort_transaction(2)
        with pytest.raises(TransactionEndedError):
            native.commit_transaction(2)
        assert sender.next_transaction_task(TIMEOUT_NS) == (False, 2)
        sender.end_transaction(2)
        assert native.transaction == (2, "none", "its coordinator aborted it")
        with pytest.raises(InvalidArgumentError):
            native.commit_transaction(0)


def test_a_plain_arena_has_none(arena: Arena) -> None:
    with pytest.raises(InvalidArgumentError, match="has no transactional_id"):
        arena.native.begin_transaction()
