# SPDX-License-Identifier: Apache-2.0
"""The cases of Kafka's SenderTest (org.apache.kafka.clients.producer.internals), with a scripted sink.

Each test names its case. These cases are omitted:

* everything transactional: tests/unit/producer/test_producer_transactions.py tests an arena's transactions;
* testQuotaMetrics, testNodeLatencyStats, testMetadataTopicExpiry, testNodeNotReady, testClusterAuthorization...,
  testUnsupportedVersion..., testWhenProduceResponseReturnsWithALeaderShipChange...: nodes, connections and
  protocol versions belong to a sink (Kafka's sink has them);
* testAppendInExpiryCallback: callbacks run in the producing processes, never in the sender;
* testTransactionalUnknownProducer..., testUnknownProducer...: the verdict for this response is OUT_OF_SEQUENCE;
* testNoDoubleDeallocation and the wrap-around of testSequenceNumberIncrement are in C, tests/native/shm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.reports import UNAFFECTED
from shmaccum.arena.results import BatchResult
from shmaccum.sender.record_errors import MESSAGE_TOO_LARGE
from shmaccum.sender.sinks.sink import Ack, Verdict, WireBatch
from tests.support.sender import ScriptedSink, Sending, refuse, rests_of, retry, too_large

DELIVERY_TIMEOUT_MS = 1500
OPTIONS = {
    "linger_ms": 0,
    "request_timeout_ms": 1000,
    "delivery_timeout_ms": DELIVERY_TIMEOUT_MS,
    "retry_backoff_ms": 100,
    "retry_backoff_max_ms": 100,
}
BACKOFF_MS = 120
NewSending = Callable[..., Sending]


@pytest.fixture
def new_sending(arena: Arena) -> Iterator[NewSending]:
    made: list[Sending] = []

    def make(sink: ScriptedSink | None = None, **options: object) -> Sending:
        sending = Sending(arena, sink, **{**OPTIONS, **options})
        if sink is not None:
            sending.scripted = sink
        made.append(sending)
        return sending

    yield make
    for sending in made:
        sending.close()


def test_simple(new_sending: NewSending) -> None:
    """testSimple: an appended record is delivered, and its future has the offset."""
    sending = new_sending()
    (token,) = sending.append()
    sending.run()
    completion = sending.completion(token)
    assert (completion.result, completion.offset_of(token)) == (BatchResult.SUCCEEDED, 0)
    assert sending.sender.metrics()["batches-in-flight"] == 0


def test_retries(new_sending: NewSending) -> None:
    """testRetries: a failed batch is sent again, and fails after `retries` attempts."""
    sending = new_sending(retries=1)
    (token,) = sending.append()
    sending.scripted.script = [retry]
    sending.run()
    assert sending.result(token) is None
    sending.sleep(BACKOFF_MS)
    sending.run()
    assert sending.result(token) is BatchResult.SUCCEEDED
    (token,) = sending.append()
    sending.scripted.script = [retry, retry]
    sending.run()
    sending.sleep(BACKOFF_MS)
    sending.run()
    assert sending.result(token) is BatchResult.FAILED
    assert sending.sender.metrics()["record-retry-total"] == 2
    assert sending.sender.metrics()["record-error-total"] == 1


def test_send_in_order(new_sending: NewSending) -> None:
    """testSendInOrder: with one batch in flight, a batch in flight or in backoff blocks its partition."""
    sending = new_sending(ScriptedSink(in_flight_max=1))
    sending.append()
    sending.append()
    sending.scripted.script = [retry]
    assert sending.run(3) == [1, 0, 0]
    sending.sleep(BACKOFF_MS)
    assert sending.run(3) == [1, 1, 0]
    assert sending.values() == [0, 1]


def test_init_producer_id_request(new_sending: NewSending) -> None:
    """testInitProducerIdRequest: nothing is drained before there is a producer id."""
    sink = ScriptedSink()
    sink.next_producer_ids = [None, None, (13131, 1)]
    sending = new_sending(sink)
    sending.append()
    assert sending.run(3) == [0, 0, 1]
    assert sending.arena.native.producer_identity == (13131, 1, sink.identity)


def test_can_retry_without_idempotence(new_sending: NewSending) -> None:
    """testCanRetryWithoutIdempotence"""
    sending = new_sending(enable_idempotence=False)
    (token,) = sending.append()
    sending.scripted.script = [retry]
    sending.run()
    sending.sleep(BACKOFF_MS)
    sending.run()
    assert sending.scripted.deliveries == [[(0, -1, 1)], [(0, -1, 1)]]
    assert sending.result(token) is BatchResult.SUCCEEDED


def test_idempotence_with_multiple_inflights(new_sending: NewSending) -> None:
    """testIdempotenceWithMultipleInflights: sequences are contiguous while several batches are in flight."""
    sending = new_sending()
    for _ in range(4):
        sending.append(count=2)
    sending.run()
    sending.scripted.is_held = True
    assert sending.run(4) == [1, 1, 1, 0]
    assert sending.scripted.deliveries == [[(0, 0, 2)], [(0, 2, 2)], [(0, 4, 2)], [(0, 6, 2)]]
    sending.scripted.is_held = False
    sending.run()
    assert sending.values() == list(range(8))


def test_idempotence_with_multiple_inflights_retried_in_order(new_sending: NewSending) -> None:
    """testIdempotenceWithMultipleInflightsRetriedInOrder: if the first fails, all are retried in order, one by one."""
    sending = new_sending()
    sending.append()
    sending.run()
    sending.scripted.is_held = True
    tokens = [sending.append()[0] for _ in range(3)]
    sending.run(3)
    sending.scripted.is_held = False
    sending.scripted.script = [retry]
    sending.run()
    assert sending.values() == [0]
    sending.sleep(BACKOFF_MS)
    assert sending.run(4) == [1, 1, 1, 0]
    assert sending.scripted.deliveries[4:] == [[(0, 1, 1)], [(0, 2, 1)], [(0, 3, 1)]]
    assert sending.values() == [0, 1, 2, 3]
    assert [sending.result(token) for token in tokens] == [BatchResult.SUCCEEDED] * 3


def test_first_fails_fatally_and_later_ones_start_over(new_sending: NewSending) -> None:
    """testIdempotenceWithMultipleInflightsWhereFirstFailsFatallyAndSequenceOfFutureBatchesIsAdjusted,
    testEpochBumpOnOutOfOrderSequenceForNextBatchWhenBatchInFlightFails
    """
    sending = new_sending()
    sending.append()
    sending.run()
    sending.scripted.is_held = True
    refused, later = sending.append()[0], sending.append()[0]
    sending.run(2)
    sending.scripted.is_held = False
    sending.scripted.script = [refuse]
    sending.run(4)
    sending.sleep(BACKOFF_MS)
    sending.run(2)
    assert sending.result(refused) is BatchResult.FAILED
    assert sending.completion(refused).error_code == 87
    assert sending.result(later) is BatchResult.SUCCEEDED
    assert sending.values() == [0, 2]
    assert sending.arena.native.producer_identity[:2] == (0, 1)
    assert sending.scripted.deliveries[-1] == [(0, 0, 1)]


def test_other_partitions_continue_during_an_epoch_bump(new_sending: NewSending) -> None:
    """testHealthyPartitionRetriesDuringEpochBump (TransactionManagerTest): an empty partition changes its epoch."""
    sending = new_sending()
    for partition in (0, 1):
        sending.append(partition)
    sending.run(2)
    sending.scripted.is_held = True
    sending.append(1)
    sending.run()
    healthy = sending.scripted.held
    sending.scripted.held = []
    sending.scripted.is_held = False
    sending.append(0)
    sending.append(0)
    sending.scripted.script = [refuse]
    for _ in range(6):
        sending.run()
        sending.sleep(BACKOFF_MS)
    assert sending.arena.native.producer_identity[1] == 1
    sending.append(1)
    assert sending.run() == [0]  # a batch of partition 1 in the old epoch is in flight
    sending.scripted.held = healthy
    sending.run(3)
    assert sending.values(1) == [1, 2, 5]
    assert sending.values(0) == [0, 4]


def test_epochs_that_are_used_up(new_sending: NewSending) -> None:
    """testRetryWhenProducerIdChanges, bumpIdempotentProducerEpoch at Short.MAX_VALUE: another producer id."""
    sink = ScriptedSink()
    sink.next_producer_ids = [(7, 2**15 - 1), None, (8, 0)]
    sending = new_sending(sink)
    sending.append()
    sending.run()
    refused, later = sending.append()[0], sending.append()[0]
    sink.script = [refuse]
    for _ in range(8):
        sending.run()
        sending.sleep(BACKOFF_MS)
    assert sending.arena.native.producer_identity[:2] == (8, 0)
    assert (sending.result(refused), sending.result(later)) == (BatchResult.FAILED, BatchResult.SUCCEEDED)


def test_duplicate_sequence_is_success(new_sending: NewSending) -> None:
    """testCorrectHandlingOfDuplicateSequenceError: a batch that the broker already has succeeds, with its offset."""
    sending = new_sending()
    sending.append(count=3)
    sending.run()
    lost: list[WireBatch] = []

    def write_and_lose_the_answer(wire: WireBatch) -> Ack:
        sending.scripted.broker.write([wire])
        lost.append(wire)
        return retry(wire)

    (token,) = sending.append()
    sending.scripted.script = [write_and_lose_the_answer]
    sending.run()
    sending.sleep(BACKOFF_MS)
    sending.run()
    assert sending.completion(token).offset_of(token) == 3
    assert sending.values() == [0, 1, 2, 3]


def test_idempotent_split_batch_and_send(new_sending: NewSending) -> None:
    """testIdempotentSplitBatchAndSend: parts have their records' sequences, and each record has its own offset."""
    sending = new_sending()
    tokens = sending.append(count=12)
    behind = sending.append()
    sending.scripted.size_max = 115  # six records
    for _ in range(12):
        sending.run()
    assert sending.values() == list(range(13))
    assert [sending.completion(token).offset_of(token) for token in [*tokens, *behind]] == list(range(13))
    sizes = [batch[2] for delivery in sending.scripted.deliveries for batch in delivery]
    assert sizes == [12, 6, 6, 1]
    assert sending.arena.statistics().counters["batches split"] == 1
    assert sending.sender.metrics()["batch-split-total"] == 1


def test_a_part_is_halved_again_and_a_single_record_is_refused(new_sending: NewSending) -> None:
    """testTooLargeBatchesAreSafelyRemoved, KAFKA-8350: splitting ends."""
    sending = new_sending()
    tokens = sending.append(count=3)
    sending.scripted.script = [too_large] * 3
    for _ in range(8):
        sending.run()
    assert [sending.result(token) for token in tokens] == [
        BatchResult.FAILED,
        BatchResult.SUCCEEDED,
        BatchResult.SUCCEEDED,
    ]
    assert sending.completion(tokens[0]).error_code == MESSAGE_TOO_LARGE
    assert sending.values() == [1, 2]


def test_a_part_that_fails_for_a_while_is_delivered_later(new_sending: NewSending) -> None:
    """A retry does not end a split: the rest continues in its place, and nothing overtakes it."""
    sending = new_sending()
    sending.append(count=8)
    sending.append()
    sending.scripted.script = [too_large, None, retry]
    sending.run(4)
    assert sending.values() == [0, 1, 2, 3]
    sending.sleep(BACKOFF_MS)
    sending.run(3)
    assert sending.values() == list(range(9))


def test_a_part_out_of_sequence_starts_over(new_sending: NewSending) -> None:
    """The rest of a split batch begins a new epoch with sequence 0."""
    sending = new_sending()
    sending.append(count=8)
    sending.scripted.script = [
        too_large,
        None,
        retry,
        lambda wire: Ack(wire, Verdict.OUT_OF_SEQUENCE, message="planted"),
    ]
    for _ in range(8):
        sending.run()
        sending.sleep(BACKOFF_MS)
    assert sending.values() == list(range(8))
    assert sending.arena.native.producer_identity[1] == 1


def test_inflight_batches_expire_on_delivery_timeout(new_sending: NewSending) -> None:
    """testInflightBatchesExpireOnDeliveryTimeout, testNoBufferReuseWhenBatchExpires: it fails but keeps its memory."""
    sending = new_sending()
    sending.scripted.is_held = True
    (token,) = sending.append()
    sending.run()
    sending.sleep(DELIVERY_TIMEOUT_MS)
    sending.run()
    assert sending.result(token) is BatchResult.EXPIRED
    assert sending.arena.statistics().slots["READY"] == 1
    sending.scripted.is_held = False
    sending.run()
    assert sending.result(token) is BatchResult.EXPIRED
    assert sending.arena.statistics().slots["READY"] == 0
    assert sending.sender.metrics()["record-error-total"] == 1


def test_first_batch_expires_and_the_second_is_not_sent_before(new_sending: NewSending) -> None:
    """testWhenFirstBatchExpireNoSendSecondBatchIfGuaranteeOrder: the expired one is still in flight."""
    sending = new_sending(ScriptedSink(in_flight_max=1))
    sending.scripted.is_held = True
    sending.append()
    sending.run()
    sending.sleep(DELIVERY_TIMEOUT_MS // 2)
    sending.append()
    sending.sleep(DELIVERY_TIMEOUT_MS // 2)
    assert sending.run(2) == [0, 0]
    sending.scripted.is_held = False
    assert sending.run(2) == [0, 1]


@pytest.mark.parametrize("answer", [retry, too_large], ids=["retry", "split"])
def test_expired_batch_comes_to_its_end(new_sending: NewSending, answer: Callable[[WireBatch], Ack]) -> None:
    """testExpiredBatchDoesNotRetry, testExpiredBatchDoesNotSplitOnMessageTooLargeError"""
    sending = new_sending()
    sending.scripted.is_held = True
    tokens = sending.append(count=4)
    sending.run()
    sending.sleep(DELIVERY_TIMEOUT_MS)
    sending.run()
    sending.scripted.is_held = False
    sending.scripted.script = [answer]
    sending.run(3)
    assert len(sending.scripted.deliveries) == 1
    assert {sending.result(token) for token in tokens} == {BatchResult.EXPIRED}
    assert sending.arena.statistics().slots["READY"] == 0


def test_nothing_expired_is_transmitted(new_sending: NewSending) -> None:
    """KAFKA-17862: Kafka may write a batch after it has reported it as expired. shmaccum must not."""
    sending = new_sending()
    tokens = [sending.append(partition)[0] for partition in range(3)]
    sending.sleep(DELIVERY_TIMEOUT_MS)
    sending.run(2)
    assert sending.scripted.deliveries == []
    assert [sending.result(token) for token in tokens] == [BatchResult.EXPIRED] * 3


def test_expiry_of_a_batch_with_a_sequence_starts_over(new_sending: NewSending) -> None:
    """testExpiryOfFirstBatchShouldCauseEpochBumpIfFutureBatchesFail"""
    sending = new_sending(delivery_timeout_ms=1000)
    sending.append()
    sending.run()
    sending.scripted.script = [retry]
    (expired,) = sending.append()
    sending.run()
    sending.sleep(950)
    (later,) = sending.append()
    sending.scripted.plan_filter = lambda _: False
    sending.sleep(60)
    sending.run()
    sending.scripted.plan_filter = lambda _: True
    for _ in range(5):
        sending.run()
        sending.sleep(BACKOFF_MS)
    assert sending.result(expired) is BatchResult.EXPIRED
    assert sending.result(later) is BatchResult.SUCCEEDED
    assert sending.values() == [0, 2]


def test_expiry_without_a_sequence_leaves_no_gap(new_sending: NewSending) -> None:
    """testExpiryOfUnsentBatchesShouldNotCauseUnresolvedSequences"""
    sending = new_sending()
    sending.scripted.plan_filter = lambda _: False
    sending.append()
    sending.run()
    sending.sleep(DELIVERY_TIMEOUT_MS)
    sending.run()
    sending.scripted.plan_filter = lambda _: True
    sending.append()
    sending.run()
    assert sending.scripted.deliveries == [[(0, 0, 1)]]
    assert sending.arena.native.producer_identity[1] == 0


def test_reset_next_batch_expiry(new_sending: NewSending) -> None:
    """testResetNextBatchExpiry, KAFKA-7311: after everything has expired, the sender waits again."""
    sending = new_sending()
    sending.append()
    sending.sleep(DELIVERY_TIMEOUT_MS)
    sending.run()
    rests = rests_of(sending)
    sending.sleep(1000)
    sending.run(2)
    assert min(rests) > 0


def test_expired_batches_in_multiple_partitions(new_sending: NewSending) -> None:
    """testExpiredBatchesInMultiplePartitions"""
    sending = new_sending()
    sending.scripted.is_held = True
    tokens = [sending.append(partition)[0] for partition in range(4)]
    sending.run()
    sending.sleep(DELIVERY_TIMEOUT_MS)
    sending.run()
    assert [sending.result(token) for token in tokens] == [BatchResult.EXPIRED] * 4


def test_record_errors_reach_the_records(new_sending: NewSending) -> None:
    """testRecordErrorPropagatedToApplication, KIP-467: only the invalid ones have the broker's code."""
    sending = new_sending()
    tokens = sending.append(count=5)
    sending.scripted.script = [
        lambda wire: Ack(wire, Verdict.REFUSED, error_code=87, message="a key is missing", record_errors=[0, 3])
    ]
    sending.run()
    assert {sending.result(token) for token in tokens} == {BatchResult.FAILED}
    codes = [sending.completion(token).error_code for token in tokens]
    assert codes == [87, UNAFFECTED, UNAFFECTED, 87, UNAFFECTED]
    assert "topic-0 failed with error 87: a key is missing" in sending.errors()


def test_custom_error_message(new_sending: NewSending) -> None:
    """testCustomErrorMessage, testDefaultErrorMessage: the sink's sentence is in the arena's error log."""
    sending = new_sending()
    sending.append()
    sending.scripted.script = [refuse]
    sending.run()
    assert sending.errors() == ["topic-0 failed with error 87: bad record"]


def test_retry_with_backoff(new_sending: NewSending) -> None:
    """testSenderShouldRetryWithBackoffOnRetriableError, KIP-580: 100, 200, 400 ms with a jitter of a fifth."""
    sending = new_sending(retry_backoff_max_ms=1000, delivery_timeout_ms=10_000)
    sending.append()
    for attempt in range(3):
        sending.scripted.script = [retry]
        sending.run()
        sending.sleep(int(0.79 * 100 * 2**attempt))
        assert sending.run(3) == [0, 0, 0]
        sending.sleep(int(0.43 * 100 * 2**attempt) + 1)
    assert sending.run() == [1]


def test_leader_change_is_retried_at_once(new_sending: NewSending) -> None:
    """testProducerBatchRetriesWhenPartitionLeaderChanges, KIP-951: the sink ends the backoff."""
    sending = new_sending()
    sending.append()
    sending.scripted.script = [lambda wire: Ack(wire, Verdict.RETRY, retry_after_ms=0)]
    assert sending.run(2) == [1, 1]
    sending.append()
    sending.scripted.script = [retry]
    assert sending.run(2) == [1, 0]
    assert sending.scripted.host is not None
    sending.scripted.host.end_backoff(sending.partition_index())
    assert sending.run() == [1]


def test_cancel_in_flight_after_force_close(new_sending: NewSending) -> None:
    """testForceCloseWithProducerIdReset, abortIncompleteBatches: an abort fails all batches and frees the memory."""
    sending = new_sending()
    sending.scripted.is_held = True
    tokens = [*sending.append(0), *sending.append(1)]
    sending.run()
    tokens += sending.append(0)
    sending.sender.abort()
    sending.sender.run()
    assert [sending.result(token) for token in tokens] == [BatchResult.ABORTED] * 3
    assert sending.arena.statistics().slots["READY"] == 0


def test_do_not_poll_when_no_request_sent(new_sending: NewSending) -> None:
    """testDoNotPollWhenNoRequestSent: an idle sender blocks in poll until its tick."""
    sending = new_sending()
    sending.run()
    rests = rests_of(sending)
    sending.run()
    assert rests == [pytest.approx(0.1, abs=0.01)]
