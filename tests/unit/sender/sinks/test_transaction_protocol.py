# SPDX-License-Identifier: Apache-2.0
"""The protocol of transactions to Kafka: each state, each request, each error of each request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shmaccum.common.format.group_offsets import GroupMember, OffsetToCommit
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.sender.sinks.kafka.transaction.protocol import (
    RecoveryState,
    State,
    TransactionOutcome,
    TransactionProtocol,
)
from shmaccum.sender.sinks.kafka.transaction.requests import (
    AddOffsets,
    AddPartitions,
    AskVersion,
    CommitOffsets,
    CoordinatorKey,
    CoordinatorKind,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    Request,
    TransactionalProducer,
    TransactionResponse,
)

ID = "orders-1"
PLACE, OTHER = TopicPartition("flights", 0), TopicPartition("flights", 1)
MEMBER = GroupMember("readers", "member-1", 7)
OFFSETS = {PLACE: OffsetToCommit(5), OTHER: OffsetToCommit(9, "words")}
TRANSACTIONS = CoordinatorKey(CoordinatorKind.TRANSACTION, ID)
GROUP = CoordinatorKey(CoordinatorKind.GROUP, "readers")
NODES = {TRANSACTIONS: 1, GROUP: 2}
CODES = range(-1, 135)
RETRIABLE = {
    *(2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89, 100, 103, 106),
    *(122, 123),
}
"""RetriableException and its subclasses, as org.apache.kafka.common.protocol.Errors of 4.1 has them."""


def well(request: Request, version: int = 1) -> TransactionResponse:
    """Return a working broker's response to a request."""
    if isinstance(request, FindCoordinator):
        return TransactionResponse(node_id=NODES[request.coordinator])
    if isinstance(request, AskVersion):
        return TransactionResponse(version=version)
    if isinstance(request, InitProducerId):
        epoch = request.producer.producer_epoch + 1
        return TransactionResponse(producer_id=4711, producer_epoch=epoch)
    if isinstance(request, AddPartitions):
        return TransactionResponse(error_codes=dict.fromkeys(request.places, 0))
    if isinstance(request, CommitOffsets):
        return TransactionResponse(error_codes={place: 0 for place, _ in request.offsets})
    if isinstance(request, EndTransaction) and request.version >= 2:
        return TransactionResponse(producer_id=4711, producer_epoch=request.producer.producer_epoch + 1)
    return TransactionResponse()


class Driven:
    """A protocol with its own clock and a working broker."""

    def __init__(self, protocol: TransactionProtocol | None = None, version: int = 1) -> None:
        self.protocol = protocol or TransactionProtocol(ID, 60_000)
        self.version = version
        self.now_s = 0.0
        self.sent: list[Request] = []

    def ask(self) -> Request | None:
        """Advance the clock to the next request, and return it."""
        self.now_s = max(self.now_s, self.protocol.resumes_at_s)
        found = self.protocol.next_request(self.now_s)
        if found is None:
            return None
        self.sent.append(found[1])
        return found[1]

    def answer(self, answer: TransactionResponse) -> None:
        self.protocol.answered(answer, self.now_s)

    def settle(self) -> None:
        """Respond to every request."""
        while (request := self.ask()) is not None:
            self.answer(well(request, self.version))

    def up_to(self, kind: type) -> Any:
        """Respond to every request before the first of this kind, and leave that one in flight."""
        while (request := self.ask()) is not None:
            if isinstance(request, kind):
                return request
            self.answer(well(request, self.version))
        raise AssertionError(f"no {kind.__name__} came")


def ready(version: int = 1) -> Driven:
    driven = Driven(version=version)
    driven.protocol.initialize()
    driven.settle()
    assert driven.protocol.is_ready
    driven.sent.clear()
    return driven


def opened(version: int = 1) -> Driven:
    """Return a protocol with a partition that the coordinator has added."""
    driven = ready(version)
    driven.protocol.begin()
    driven.protocol.add_partitions([PLACE])
    driven.settle()
    assert driven.protocol.may_produce(PLACE)
    driven.sent.clear()
    return driven


def kinds(driven: Driven) -> list[str]:
    return [type(request).__name__ for request in driven.sent]


# --- the course of a transaction


def test_a_transaction_of_version_1_adds_partitions_and_groups_and_ends() -> None:
    driven = Driven()
    protocol = driven.protocol
    assert driven.ask() is None, "nobody asked for a producer id"
    protocol.initialize()
    driven.settle()
    assert driven.sent == [
        FindCoordinator(TRANSACTIONS),
        InitProducerId(TransactionalProducer(ID), 60_000),
        AskVersion(),
    ]
    driven.sent.clear()
    protocol.begin()
    protocol.add_partitions([OTHER, PLACE])
    assert not protocol.may_produce(PLACE)
    driven.settle()
    protocol.add_partitions([PLACE])
    protocol.add_offsets(MEMBER, OFFSETS)
    driven.settle()
    assert protocol.may_produce(PLACE)
    assert protocol.is_settled
    protocol.commit()
    assert not protocol.may_produce(PLACE)
    driven.settle()
    producer = TransactionalProducer(ID, 4711, 0)
    assert driven.sent == [
        AddPartitions(producer, (PLACE, OTHER)),
        AddOffsets(producer, "readers"),
        FindCoordinator(GROUP),
        CommitOffsets(producer, MEMBER, tuple(sorted(OFFSETS.items())), 1),
        EndTransaction(producer, is_commit=True, version=1),
    ]
    assert (protocol.outcome, protocol.recovery_state) == (
        TransactionOutcome.COMMITTED,
        RecoveryState(4711, 0, State.READY, outcome=TransactionOutcome.COMMITTED),
    )
    assert protocol.is_ready


def test_a_transaction_of_version_2_sends_offsets_and_the_end_and_takes_the_new_epoch() -> None:
    driven = ready(version=2)
    protocol = driven.protocol
    protocol.begin()
    protocol.add_partitions([PLACE])
    assert protocol.is_implicit
    assert protocol.may_produce(PLACE), "the broker adds it by itself"
    assert protocol.recovery_state.is_known, "before the first batch is on the wire"
    protocol.add_offsets(MEMBER, OFFSETS)
    protocol.commit()
    driven.settle()
    assert kinds(driven) == ["FindCoordinator", "CommitOffsets", "EndTransaction"]
    assert protocol.recovery_state == RecoveryState(4711, 1, State.READY, outcome=TransactionOutcome.COMMITTED)


def test_an_end_of_version_2_may_change_the_producer_id() -> None:
    driven = opened(version=2)
    driven.protocol.commit()
    driven.up_to(EndTransaction)
    driven.answer(TransactionResponse(producer_id=4712, producer_epoch=0))
    assert driven.protocol.producer == TransactionalProducer(ID, 4712, 0)


def test_the_version_is_asked_again_of_a_new_coordinator_and_holds_from_the_next_transaction_on() -> None:
    driven = opened()
    driven.version = 2  # the cluster was upgraded
    driven.protocol.commit()
    driven.up_to(EndTransaction)
    driven.answer(TransactionResponse(16))
    driven.settle()
    assert kinds(driven) == ["EndTransaction", "FindCoordinator", "EndTransaction", "AskVersion"]
    driven.protocol.begin()
    assert driven.protocol.is_implicit


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_that_no_broker_knows_ends_without_a_request(version: int, is_commit: bool) -> None:
    driven = ready(version)
    driven.protocol.begin()
    (driven.protocol.commit if is_commit else driven.protocol.abort)()
    assert driven.protocol.outcome is (TransactionOutcome.COMMITTED if is_commit else TransactionOutcome.ABORTED)
    assert driven.protocol.is_ready
    driven.settle()
    assert driven.sent == []


def test_offsets_alone_make_a_transaction() -> None:
    driven = ready()
    driven.protocol.begin()
    driven.protocol.add_offsets(GroupMember("readers"), OFFSETS)
    driven.protocol.commit()
    driven.settle()
    assert kinds(driven) == ["AddOffsets", "FindCoordinator", "CommitOffsets", "EndTransaction"]
    assert driven.protocol.outcome is TransactionOutcome.COMMITTED


def test_newer_offsets_of_a_group_replace_older_ones_and_those_in_flight_go_again() -> None:
    driven = opened()
    driven.protocol.add_offsets(MEMBER, OFFSETS)
    driven.up_to(CommitOffsets)
    driven.protocol.add_offsets(MEMBER, {PLACE: OffsetToCommit(6)})
    driven.answer(TransactionResponse(error_codes={PLACE: 0, OTHER: 0}))
    again = driven.up_to(CommitOffsets)
    assert again.offsets == ((PLACE, OffsetToCommit(6)),)


def test_an_abort_drops_partitions_and_offsets_that_were_not_sent() -> None:
    driven = opened()
    driven.protocol.add_partitions([OTHER])
    driven.protocol.add_offsets(MEMBER, OFFSETS)
    driven.protocol.abort()
    driven.settle()
    assert driven.sent == [EndTransaction(TransactionalProducer(ID, 4711, 0), is_commit=False, version=1)]
    assert driven.protocol.outcome is TransactionOutcome.ABORTED


@pytest.mark.parametrize("version", [1, 2])
def test_an_abort_of_offsets_that_were_not_sent_needs_no_request(version: int) -> None:
    driven = ready(version)
    driven.protocol.begin()
    driven.protocol.add_offsets(MEMBER, OFFSETS)
    driven.protocol.abort()
    assert driven.protocol.outcome is TransactionOutcome.ABORTED
    driven.settle()
    assert driven.sent == []


def test_a_partition_in_flight_is_awaited_before_the_abort() -> None:
    driven = ready()
    driven.protocol.begin()
    driven.protocol.add_partitions([PLACE])
    driven.up_to(AddPartitions)
    driven.protocol.abort()
    assert driven.protocol.next_request(driven.now_s) is None, "one request is in flight at a time"
    driven.answer(TransactionResponse(error_codes={PLACE: 51}))
    driven.settle()
    assert kinds(driven) == ["AddPartitions", "EndTransaction"], "the broker may have added it"
    assert driven.protocol.outcome is TransactionOutcome.ABORTED


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_that_finds_nothing_to_end_is_done(is_commit: bool) -> None:
    driven = ready()
    driven.protocol.begin()
    driven.protocol.add_partitions([PLACE])
    driven.up_to(AddPartitions)
    driven.answer(TransactionResponse(error_codes={PLACE: 14}))
    (driven.protocol.commit if is_commit else driven.protocol.abort)()
    driven.up_to(EndTransaction)
    driven.answer(TransactionResponse(48))
    assert driven.protocol.outcome is (TransactionOutcome.COMMITTED if is_commit else TransactionOutcome.ABORTED)
    assert driven.protocol.is_ready


# --- calls out of order


def calls(*names: str) -> Callable[[TransactionProtocol], object]:
    """Return a function that calls these methods in order."""

    def call(protocol: TransactionProtocol) -> None:
        for name in names:
            getattr(protocol, name)()

    return call


def expired_then_commit(protocol: TransactionProtocol) -> None:
    protocol.batch_failed(0, "a batch expired")
    protocol.commit()


OUT_OF_ORDER: list[tuple[Callable[[], Driven], Callable[[TransactionProtocol], object], str]] = [
    (Driven, lambda each: each.begin(), "cannot begin a transaction, its state is NEW"),
    (ready, lambda each: each.add_partitions([PLACE]), "cannot add partitions, its state is READY"),
    (ready, lambda each: each.add_offsets(MEMBER, OFFSETS), "cannot commit offsets, its state is READY"),
    (ready, lambda each: each.commit(), "cannot commit, its state is READY"),
    (ready, lambda each: each.abort(), "cannot abort, its state is READY"),
    (opened, lambda each: each.begin(), "cannot begin a transaction, its state is OPEN"),
    (opened, calls("commit", "abort"), "cannot abort, its state is COMMITTING"),
    (opened, calls("commit", "commit"), "cannot commit, its state is COMMITTING"),
    (opened, calls("abort", "commit"), "cannot commit, its state is ABORTING"),
    (
        opened,
        expired_then_commit,
        "cannot commit, its state is ABORT_ONLY: a batch expired",
    ),
]


@pytest.mark.parametrize(("prepare", "call", "message"), OUT_OF_ORDER)
def test_a_call_out_of_order_is_refused_and_changes_nothing_more(
    prepare: Callable[[], Driven], call: Callable[[TransactionProtocol], object], message: str
) -> None:
    driven = prepare()
    with pytest.raises(InvalidArgumentError, match=message):
        call(driven.protocol)


# --- each error of each request: TransactionManager's handlers

FATAL, FENCED, ABORT, BUMP, FIND = "fatal", "fenced", "abort", "bump", "find"
OF_COORDINATORS = {15: FIND, 16: FIND, 47: FENCED, 90: FENCED, 120: ABORT}
EXPECTED: dict[type, dict[int, str]] = {
    FindCoordinator: {30: ABORT, 120: ABORT},
    AskVersion: OF_COORDINATORS,
    InitProducerId: {**OF_COORDINATORS, 31: ABORT, 53: ABORT},
    AddPartitions: {**OF_COORDINATORS, 29: ABORT, 48: FATAL, 49: BUMP, 53: FATAL, 55: ABORT, 59: BUMP},
    AddOffsets: {**OF_COORDINATORS, 30: ABORT, 49: BUMP, 59: BUMP},
    CommitOffsets: {**OF_COORDINATORS, 7: FIND, 22: ABORT, 25: ABORT, 30: ABORT, 82: ABORT},
    EndTransaction: {**OF_COORDINATORS, 49: BUMP, 59: BUMP},
}


def expected_of(kind: type, code: int) -> str:
    """Return the reaction of Java's handler of this request to an error."""
    if code in EXPECTED[kind]:
        return EXPECTED[kind][code]
    if code in RETRIABLE:
        return "retry"
    return ABORT if kind is AddPartitions else FATAL


def in_flight(kind: type) -> Driven:
    """A protocol whose request of this kind is in flight."""
    if kind in {FindCoordinator, InitProducerId, AskVersion}:
        driven = Driven()
        driven.protocol.initialize()
    else:
        driven = opened()
    if kind is AddPartitions:
        driven.protocol.add_partitions([OTHER])
    elif kind in {AddOffsets, CommitOffsets}:
        driven.protocol.add_offsets(MEMBER, {PLACE: OffsetToCommit(5)})
    elif kind is EndTransaction:
        driven.protocol.commit()
    driven.up_to(kind)
    driven.sent.clear()
    return driven


def error_of(kind: type, code: int) -> TransactionResponse:
    if kind is AddPartitions:
        return TransactionResponse(error_codes={OTHER: code})
    return (
        TransactionResponse(error_codes={PLACE: code})
        if kind is CommitOffsets
        else TransactionResponse(code, "words of the broker")
    )


def check_goes_again(driven: Driven, kind: type, expected: str) -> None:
    assert driven.protocol.failure is None
    assert driven.protocol.next_request(driven.now_s) is None, "only after a pause"
    again = driven.ask()
    if expected == FIND:
        assert isinstance(again, FindCoordinator)
        driven.answer(well(again))
        again = driven.ask()
    assert isinstance(again, kind)


def check_failed(driven: Driven, code: int, expected: str) -> None:
    protocol = driven.protocol
    assert protocol.recovery_state.state is State.FAILED
    assert protocol.failure is not None
    assert (protocol.failure.error_code, protocol.failure.effect.value) == (code, expected)
    assert driven.ask() is None
    assert protocol.outcome in {None, TransactionOutcome.ABORTED}, "it was the first answer, so nothing was committed"


def check_abort_only(driven: Driven, code: int, expected: str) -> None:
    protocol = driven.protocol
    assert protocol.failure is not None
    assert protocol.failure.error_code == code
    if protocol.recovery_state.state in {State.NEW, State.READY}:  # a producer id was requested
        assert driven.ask() is None
        protocol.initialize()
        driven.settle()
        assert protocol.is_ready
        return
    assert protocol.recovery_state.state is State.ABORT_ONLY
    protocol.abort()
    driven.settle()
    assert (protocol.outcome, protocol.is_ready) == (TransactionOutcome.ABORTED, True)
    bumped = [request for request in driven.sent if isinstance(request, InitProducerId)]
    assert bumped == ([InitProducerId(TransactionalProducer(ID, 4711, 0), 60_000)] if expected == BUMP else [])
    epoch = 1 if expected == BUMP else 0
    assert protocol.recovery_state == RecoveryState(4711, epoch, State.READY, outcome=TransactionOutcome.ABORTED)


@pytest.mark.parametrize("kind", list(EXPECTED))
def test_each_error_of_a_request_means_what_it_means_to_java(kind: type) -> None:
    for code in CODES:
        if code == 0:
            continue
        driven = in_flight(kind)
        driven.answer(error_of(kind, code))
        expected = expected_of(kind, code)
        if expected in {"retry", FIND}:
            check_goes_again(driven, kind, expected)
        elif expected in {FATAL, FENCED}:
            check_failed(driven, code, expected)
        else:
            check_abort_only(driven, code, expected)


@pytest.mark.parametrize("kind", list(EXPECTED))
def test_a_request_without_an_answer_goes_again_to_the_coordinator_that_is_found_then(kind: type) -> None:
    driven = in_flight(kind)
    driven.protocol.missed(13, "the connection was lost", driven.now_s)
    check_goes_again(driven, kind, "retry" if kind is FindCoordinator else FIND)


@pytest.mark.parametrize("kind", list(EXPECTED))
def test_a_request_that_the_broker_is_too_old_for_ends_the_producer(kind: type) -> None:
    driven = in_flight(kind)
    driven.protocol.missed(35, "the broker is too old", driven.now_s)
    check_failed(driven, 35, FATAL)


def check_failed_batch(version: int, code: int) -> None:
    driven = opened(version)
    protocol = driven.protocol
    protocol.batch_failed(code, "flights-0 was refused")
    assert protocol.failure is not None
    if code in {31, 35, 53, 90}:
        assert (protocol.recovery_state.state, protocol.outcome) == (State.FAILED, TransactionOutcome.ABORTED)
        return
    assert protocol.recovery_state.state is State.ABORT_ONLY
    assert protocol.may_produce(PLACE), "batches that are retried may still go"
    protocol.abort()
    driven.settle()
    ends = ["EndTransaction"]
    assert kinds(driven) == (ends if version == 2 or code == 120 else [*ends, "InitProducerId"])
    assert protocol.recovery_state.producer_epoch == (0 if version == 1 and code == 120 else 1)


@pytest.mark.parametrize("version", [1, 2])
def test_a_batch_that_failed_leaves_an_abort_or_ends_the_producer(version: int) -> None:
    for code in CODES:
        check_failed_batch(version, code)


# --- parts of a response


def test_the_worst_error_of_the_partitions_counts() -> None:
    driven = ready()
    driven.protocol.begin()
    driven.protocol.add_partitions([PLACE, OTHER])
    driven.up_to(AddPartitions)
    driven.answer(TransactionResponse(error_codes={PLACE: 55, OTHER: 90}))
    assert driven.protocol.recovery_state.state is State.FAILED


def test_partitions_that_were_not_attempted_wait_for_one_that_may_come_soon() -> None:
    """A topic that was just created is briefly unknown to the coordinator."""
    driven = ready()
    driven.protocol.begin()
    driven.protocol.add_partitions([PLACE, OTHER])
    driven.up_to(AddPartitions)
    driven.answer(TransactionResponse(error_codes={PLACE: 55, OTHER: 3}))
    assert driven.protocol.failure is None
    again = driven.up_to(AddPartitions)
    assert set(again.places) == {PLACE, OTHER}


def test_the_error_of_the_partition_that_was_refused_is_reported() -> None:
    driven = ready()
    driven.protocol.begin()
    driven.protocol.add_partitions([PLACE, OTHER])
    driven.up_to(AddPartitions)
    driven.answer(TransactionResponse(error_codes={PLACE: 55, OTHER: 29}))
    assert driven.protocol.failure is not None
    assert driven.protocol.failure.error_code == 29


def test_a_partition_that_is_refused_leaves_the_others_unadded_too() -> None:
    driven = ready()
    driven.protocol.begin()
    driven.protocol.add_partitions([PLACE, OTHER])
    driven.up_to(AddPartitions)
    driven.answer(TransactionResponse(error_codes={PLACE: 29, OTHER: 0}))
    assert not driven.protocol.may_produce(OTHER)
    driven.protocol.abort()
    driven.settle()
    assert driven.protocol.outcome is TransactionOutcome.ABORTED


@pytest.mark.parametrize("codes", [{}, {PLACE: 0}, {PLACE: 0, OTHER: 14}])
def test_only_offsets_that_were_not_taken_go_again(codes: dict[TopicPartition, int]) -> None:
    driven = opened()
    driven.protocol.add_offsets(MEMBER, OFFSETS)
    driven.up_to(CommitOffsets)
    driven.answer(TransactionResponse(error_codes=codes))
    again = driven.up_to(CommitOffsets)
    assert {place for place, _ in again.offsets} == {PLACE, OTHER} - codes.keys() | {OTHER}


@pytest.mark.parametrize("kind", [AddPartitions, CommitOffsets])
def test_a_partition_that_the_answer_leaves_out_goes_again(kind: type) -> None:
    driven = in_flight(kind)
    driven.answer(TransactionResponse())
    assert driven.protocol.failure is None
    assert isinstance(driven.up_to(kind), kind)


def test_a_coordinator_without_a_number_is_looked_for_again() -> None:
    driven = in_flight(FindCoordinator)
    driven.answer(TransactionResponse(node_id=-1))
    assert isinstance(driven.ask(), FindCoordinator)


@pytest.mark.parametrize("names", [(-1, 3), (4711, -1)])
def test_a_producer_id_or_epoch_below_zero_is_refused(names: tuple[int, int]) -> None:
    driven = in_flight(InitProducerId)
    driven.answer(TransactionResponse(producer_id=names[0], producer_epoch=names[1]))
    assert driven.protocol.recovery_state.state is State.FAILED


def test_an_end_that_names_no_epoch_is_followed_by_a_question_for_one() -> None:
    driven = opened(version=2)
    driven.protocol.commit()
    driven.up_to(EndTransaction)
    driven.answer(TransactionResponse(producer_id=4711, producer_epoch=-1))
    assert isinstance(driven.ask(), InitProducerId)


# --- pauses


def test_pauses_grow_tenfold_and_start_again_after_an_answer() -> None:
    driven = in_flight(AddPartitions)
    pauses = []
    for _ in range(7):
        started_s = driven.now_s
        driven.answer(TransactionResponse(error_codes={OTHER: 14}))
        driven.up_to(AddPartitions)
        pauses.append(round(driven.now_s - started_s, 6))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    driven.answer(well(driven.sent[-1]))
    driven.protocol.commit()
    driven.up_to(EndTransaction)
    started_s = driven.now_s
    driven.answer(TransactionResponse(14))
    driven.ask()
    assert driven.now_s - started_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("is_first", "pauses_s"), [(True, [0.0025, 0.005, 0.01, 0.02, 0.02]), (False, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0])]
)
def test_the_first_partition_waits_briefly_for_the_former_transaction(is_first: bool, pauses_s: list[float]) -> None:
    driven = ready() if is_first else opened()
    if is_first:
        driven.protocol.begin()
    driven.protocol.add_partitions([OTHER])
    driven.up_to(AddPartitions)
    found_s = []
    for _ in pauses_s:
        started_s = driven.now_s
        driven.answer(TransactionResponse(error_codes={OTHER: 51}))
        assert isinstance(driven.ask(), AddPartitions)
        found_s.append(driven.now_s - started_s)
    assert found_s == pytest.approx(pauses_s)


# --- the outcome of an end


@pytest.mark.parametrize("code", [47, 48, 49, 59, 53, 87, 90, 120, -1])
def test_a_commit_that_may_have_arrived_and_is_refused_then_has_an_unknown_outcome(code: int) -> None:
    driven = in_flight(EndTransaction)
    driven.protocol.missed(7, "no answer in time", driven.now_s)
    driven.up_to(EndTransaction)
    driven.answer(TransactionResponse(code))
    assert (driven.protocol.outcome, driven.protocol.recovery_state.state) == (TransactionOutcome.UNKNOWN, State.FAILED)


def was_not_sent(driven: Driven) -> None:
    driven.protocol.missed(13, "the node is not ready", driven.now_s, is_unsent=True)


def came_too_early(driven: Driven) -> None:
    """An earlier transition of the transactional id is in progress at the coordinator."""
    driven.answer(TransactionResponse(51))


@pytest.mark.parametrize("happens", [was_not_sent, came_too_early])
@pytest.mark.parametrize("has_missed", [False, True])
def test_a_commit_that_certainly_changed_nothing_leaves_the_outcome_as_it_was(
    happens: Callable[[Driven], None], has_missed: bool
) -> None:
    driven = in_flight(EndTransaction)
    if has_missed:
        driven.protocol.missed(7, "no answer in time", driven.now_s)
        driven.up_to(EndTransaction)
    happens(driven)
    assert driven.protocol.recovery_state.is_end_sent is has_missed
    driven.up_to(EndTransaction)
    driven.answer(TransactionResponse(90))
    outcome = TransactionOutcome.UNKNOWN if has_missed else TransactionOutcome.ABORTED
    assert (driven.protocol.outcome, driven.protocol.recovery_state.state) == (outcome, State.FAILED)


@pytest.mark.parametrize("code", [7, 13, 14, 15, 16])
def test_an_answer_that_asks_for_patience_does_not_say_that_nothing_was_decided(code: int) -> None:
    driven = in_flight(EndTransaction)
    driven.answer(TransactionResponse(code))
    driven.up_to(EndTransaction)
    driven.answer(TransactionResponse(90))
    assert driven.protocol.outcome is TransactionOutcome.UNKNOWN


def test_an_abort_that_is_fenced_is_an_abort() -> None:
    driven = opened()
    driven.protocol.abort()
    driven.up_to(EndTransaction)
    driven.protocol.missed(13, "lost", driven.now_s)
    driven.up_to(EndTransaction)
    driven.answer(TransactionResponse(90))
    assert (driven.protocol.outcome, driven.protocol.recovery_state.state) == (TransactionOutcome.ABORTED, State.FAILED)


def test_an_abort_whose_producer_id_is_forgotten_is_done_and_the_next_one_gets_another() -> None:
    driven = opened()
    driven.protocol.abort()
    driven.up_to(EndTransaction)
    driven.answer(TransactionResponse(49))
    assert driven.protocol.outcome is TransactionOutcome.ABORTED
    driven.settle()
    assert isinstance(driven.sent[-1], InitProducerId)
    assert driven.protocol.is_ready


def test_a_failure_while_an_abort_is_under_way_does_not_stop_it() -> None:
    driven = opened()
    driven.protocol.add_partitions([OTHER])
    driven.up_to(AddPartitions)
    driven.protocol.abort()
    driven.answer(TransactionResponse(error_codes={OTHER: 120}))
    driven.settle()
    assert driven.protocol.outcome is TransactionOutcome.ABORTED


# --- successors


def successor_of(driven: Driven) -> Driven:
    """Return a successor that has only the recovery state, at a later time."""
    assert RecoveryState(*driven.protocol.recovery_state) == driven.protocol.recovery_state
    after = Driven(TransactionProtocol(ID, 60_000, driven.protocol.recovery_state), driven.version)
    after.now_s = 1e6
    return after


@pytest.mark.parametrize("version", [1, 2])
def test_a_successor_of_an_open_transaction_continues_without_a_new_epoch(version: int) -> None:
    after = successor_of(opened(version))
    assert after.protocol.may_produce(PLACE)
    after.protocol.add_partitions([PLACE, OTHER])
    after.settle()
    assert after.protocol.may_produce(OTHER)
    after.protocol.commit()
    after.settle()
    assert after.protocol.outcome is TransactionOutcome.COMMITTED
    assert not any(isinstance(request, InitProducerId) for request in after.sent)


@pytest.mark.parametrize("kind", [AddPartitions, AddOffsets, CommitOffsets])
def test_a_successor_sends_again_what_may_not_have_arrived(kind: type) -> None:
    before = in_flight(kind)
    after = successor_of(before)
    if kind is AddPartitions:
        after.protocol.add_partitions([OTHER])
    else:
        after.protocol.add_offsets(MEMBER, {PLACE: OffsetToCommit(5)})
    assert isinstance(after.up_to(kind), kind)


def test_a_successor_never_takes_a_transaction_for_unknown_to_the_brokers() -> None:
    before = ready()
    before.protocol.begin()
    before.protocol.add_partitions([PLACE])
    before.up_to(AddPartitions)
    after = successor_of(before)
    after.protocol.abort()
    after.settle()
    assert isinstance(after.sent[-2], EndTransaction), after.sent


def test_a_successor_sends_the_end_again_and_distinguishes_an_unknown_outcome_from_an_abort() -> None:
    before = in_flight(EndTransaction)
    after = successor_of(before)
    after.settle()
    assert after.protocol.outcome is TransactionOutcome.COMMITTED
    fenced = successor_of(before)
    fenced.up_to(EndTransaction)
    fenced.answer(TransactionResponse(90))
    assert fenced.protocol.outcome is TransactionOutcome.UNKNOWN


def test_a_successor_of_a_producer_that_waits_for_an_epoch_asks_with_the_former_one() -> None:
    before = opened()
    before.protocol.batch_failed(45, "a gap")
    before.protocol.abort()
    before.up_to(InitProducerId)
    after = successor_of(before)
    assert after.up_to(InitProducerId).producer == TransactionalProducer(ID, 4711, 0)
    after.answer(TransactionResponse(producer_id=4711, producer_epoch=1))
    after.settle()
    assert after.protocol.is_ready


def test_a_successor_of_a_failed_producer_asks_nothing() -> None:
    before = opened()
    before.protocol.batch_failed(90, "fenced")
    after = successor_of(before)
    assert after.ask() is None
