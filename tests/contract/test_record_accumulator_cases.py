# SPDX-License-Identifier: Apache-2.0
"""The behaviours of Kafka's RecordAccumulatorTest, on the arena.

These cases are omitted:

* ``testAppendLargeCompressed`` and the other compressed cases, ``testSplitBatchOffAccumulator`` and
  ``testSplitFrequency``: records in the arena are uncompressed. The sender's tests cover compression.
* ``testRecordsDrainedWhenTransactionCompleting``, ``testAbortUnsentBatches`` with a transaction: this arena has none.
* ``testUniformBuiltInPartitioner`` and its relatives: the partitioner is the producer's.
* ``testDrainWithANodeThatDoesntHostAnyPartitions``, ``testExponentialRetryBackoffLeaderChange``: nodes and leaders are
  the sink's. The caller passes the partitions to drain and the time of the next attempt.
* ``testRetryPolicy``, ``testAppendDeadline``: the cases of the BufferPool test the deadline of an append.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.exceptions import BatchInUseError, NotSenderError
from tests.contract.kafka_cases import (
    BATCH_OF_1024,
    FOREVER_NS,
    HEADER_SIZE,
    KEY,
    MS,
    RECORD_SIZE,
    RECORDS_OF_1024,
    TOPIC,
    VALUE,
    Case,
)
from tests.support.accumulator import Accumulator

NewCase = Callable[..., Case]
LINGER_MS = 10
DELIVERY_TIMEOUT_NS = 3200 * MS


def test_drain_batches(new_case: NewCase) -> None:
    """testDrainBatches: a size limit ends the drain, the next drain continues there, muted ones are skipped."""
    case = new_case(batch_size=RECORD_SIZE + HEADER_SIZE)
    for partition in range(4):
        case.append(partition)
    first = case.drain(0, 1, 2, 3, size_max=RECORD_SIZE + HEADER_SIZE)
    assert [batch.partition for batch in first] == [0]
    second = case.drain(1, 2, 3, size_max=2 * (RECORD_SIZE + HEADER_SIZE))
    assert [batch.partition for batch in second] == [1, 2]
    case.accumulator.mute(case.accumulator.partition_index(TOPIC, 3), True)
    assert case.drain(3) == []
    case.accumulator.mute(case.accumulator.partition_index(TOPIC, 3), False)
    third = case.drain(3)
    assert [batch.partition for batch in third] == [3]
    case.succeed(*first, *second, *third)


def test_full(new_case: NewCase) -> None:
    """testFull: 68 records fit into 1,024 bytes. The 69th makes the first batch ready."""
    case = new_case(batch_size=BATCH_OF_1024)
    case.append(count=RECORDS_OF_1024)
    assert case.ready(linger_ms=LINGER_MS) == []
    case.append()
    assert case.ready(linger_ms=LINGER_MS) == [0]
    (batch,) = case.drain(0)
    assert batch.record_count == RECORDS_OF_1024
    assert batch.size == 1024 + HEADER_SIZE
    assert [record[2:4] for record in batch.decode()] == [(KEY, VALUE)] * RECORDS_OF_1024
    case.succeed(batch)


def test_append_large(new_case: NewCase) -> None:
    """testAppendLargeNonCompressed: a record larger than a buffer is a separate batch, which is ready at once."""
    case = new_case(batch_size=512 + HEADER_SIZE)
    case.append(value=bytes(2 * 512))
    assert case.ready(linger_ms=LINGER_MS) == [0]
    (batch,) = case.drain(0)
    assert batch.record_count == 1
    assert len(batch.buffers) == 2
    assert batch.decode() == [(0, 0, KEY, bytes(1024), [])]
    case.succeed(batch)


def test_linger(new_case: NewCase) -> None:
    """testLinger: nothing is ready before linger has passed since the batch's first record."""
    case = new_case(batch_size=1024 + HEADER_SIZE)
    case.append()
    assert case.ready(LINGER_MS) == []
    case.sleep(LINGER_MS)
    assert case.ready(LINGER_MS) == [0]
    (batch,) = case.drain(0)
    assert batch.record_count == 1
    case.succeed(batch)


def test_partial_drain(new_case: NewCase) -> None:
    """testPartialDrain: due to the size limit, only one partition is drained."""
    case = new_case(batch_size=1024 + HEADER_SIZE)
    for partition in (0, 1):
        case.append(partition, count=RECORDS_OF_1024 + 1)
    assert case.ready(LINGER_MS) == [0, 1]
    batches = case.drain(0, 1, size_max=1024)
    assert [batch.partition for batch in batches] == [0]
    case.succeed(*batches)


def _append_many(name: str, partition: int, count: int) -> None:
    with Arena.attach(name) as arena:
        accumulator = Accumulator(arena, max_block_ms=30_000)
        for _ in range(count):
            accumulator.append(TOPIC, partition, 0, KEY, VALUE)
        accumulator.close()


def test_stressful_situation(new_case: NewCase, arena_name: str) -> None:
    """testStressfulSituation: five processes, two partitions, a pool of ten buffers; every record is read once."""
    case = new_case(batch_size=1024, buffers=10)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_append_many, args=(arena_name, i % 2, 2000)) for i in range(5)]
    for worker in workers:
        worker.start()
    read = 0
    while read < 5 * 2000:
        read += case.drain_all()
        case.accumulator.maintain()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 5
    assert case.drain_all() == 0


def test_next_ready_check_delay(new_case: NewCase) -> None:
    """testNextReadyCheckDelay: the sender may sleep only until the first batch has lingered."""
    case = new_case(batch_size=BATCH_OF_1024)
    case.append(0, count=RECORDS_OF_1024)
    assert case.next_check_ms(LINGER_MS) == LINGER_MS
    case.sleep(LINGER_MS // 2)
    case.append(1, count=RECORDS_OF_1024)
    assert case.ready(LINGER_MS) == []
    assert case.next_check_ms(LINGER_MS) == LINGER_MS // 2
    case.append(2, count=RECORDS_OF_1024 + 1)
    assert case.ready(LINGER_MS) == [2]
    assert case.next_check_ms(LINGER_MS) == LINGER_MS // 2  # batches that still linger determine the time


def test_retry_backoff(new_case: NewCase) -> None:
    """testRetryBackoff: a requeued batch waits for its backoff, but does not delay other partitions."""
    case = new_case(batch_size=1024 + HEADER_SIZE)
    case.append(0)
    case.sleep(LINGER_MS)
    (batch,) = case.drain(0)
    case.accumulator.requeue(batch, (case.now_ms + 100) * MS)
    case.append(1)
    case.sleep(LINGER_MS)
    assert case.ready(LINGER_MS) == [1]
    other = case.drain(0, 1)
    assert [batch.partition for batch in other] == [1]
    case.sleep(100)
    assert case.ready(LINGER_MS) == [0]
    (again,) = case.drain(0)
    assert (again.seq, again.attempt_count) == (batch.seq, 2)
    case.succeed(again, *other)


def test_flush(new_case: NewCase) -> None:
    """testFlush, testAwaitFlushComplete: flush makes lingering batches ready and ends when all are complete."""
    case = new_case(batch_size=4 * 1024)
    for i in range(100):
        case.append(i % 3)
    assert case.ready(linger_ms=1 << 30) == []
    ticket = case.accumulator.flush_begin()
    assert case.ready(linger_ms=1 << 30) == [0, 1, 2]
    batches = case.drain(0, 1, 2)
    assert ticket.remaining() == 3
    case.succeed(*batches)
    assert ticket.remaining() == 0
    assert case.accumulator.flush(timeout=0)


def test_flush_waits_for_the_parts_of_a_split_batch(new_case: NewCase) -> None:
    """testProduceRequestResultAwaitAllDependents (KAFKA-19479): flush ends after the last part."""
    case = new_case(batch_size=1024)
    first, second = case.append(count=2)
    ticket = case.accumulator.flush_begin()
    (batch,) = case.drain(0)
    case.accumulator.complete_part(batch, 1, BatchResult.SUCCEEDED, 7)
    assert ticket.remaining() == 1
    assert case.accumulator.find(second) is None
    case.accumulator.complete_part(batch, 1, BatchResult.SUCCEEDED, 9)
    assert ticket.remaining() == 0
    offsets = []
    for token in (first, second):
        completion = case.accumulator.find(token)
        assert completion is not None
        offsets.append(completion.offset_of(token))
    assert offsets == [7, 9]


def test_abort_incomplete_batches(new_case: NewCase) -> None:
    """testAbortIncompleteBatches: every record gets its result. Batches in flight keep their memory."""
    case = new_case(batch_size=128 + HEADER_SIZE, buffers=32)
    tokens = case.append(count=100)
    in_flight = case.drain(0)
    free_before = case.free_count
    case.accumulator.abort(is_in_flight_included=True)
    results = {completion.result for token in tokens if (completion := case.accumulator.find(token)) is not None}
    assert results == {BatchResult.ABORTED}
    assert all(case.accumulator.find(token) is not None for token in tokens)
    assert case.free_count == 32 - len(in_flight) > free_before
    case.succeed(*in_flight)
    found = case.accumulator.find(tokens[0])
    assert found is not None
    assert found.result == BatchResult.ABORTED


def test_abort_unsent_batches(new_case: NewCase) -> None:
    """testAbortUnsentBatches: batches in flight continue."""
    case = new_case(batch_size=128 + HEADER_SIZE, buffers=32)
    tokens = case.append(count=100)
    (in_flight,) = case.drain(0)
    case.accumulator.abort()
    assert all(case.accumulator.find(token) is None for token in tokens[: in_flight.record_count])
    assert all(case.accumulator.find(token) is not None for token in tokens[in_flight.record_count :])
    case.succeed(in_flight, base_offset=42)
    found = case.accumulator.find(tokens[1])
    assert found is not None
    assert found.offset_of(tokens[1]) == 43


@pytest.mark.parametrize("is_muted", [False, True])
def test_expired_batch_single(new_case: NewCase, is_muted: bool) -> None:
    """testExpiredBatchSingle: it expires exactly at the delivery timeout, muted or not. Nothing is ready afterwards."""
    case = new_case(batch_size=BATCH_OF_1024)
    (token,) = case.append()
    case.accumulator.mute(case.accumulator.partition_index(TOPIC, 0), is_muted)
    case.accumulator.ready(FOREVER_NS)
    case.sleep(3199)
    assert case.accumulator.expire(DELIVERY_TIMEOUT_NS) == (0, 1 * MS)
    case.sleep(1)
    expired, next_expiry_ns = case.accumulator.expire(DELIVERY_TIMEOUT_NS)
    assert (expired, next_expiry_ns) == (1, None)
    case.accumulator.mute(case.accumulator.partition_index(TOPIC, 0), False)
    assert case.ready() == []
    found = case.accumulator.find(token)
    assert found is not None
    assert found.result == BatchResult.EXPIRED


def test_expired_batches(new_case: NewCase) -> None:
    """testExpiredBatches: all old batches of a partition expire, and a younger one does not."""
    case = new_case(batch_size=BATCH_OF_1024)
    case.append(count=RECORDS_OF_1024 + 1)
    case.sleep(3000)
    case.append(1)
    case.accumulator.ready(FOREVER_NS)
    case.sleep(201)
    assert case.accumulator.expire(DELIVERY_TIMEOUT_NS)[0] == 2
    assert case.accumulator.take_expired() == {case.accumulator.partition_index(TOPIC, 0): RECORDS_OF_1024 + 1}
    assert case.accumulator.take_expired() == {}
    assert case.drain_all() == 1


def test_expired_in_flight_keeps_its_memory(new_case: NewCase) -> None:
    """testNoBufferReuseWhenBatchExpires (KAFKA-19012): it fails at once, and is freed after its I/O."""
    case = new_case(batch_size=BATCH_OF_1024, buffers=1)
    (token,) = case.append()
    (batch,) = case.drain(0)
    before = batch.tobytes()
    case.sleep(3200)
    assert case.accumulator.expire(DELIVERY_TIMEOUT_NS)[0] == 1
    found = case.accumulator.find(token)
    assert found is not None
    assert found.result == BatchResult.EXPIRED
    assert case.free_count == 0
    assert batch.tobytes() == before
    case.succeed(batch, base_offset=5)
    assert case.free_count == 1
    late = case.accumulator.find(token)
    assert late is not None
    assert late.result == BatchResult.EXPIRED


def test_expired_batch_does_not_retry(new_case: NewCase) -> None:
    """testExpiredBatchDoesNotRetry: if a batch expired in flight, requeue frees it."""
    case = new_case(batch_size=BATCH_OF_1024)
    case.append()
    (batch,) = case.drain(0)
    case.sleep(3200)
    case.accumulator.expire(DELIVERY_TIMEOUT_NS)
    case.accumulator.requeue(batch)
    assert case.drain(0) == []
    assert case.free_count == 16


def test_muted_partitions(new_case: NewCase) -> None:
    """testMutedPartitions: neither ready nor drained while muted."""
    case = new_case(batch_size=BATCH_OF_1024)
    case.append(count=RECORDS_OF_1024 + 1)
    index = case.accumulator.partition_index(TOPIC, 0)
    case.accumulator.mute(index, True)
    assert case.ready() == []
    assert case.drain(0) == []
    case.accumulator.mute(index, False)
    assert case.ready() == [0]
    case.succeed(*case.drain(0))


def test_sequences_are_assigned_once(new_case: NewCase) -> None:
    """ProducerBatch.setProducerState: a retried batch has the same sequence and bytes."""
    case = new_case(batch_size=BATCH_OF_1024)
    case.accumulator.set_producer_id(4711, 3)
    case.append(count=RECORDS_OF_1024 + 1)
    (first,) = case.drain(0)
    before = first.tobytes()
    case.accumulator.requeue(first)
    (again,) = case.drain(0)
    assert again.tobytes() == before
    assert (again.producer_id, again.producer_epoch, again.base_sequence) == (4711, 3, 0)
    assert case.drain(0) == []
    case.succeed(again)
    (second,) = case.drain(0)
    assert (second.producer_id, second.producer_epoch, second.base_sequence) == (4711, 3, RECORDS_OF_1024)
    case.succeed(second)


def test_batch_ends_once(new_case: NewCase) -> None:
    """testBatchCannotCompleteTwice, testBatchCannotAbortTwice: a second completion is an error and changes nothing."""
    case = new_case(batch_size=BATCH_OF_1024)
    (token,) = case.append()
    (batch,) = case.drain(0)
    case.succeed(batch, base_offset=500)
    with pytest.raises(NotSenderError):
        case.accumulator.complete(batch, BatchResult.FAILED)
    with pytest.raises(NotSenderError):
        batch.tobytes()
    assert case.accumulator.abort(is_in_flight_included=True) == 0
    found = case.accumulator.find(token)
    assert found is not None
    assert (found.result, found.offset_of(token)) == (BatchResult.SUCCEEDED, 500)


def test_batch_is_not_ended_under_a_reader(new_case: NewCase) -> None:
    """Not in Kafka: memory with an exported view is not freed."""
    case = new_case(batch_size=BATCH_OF_1024)
    case.append()
    (batch,) = case.drain(0)
    views = batch.buffers
    with pytest.raises(BatchInUseError):
        case.succeed(batch)
    for view in views:
        view.release()
    case.succeed(batch)


def test_no_append_after_seal(new_case: NewCase) -> None:
    """testShouldNotAttemptAppendOnceRecordsBuilderIsClosedForAppends: a sealed batch takes no more."""
    case = new_case(batch_size=BATCH_OF_1024)
    first = case.append()[0]
    case.accumulator.flush_begin()
    second = case.append()[0]
    assert (first.seq, second.seq) == (0, 1)
    batches = [*case.drain(0), *case.drain(0)]
    assert [batch.record_count for batch in batches] == [1, 1]
    case.succeed(*batches)


def test_room_for_an_oversized_first_record_alone(new_case: NewCase) -> None:
    """testHasRoomForAllowsOversizedFirstRecordButRejectsSubsequentRecords."""
    case = new_case(batch_size=1024)
    case.append(value=bytes(4096))
    case.append(value=bytes(100))
    batches = [*case.drain(0), *case.drain(0)]
    assert [batch.record_count for batch in batches] == [1, 1]
    assert [len(batch.decode()[0][3] or b"") for batch in batches] == [4096, 100]
    case.succeed(*batches)
