# SPDX-License-Identifier: Apache-2.0
"""The error codes of Kafka, as kafka-python has them."""

from __future__ import annotations

import kafka.errors

RENAMED = {
    "UNKNOWN_SERVER_ERROR": "UNKNOWN",
    "NONE": "NO_ERROR",
    "NOT_LEADER_OR_FOLLOWER": "NOT_LEADER_FOR_PARTITION",
    "MESSAGE_TOO_LARGE": "MESSAGE_SIZE_TOO_LARGE",
    "INVALID_TOPIC_EXCEPTION": "INVALID_TOPIC",
    "INVALID_REPLICA_ASSIGNMENT": "INVALID_REPLICATION_ASSIGNMENT",
}
"""Kafka's name -> the name in kafka-python."""
CLASSES = [found for found in vars(kafka.errors).values() if isinstance(found, type) and hasattr(found, "errno")]
NUMBERS = {found.message: found.errno for found in CLASSES if hasattr(found, "message")}


def number_of(name: str) -> int | None:
    """Return the code of Kafka's name, or None if kafka-python does not have it."""
    return NUMBERS.get(RENAMED.get(name, name))


def numbers_with(attribute: str) -> set[int]:
    """Return the codes whose class has an attribute that is true, such as ``retriable``."""
    return {found.errno for found in CLASSES if getattr(found, attribute, False)}
