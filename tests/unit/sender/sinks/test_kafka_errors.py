# SPDX-License-Identifier: Apache-2.0
"""The error codes of the Kafka sink and their effects are those of Kafka, as kafka-python has them."""

from __future__ import annotations

from types import ModuleType

import pytest

from shmaccum.sender.sinks.kafka import errors
from shmaccum.sender.sinks.kafka.errors import TREATMENTS, Action
from shmaccum.sender.sinks.kafka.transaction import error_effects
from shmaccum.sender.sinks.kafka.transaction.error_effects import RETRIABLE
from tests.support.broker_errors import number_of, numbers_with

CORRUPT_MESSAGE = 2
"""Kafka retries it (CorruptRecordException is a RetriableException), and kafka-python does not."""


def constants(module: ModuleType) -> dict[str, int]:
    return {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, int)}


@pytest.mark.parametrize(
    "numbers",
    [constants(errors), constants(error_effects), {row.name: code for code, row in TREATMENTS.items()}],
    ids=["errors", "error_effects", "treatments"],
)
def test_each_code_has_the_number_of_kafka(numbers: dict[str, int]) -> None:
    assert numbers
    assert numbers == {name: number_of(name) for name in numbers}


def test_errors_are_retried_and_need_metadata_as_in_kafka() -> None:
    assert numbers_with("retriable") | {CORRUPT_MESSAGE} == RETRIABLE
    known = TREATMENTS.keys()
    moved = {code for code, row in TREATMENTS.items() if row.is_metadata_stale}
    assert {code for code, row in TREATMENTS.items() if row.action is Action.RETRY} == RETRIABLE & known
    assert moved == numbers_with("invalid_metadata") & known
