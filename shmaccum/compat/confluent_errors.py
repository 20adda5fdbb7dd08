# SPDX-License-Identifier: Apache-2.0
"""Errors in librdkafka's words: each of ours has a code, and says what a program is to do."""

from __future__ import annotations

from collections.abc import Mapping

from shmaccum.common.packages import needed
from shmaccum.compat.errors import join
from shmaccum.exceptions import (
    ArenaBusyError,
    BufferExhaustedError,
    DeliveryAbortedError,
    DeliveryFailedError,
    DeliveryTimeoutError,
    InvalidArgumentError,
    NoTransactionError,
    PartitionCountUnknownError,
    ProducerClosedError,
    ProducerFencedError,
    RecordTooLargeError,
    SenderNotStartedError,
    ShmaccumError,
    TransactionEndedError,
    TransactionOutcomeUnknownError,
    UnknownPartitionError,
)

with needed("confluent-kafka", "confluent", "shmaccum.compat.confluent needs"):
    from confluent_kafka import KafkaError, KafkaException

CODES: Mapping[type[ShmaccumError], int] = {
    ShmaccumError: KafkaError._FAIL,
    InvalidArgumentError: KafkaError._INVALID_ARG,
    SenderNotStartedError: KafkaError._ALL_BROKERS_DOWN,
    UnknownPartitionError: KafkaError._UNKNOWN_PARTITION,
    RecordTooLargeError: KafkaError.MSG_SIZE_TOO_LARGE,
    PartitionCountUnknownError: KafkaError._UNKNOWN_TOPIC,
    DeliveryTimeoutError: KafkaError._MSG_TIMED_OUT,
    DeliveryAbortedError: KafkaError._PURGE_QUEUE,
    NoTransactionError: KafkaError._STATE,
    TransactionEndedError: KafkaError._INCONSISTENT,
    TransactionOutcomeUnknownError: KafkaError._TIMED_OUT,
    ProducerFencedError: KafkaError._FENCED,
}
"""Our error -> librdkafka's code. An error without a row has that of its nearest base."""
CODES_IN_TRANSACTIONS = {
    **CODES,
    InvalidArgumentError: KafkaError._NOT_CONFIGURED,
    ArenaBusyError: KafkaError._CONFLICT,
}
"""The codes of errors that the calls of transactions raise."""
CODES_OF_OFFSETS = {**CODES, BufferExhaustedError: KafkaError._TIMED_OUT}
"""The codes of errors of offsets for a transaction."""
FLAGS: Mapping[type[ShmaccumError], Mapping[str, bool]] = {
    ArenaBusyError: {"retriable": True},
    BufferExhaustedError: {"retriable": True},
    TransactionEndedError: {"txn_requires_abort": True},
    TransactionOutcomeUnknownError: {"retriable": True},
    ProducerFencedError: {"fatal": True},
}
"""Our error of a transaction -> what librdkafka tells a program to do."""


def _code_in(codes: Mapping[type[ShmaccumError], int], error: ShmaccumError) -> int:
    return next(codes[kind] for kind in type(error).__mro__ if kind in codes)


def kafka_error(error: ShmaccumError, code: int | None = None) -> KafkaError:
    """The error in librdkafka's shape: its own words for the code, and ours."""
    if code is None and isinstance(error, DeliveryFailedError) and error.error_code > 0:
        code = error.error_code
    if code is None:
        code = _code_in(CODES, error)
    flags = next((FLAGS[kind] for kind in type(error).__mro__ if kind in FLAGS), {})
    return KafkaError(code, f"{KafkaError(code).str()}: {error}", **flags)


def translated(error: ShmaccumError) -> ShmaccumError:
    """The error, which is one of confluent-kafka's, too."""
    if isinstance(error, BufferExhaustedError):
        return join(error, BufferError, f"Local: Queue full: {error}")
    if isinstance(error, ProducerClosedError):
        return join(error, RuntimeError, f"Producer has been closed: {error}")
    return join(error, KafkaException, kafka_error(error))


def translated_in_transactions(error: ShmaccumError) -> ShmaccumError:
    """The error of a call of transactions."""
    return join(error, KafkaException, kafka_error(error, _code_in(CODES_IN_TRANSACTIONS, error)))


def translated_of_offsets(error: ShmaccumError) -> ShmaccumError:
    """The error of offsets for a transaction."""
    return join(error, KafkaException, kafka_error(error, _code_in(CODES_OF_OFFSETS, error)))
