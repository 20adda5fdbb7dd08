# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka's serializers with its registry client, and SerializingProducer on an arena."""

from __future__ import annotations

import importlib
import json
from inspect import signature
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.error import KeySerializationError, ValueSerializationError
from confluent_kafka.serialization import MessageField, SerializationContext, StringSerializer

from shmaccum.compat.confluent import Producer, SerializingProducer
from shmaccum.log.files import LogReader
from tests.unit.compat.conftest import TOPIC
from tests.unit.compat.test_confluent import Heard, dotted

FIELDS = [{"name": "tail", "type": "string"}, {"name": "delay", "type": "int"}]
AVRO = json.dumps({"type": "record", "name": "Landing", "fields": FIELDS})
JSON = json.dumps({"title": "Landing", "type": "object", "properties": {"tail": {"type": "string"}}})
LANDING = {"tail": "N14228", "delay": 11}


class Closable(StringSerializer):
    """A serializer that records that it was closed, and the function that it gets for the id of the cluster."""

    is_closed = False
    resolver: Any = None

    def close(self) -> None:
        self.is_closed = True

    def set_cluster_id_resolver(self, resolver: Any) -> None:
        self.resolver = resolver


class Builder:
    """Makes one serializer. It takes its own option, and leaves those of the producer, some with another value."""

    def __init__(self, **changed: Any) -> None:
        self.made = Closable()
        self.is_key: bool | None = None
        self._changed = changed

    def build(self, conf: dict[str, Any], is_key: bool) -> tuple[Closable, dict[str, Any]]:
        self.is_key = is_key
        rest = {name: value for name, value in conf.items() if name != "registry.url"}
        return self.made, {**rest, **self._changed}


@pytest.fixture
def registry() -> Any:
    """The client of the library's own registry for tests."""
    module = pytest.importorskip("confluent_kafka.schema_registry", exc_type=ImportError)
    return module.SchemaRegistryClient.new_client({"url": "mock://"})


def pair(kind: str, registry: Any) -> tuple[Any, Any, Any]:
    """A serializer, its deserializer, and an object."""
    package = f"confluent_kafka.schema_registry.{kind}"
    module = pytest.importorskip(package, exc_type=ImportError)
    if kind == "avro":
        return module.AvroSerializer(registry, AVRO), module.AvroDeserializer(registry), LANDING
    if kind == "json_schema":
        return module.JSONSerializer(JSON, registry), module.JSONDeserializer(JSON), LANDING
    duration = importlib.import_module("google.protobuf.duration_pb2").Duration
    serializer = module.ProtobufSerializer(duration, registry)
    return serializer, module.ProtobufDeserializer(duration, {}), duration(seconds=11)


KINDS = ["avro", "json_schema", "protobuf"]


def values(folder: Path) -> list[bytes | None]:
    return [record.value for record in LogReader(folder / "log").partition(TOPIC, 0).records()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_serializer_of_the_library_is_used_unchanged(
    kind: str, own: dict[str, Any], registry: Any, tmp_path: Path
) -> None:
    serialize, deserialize, item = pair(kind, registry)
    context = SerializationContext(TOPIC, MessageField.VALUE)
    with Producer(dotted(own)) as producer:
        producer.produce(TOPIC, serialize(item, context))
    with SerializingProducer(dotted(own) | {"value.serializer": serialize}) as serializing:
        serializing.produce(TOPIC, value=item)
    assert [deserialize(value, context) for value in values(tmp_path)] == [item] * 2
    assert registry.get_subjects() == [f"{TOPIC}-value"], "one schema, once"


def test_keys_and_values_are_serialized_with_their_context(own: dict[str, Any], tmp_path: Path) -> None:
    contexts: list[tuple[Any, ...]] = []

    def serialize(item: object, context: SerializationContext) -> bytes:
        contexts.append((item, context.topic, context.field, context.headers))
        return repr(item).encode()

    heard, headers = Heard(), [("h", b"1")]
    config = dotted(own) | {"key.serializer": serialize, "value.serializer": serialize}
    given = dict(config)
    with SerializingProducer(config) as producer:
        producer.produce(TOPIC, 1, 2.5, partition=0, on_delivery=heard, timestamp=7, headers=headers)
        producer.produce(TOPIC, value="x", on_delivery=heard)
    assert config == given, "the options of the program are changed"
    (record, _) = LogReader(tmp_path / "log").partition(TOPIC, 0).records()
    assert (record.key, record.value, record.timestamp_ms, [*record.headers]) == (b"1", b"2.5", 7, headers)
    assert [message.key() for message in heard.messages] == [b"1", b"None"]
    assert contexts[:2] == [(1, TOPIC, "key", headers), (2.5, TOPIC, "value", headers)]


def test_a_serializer_that_fails_raises_the_error_of_the_library_and_nothing_is_sent(own: dict[str, Any]) -> None:
    def fail(item: Any, context: SerializationContext) -> bytes:
        if item == "bad":
            raise ValueError("no number")
        return b""

    with SerializingProducer(dotted(own) | {"key.serializer": fail, "value.serializer": fail}) as producer:
        with pytest.raises(KeySerializationError, match="no number"):
            producer.produce(TOPIC, "bad", "good")
        with pytest.raises(ValueSerializationError, match="no number") as failed:
            producer.produce(TOPIC, "good", "bad")
        with pytest.raises(TypeError, match="topic must be a str, not bytes"):
            producer.produce(b"flights", "good", "good")  # type: ignore[arg-type]
        assert len(producer) == 0
    assert isinstance(failed.value, KafkaException)
    with pytest.raises(RuntimeError, match="closed"):
        producer.produce(TOPIC, "good", "good")


def test_a_builder_makes_a_serializer_that_the_producer_closes(own: dict[str, Any], tmp_path: Path) -> None:
    key, value, ready = Builder(), Builder(), Closable()
    config = dotted(own) | {"registry.url": "mock://", "key.serializer.builder": key, "value.serializer.builder": value}
    with SerializingProducer(config) as producer:
        producer.produce(TOPIC, "k", "v")
        assert (key.is_key, value.is_key, value.made.is_closed) == (True, False, False)
        assert callable(value.made.resolver), "a serializer may ask for the id of the cluster"
    assert key.made.is_closed
    assert value.made.is_closed
    assert values(tmp_path) == [b"v"]
    with SerializingProducer(dotted(own) | {"value.serializer": ready}):
        pass
    assert not ready.is_closed, "it is the program's"


def test_the_last_builder_decides_on_an_option_of_the_producer(own: dict[str, Any]) -> None:
    builders = {
        "key.serializer.builder": Builder(**{"client.id": "of the key"}),
        "value.serializer.builder": Builder(**{"client.id": "of the value"}),
    }
    with SerializingProducer(dotted(own) | {"client.id": "of the program"} | builders) as producer:
        assert producer._producer is not None
        assert producer._producer.client_id == "of the value"


def test_a_producer_that_is_not_made_closes_what_it_built(own: dict[str, Any]) -> None:
    built = Builder()
    with pytest.raises(KafkaException, match="nonsense"):
        SerializingProducer(dotted(own) | {"nonsense": 1, "value.serializer.builder": built})
    assert built.made.is_closed
    with pytest.raises(ValueError, match=r"^value\.serializer and value\.serializer\.builder are both given"):
        SerializingProducer(dotted(own) | {"value.serializer": Closable(), "value.serializer.builder": built})


def test_its_calls_have_the_parameters_of_the_library() -> None:
    for name in ("__init__", "produce"):
        theirs, ours = (
            signature(getattr(one, name)) for one in (confluent_kafka.SerializingProducer, SerializingProducer)
        )
        assert [*theirs.parameters] == [*ours.parameters]
        assert [row.default for row in theirs.parameters.values()] == [row.default for row in ours.parameters.values()]
