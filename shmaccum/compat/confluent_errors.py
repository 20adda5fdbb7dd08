# SPDX-License-Identifier: Apache-2.0
"""Errors as librdkafka's: each error of shmaccum has a code, and flags for the reaction of a program."""

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
"""Maps an error of a transaction to librdkafka's flags for the reaction of a program."""


def kafka_error(error: ShmaccumError, code: int | None = None) -> KafkaError:
    """Returns the error as a KafkaError, with librdkafka's text for the code and the message of the error."""
    if code is None and isinstance(error, DeliveryFailedError) and error.error_code > 0:
        code = error.error_code
    if code is None:
        code = nearest(error, CODES)
    return KafkaError(code, f"{KafkaError(code).str()}: {error}", **nearest(error, FLAGS))


def translated(error: ShmaccumError) -> ShmaccumError:
    """Returns the error as one that is also an error of confluent-kafka."""
    if isinstance(error, BufferExhaustedError):
        return join(error, BufferError, f"Local: Queue full: {error}")
    if isinstance(error, ProducerClosedError):
        return join(error, RuntimeError, f"Producer has been closed: {error}")
    return join(error, KafkaException, kafka_error(error))


def translated_in_transactions(error: ShmaccumError) -> ShmaccumError:
    """Translates the error of a transaction call."""
    return join(error, KafkaException, kafka_error(error, nearest(error, CODES_IN_TRANSACTIONS)))


def translated_of_offsets(error: ShmaccumError) -> ShmaccumError:
    """Translates the error of offsets for a transaction."""
    return join(error, KafkaException, kafka_error(error, nearest(error, CODES_OF_OFFSETS)))
