# SPDX-License-Identifier: Apache-2.0
"""Errors in librdkafka's words: each of ours has a code, and says what a program is to do."""

from __future__ import annotations

from collections.abc import Mapping

from shmaccum.common.packages import needed
from shmaccum.compat.errors import IN_TRANSACTIONS, OF_OFFSETS, classes_of, join, nearest
from shmaccum.exceptions import (
    ArenaBusyError,
    BufferExhaustedError,
    DeliveryFailedError,
    ProducerClosedError,
    ProducerFencedError,
    ShmaccumError,
    TransactionEndedError,
    TransactionOutcomeUnknownError,
)

with needed("confluent-kafka", "confluent", "shmaccum.compat.confluent needs"):
    from confluent_kafka import KafkaError, KafkaException

CODES = classes_of("librdkafka", KafkaError)
CODES_IN_TRANSACTIONS = classes_of("librdkafka", KafkaError, IN_TRANSACTIONS)
CODES_OF_OFFSETS = classes_of("librdkafka", KafkaError, OF_OFFSETS)
FLAGS: Mapping[type[ShmaccumError], Mapping[str, bool]] = {
    ShmaccumError: {},
    ArenaBusyError: {"retriable": True},
    BufferExhaustedError: {"retriable": True},
    TransactionEndedError: {"txn_requires_abort": True},
    TransactionOutcomeUnknownError: {"retriable": True},
    ProducerFencedError: {"fatal": True},
}
"""Our error of a transaction -> what librdkafka tells a program to do."""


def kafka_error(error: ShmaccumError, code: int | None = None) -> KafkaError:
    """The error in librdkafka's shape: its own words for the code, and ours."""
    if code is None and isinstance(error, DeliveryFailedError) and error.error_code > 0:
        code = error.error_code
    if code is None:
        code = nearest(error, CODES)
    return KafkaError(code, f"{KafkaError(code).str()}: {error}", **nearest(error, FLAGS))


def translated(error: ShmaccumError) -> ShmaccumError:
    """The error, which is one of confluent-kafka's, too."""
    if isinstance(error, BufferExhaustedError):
        return join(error, BufferError, f"Local: Queue full: {error}")
    if isinstance(error, ProducerClosedError):
        return join(error, RuntimeError, f"Producer has been closed: {error}")
    return join(error, KafkaException, kafka_error(error))


def translated_in_transactions(error: ShmaccumError) -> ShmaccumError:
    """The error of a call of transactions."""
    return join(error, KafkaException, kafka_error(error, nearest(error, CODES_IN_TRANSACTIONS)))


def translated_of_offsets(error: ShmaccumError) -> ShmaccumError:
    """The error of offsets for a transaction."""
    return join(error, KafkaException, kafka_error(error, nearest(error, CODES_OF_OFFSETS)))
