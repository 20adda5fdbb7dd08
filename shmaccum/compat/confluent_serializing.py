# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka's ``SerializingProducer`` on an arena (confluent_kafka.SerializingProducer, confluent-kafka 2)."""

from __future__ import annotations

import contextlib
from typing import Any

from shmaccum.common.packages import needed
from shmaccum.compat.confluent_callbacks import Callback
from shmaccum.compat.confluent_producer import Producer

with needed("confluent-kafka", "confluent", "shmaccum.compat.confluent needs"):
    from confluent_kafka.error import KeySerializationError, ValueSerializationError
    from confluent_kafka.serialization import MessageField, SerializationContext

CLUSTER_ID_TIMEOUT_S = 60
"""The time in which confluent-kafka's serializers wait for the id of the cluster."""


class SerializingProducer(Producer):
    """Serializes keys and values, and sends them through the arena.

    Args:
        conf: the options of `Producer`, and ``key.serializer`` and ``value.serializer``: functions of an object and a
            SerializationContext. Instead, ``key.serializer.builder`` and ``value.serializer.builder`` make them. The
            producer closes the serializers that it made.

    Raises:
        ValueError: a serializer and its builder are both given.
        Exception: as `Producer`, or of a builder.
    """

    def __init__(self, conf: dict[str, Any]) -> None:
        self._made: list[Any] = []
        with contextlib.ExitStack() as undo:
            undo.callback(self._close_made)
            super().__init__(self._take_serializers(dict(conf)))
            for serializer in (self._serialize_key, self._serialize_value):
                if hasattr(serializer, "set_cluster_id_resolver"):
                    serializer.set_cluster_id_resolver(lambda: self.cluster_id(CLUSTER_ID_TIMEOUT_S))
            undo.pop_all()

    def _take_serializers(self, config: dict[str, Any]) -> dict[str, Any]:
        """Makes the serializers, and returns the options that no serializer uses."""
        names = ("key.serializer", "value.serializer")
        given = [(name, config.pop(name, None), config.pop(f"{name}.builder", None)) for name in names]
        for name, serializer, builder in given:
            if serializer is not None and builder is not None:
                raise ValueError(f"{name} and {name}.builder are both given: give one of them")
        rests, serializers = [config], []
        for name, serializer, builder in given:
            if builder is not None:
                serializer, rest = builder.build(dict(config), name.startswith("key"))
                self._made.append(serializer)
                rests.append(rest)
            serializers.append(serializer)
        self._serialize_key, self._serialize_value = serializers
        return {name: value for name, value in rests[-1].items() if all(name in rest for rest in rests[1:])}

    def produce(  # type: ignore[override]
        self,
        topic: str,
        key: Any = None,
        value: Any = None,
        partition: int = -1,
        on_delivery: Callback | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Serializes a key and a value, and puts the record into the arena.

        Raises:
            KeySerializationError: the serializer of keys raised an exception.
            ValueSerializationError: the serializer of values raised an exception.
            Exception: as `Producer.produce`.
        """
        self._open()
        if not isinstance(topic, str):
            raise TypeError(f"topic must be a str, not {type(topic).__name__}")
        context = SerializationContext(topic, MessageField.KEY, headers)
        if self._serialize_key is not None:
            try:
                key = self._serialize_key(key, context)
            except Exception as error:
                raise KeySerializationError(error) from error
        context.field = MessageField.VALUE
        if self._serialize_value is not None:
            try:
                value = self._serialize_value(value, context)
            except Exception as error:
                raise ValueSerializationError(error) from error
        # With None, C sends the record. A program never gives None here.
        place: Any = None if partition == -1 else partition
        time: Any = timestamp or None
        super().produce(topic, value, key, place, on_delivery=on_delivery, timestamp=time, headers=headers)

    def close(self) -> bool:
        """Closes the producer, then the serializers that it made. Returns True."""
        super().close()
        self._close_made()
        return True

    def _close_made(self) -> None:
        with contextlib.ExitStack() as closing:
            for serializer in self._made:
                closing.callback(getattr(serializer, "close", lambda: None))
        self._made = []
