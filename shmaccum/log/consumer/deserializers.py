# SPDX-License-Identifier: Apache-2.0
"""Convert the bytes of a key or value to the objects of users.

A deserializer is a name (``"str"``), a callable that takes the bytes, or an object with kafka-python's method
``deserialize(topic, headers, data)``, or with the older ``deserialize(topic, data)``.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgpack

from shmaccum.config.consumer import MEMORYVIEW
from shmaccum.exceptions import RecordDeserializationError
from shmaccum.log.consumer.record import ConsumerRecord

Deserialize: TypeAlias = Callable[[ConsumerRecord, "bytes | None"], Any]

AS_DECODED = ("bytes", MEMORYVIEW)
BY_NAME: Mapping[str, Callable[[bytes], Any]] = {
    "str": bytes.decode,
    "json": json.loads,
    "msgpack": msgpack.unpackb,
}


def resolve(deserializer: Any) -> Deserialize | None:
    """The function to call with a record and its bytes, or None if the bytes are returned unchanged."""
    if deserializer is None or deserializer in AS_DECODED:
        return None
    if isinstance(deserializer, str) and deserializer in BY_NAME:
        return _of_data(BY_NAME[deserializer])
    if callable(getattr(deserializer, "deserialize", None)):
        return _of_object(deserializer.deserialize)
    return _of_data(deserializer)


def _of_data(function: Callable[[bytes], Any]) -> Deserialize:
    """Null stays null, for a record without a key or a tombstone."""
    return lambda _record, data: None if data is None else function(data)


def _of_object(deserialize: Callable[..., Any]) -> Deserialize:
    try:
        inspect.signature(deserialize).bind("topic", None, b"")
    except TypeError:
        return lambda record, data: deserialize(record.topic, data)
    return lambda record, data: deserialize(record.topic, record.headers, data)


class Deserializers:
    """The deserializers of keys and of values.

    Args:
        key, value: the values of the options.
    """

    def __init__(self, key: Any, value: Any) -> None:
        self._key = resolve(key)
        self._value = resolve(value)

    def apply(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """The records with deserialized keys and values, up to the first record for which a deserializer fails.

        Raises:
            RecordDeserializationError: if that is the first record.
        """
        if self._key is None and self._value is None:
            return records
        done: list[ConsumerRecord] = []
        try:
            for record in records:
                done.append(self._deserialized(record))  # noqa: PERF401 - the records before a failure are returned
        except Exception as error:
            if not done:
                failed = records[0]
                problem = f"{type(error).__name__}: {error}"
                raise RecordDeserializationError(failed.topic, failed.partition, failed.offset, problem) from error
        return done

    def _deserialized(self, record: ConsumerRecord) -> ConsumerRecord:
        key = self._key(record, record.key) if self._key else record.key
        value = self._value(record, record.value) if self._value else record.value
        return record.with_parts(key, value)
