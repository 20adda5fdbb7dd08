# SPDX-License-Identifier: Apache-2.0
"""The error codes are those of Kafka, as kafka-python has them."""

from __future__ import annotations

from shmaccum.log.files.broker_error import BrokerError
from tests.support.broker_errors import number_of

UNKNOWN = {"INVALID_REGULAR_EXPRESSION": 128}
"""The codes that kafka-python does not have."""


def test_each_code_has_the_number_of_kafka() -> None:
    expected = {name: number_of(name) for name in BrokerError.__members__}
    assert {name: each.value for name, each in BrokerError.__members__.items()} == expected | UNKNOWN
