# SPDX-License-Identifier: Apache-2.0
"""Options and columns from users, and the remedies in the errors for wrong ones."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make spark, or pip install '.[spark]'")

from pyspark.sql.types import (
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from shmaccum.exceptions import InvalidArgumentError
from shmaccum.spark.columns import HEADERS_TYPE, sink_columns, source_schema
from shmaccum.spark.data_source import ShmaccumDataSource
from shmaccum.spark.settings import sink_settings, source_options

LOG = {"arena": "events", "sink": "log:/data/log"}
KAFKA = {"arena": "events", "kafka.bootstrap.servers": "broker:9092"}
DIRECTORY = {"path": "/log", "subscribe": "a"}


KINDS = {
    "binary": BinaryType(),
    "date": DateType(),
    "headers": HEADERS_TYPE,
    "integer": IntegerType(),
    "long": LongType(),
    "string": StringType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
}


def schema(text: str) -> StructType:
    """Create a schema from names and types: ``key:string;value:binary``."""
    columns = [part.split(":") for part in text.split(";")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in columns])


# --- options of the sink


def test_each_option_goes_to_its_owner() -> None:
    settings = sink_settings(
        LOG
        | {
            "topic": "flights",
            "bufferMemory": "64MiB",
            "linger.ms": "1",
            "deliverytimeoutms": "3min",
            "num.partitions": "4",
            "kafka.max.block.ms": "500",
            "checkpointLocation": "/c",
            "queryName": "q",
        }
    )
    assert settings.arena == "events"
    assert settings.topic == "flights"
    assert settings.arena_options == {"buffer_memory": "64MiB"}
    assert settings.producer_options == {"linger_ms": "1", "max_block_ms": "500"}
    assert settings.sender_options == {"linger_ms": "1", "delivery_timeout_ms": "3min", "idle_exit_ms": "60s"}
    assert settings.sink_options == {"partitions": "4"}
    assert settings.max_block_ms == 500


def test_bootstrap_servers_name_the_sink() -> None:
    given = {"arena": "events", "kafka.bootstrap.servers": "a:1,b:2", "kafka.compression.type": "gzip"}
    settings = sink_settings(given)
    assert settings.sink == "kafka:a:1,b:2"
    assert settings.sink_options == {"compression_type": "gzip"}


OF_A_TABLE = {"provider": "shmaccum", "owner": "root", "location": "file:/warehouse/flights"}
"""Properties that Spark adds for a table of its catalog."""


def as_of_a_table(given: dict[str, str]) -> dict[str, str]:
    return {**given, **{f"option.{name}": value for name, value in given.items()}, **OF_A_TABLE}


def test_a_table_of_a_catalog_has_the_options_that_its_user_gave() -> None:
    given = LOG | {"topic": "flights", "bufferMemory": "64MiB"}
    assert sink_settings(as_of_a_table(given)) == sink_settings(given)
    assert source_options(as_of_a_table(DIRECTORY)) == source_options(DIRECTORY)


def test_without_a_table_the_properties_of_one_are_unknown() -> None:
    with pytest.raises(InvalidArgumentError, match="location is not an option of the Spark source"):
        source_options(DIRECTORY | {"location": "x"})


def test_an_external_sender_needs_no_sink() -> None:
    settings = sink_settings({"arena": "/dev/shm/events", "sender": "external", "kafka.linger.ms": "7"})
    assert settings.sink is None
    assert settings.producer_options == {"linger_ms": "7"}


def test_settings_are_plain_data() -> None:
    settings = sink_settings(LOG)
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "no arena is set: set .option"),
        ({"arena": "events"}, "no sink is set"),
        (LOG | {"sink": "logg:/x"}, "logg: is not a kind of sink, did you mean log:?"),
        (LOG | {"sink": "log:x"}, "log:x is a relative path"),
        (LOG | {"arena": "./events"}, "the arena ./events is a relative path"),
        (LOG | {"sender": "external"}, "sender=external and a sink contradict each other"),
        (LOG | {"sender": "none"}, "'none' is not one of auto, external"),
        (LOG | {"kafka.key.serializer": "x"}, "key.serializer cannot be given to the Spark sink: keys and values"),
        (LOG | {"kafka.group.id": "x"}, "group.id cannot be given to the Spark sink"),
        (LOG | {"interceptors": "x"}, "interceptors cannot be given to the Spark sink"),
        (LOG | {"path": "/x"}, "path cannot be given to the Spark sink: set the sink with"),
        (LOG | {"kafka.bootstrap.servers": "a:1"}, "sink and kafka.bootstrap.servers set the same option"),
        (LOG | {"linger.ms": "1", "kafka.linger.ms": "2"}, "linger.ms and kafka.linger.ms set the same option"),
        (LOG | {"kafka.acks": "1"}, "enable_idempotence needs acks=all"),
        (LOG | {"sasl_mechanism": "PLAIN"}, "sasl_mechanism is an option of the kafka sink"),
        (LOG | {"bufferMemmory": "1MiB"}, "did you mean buffer_memory?"),
        (LOG | {"bufferMemory": "lots"}, "buffer_memory: "),
        (LOG | {"transactional.id": "x"}, "in transactions, set .option('deliveryGuarantee', 'exactly_once')"),
        (KAFKA | {"kafka.transaction.timeout.ms": "1"}, "the time-out with commitTimeoutMs"),
        (LOG | {"includeHeaders": "true"}, "given to the Spark sink: a column headers is always"),
        (LOG | {"startingOffsets": "earliest"}, "startingOffsets is an option of the Spark source: give"),
        (KAFKA | {"kafka.sasl.jaas.config": "x"}, "sasl.jaas.config is not an option here: set sasl_plain"),
        (KAFKA | {"kafka.ssl.truststore.location": "/x"}, "set ssl_cafile to a PEM file"),
        (KAFKA | {"kafka.ssl.keystore.password": "x"}, "certificates are PEM files"),
        (KAFKA | {"kafka.ssl.endpoint.identification.algorithm": ""}, "set ssl_check_hostname=false"),
        (KAFKA | {"kafka.metric.reporters": "x"}, "metric.reporters is not an option of"),
        (KAFKA | {"producer.cache.timeout": "1"}, "producer.cache.timeout is not an option of"),
    ],
)
def test_what_a_sink_refuses(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        sink_settings(given)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", ["sasl_plain_password", "kafka.sasl.plain.password", "saslPlainPassword"])
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_a_secret_is_given_by_its_place_with_each_guarantee(name: str, guarantee: str) -> None:
    place = {"stagingPath": "/staging"} if guarantee == "exactly_once" else {"arena": "events"}
    given = {"sink": "kafka:broker:9092", "deliveryGuarantee": guarantee, "sasl_mechanism": "PLAIN", **place}
    given |= {"security_protocol": "SASL_SSL", "sasl_plain_username": "ann"}
    assert sink_settings({**given, name: "env:SECRET"}).sink_options["sasl_plain_password"] == "env:SECRET"
    with pytest.raises(InvalidArgumentError, match=r"sasl_plain_password .* env:NAME or file:PATH") as caught:
        sink_settings({**given, name: "geheim"})
    assert "geheim" not in str(caught.value)


# --- columns of the sink


def test_the_sink_takes_the_connector_s_columns_and_leaves_others_out() -> None:
    found = sink_columns(
        schema(
            "offset:long;key:string;value:binary;topic:string;partition:integer;timestamp:timestamp;headers:headers"
        ),
        None,
    )
    assert found == ("key", "value", "topic", "partition", "timestamp", "headers")


def test_the_option_topic_makes_the_column_needless() -> None:
    assert sink_columns(schema("value:string;topic:integer"), "flights") == ("value",)


@pytest.mark.parametrize(
    ("columns", "topic", "sentence"),
    [
        ("key:string", "t", "the frame has no column 'value', which a record needs; its columns are key"),
        ("Value:string", "t", "its columns are Value"),
        ("value:string", None, "no topic is set: set .option('topic', NAME), or add a column 'topic'"),
        ("value:long", "t", "the column 'value' is bigint but must be string or binary: cast it"),
        ("value:string;key:integer", "t", "the column 'key' is int but must be string or binary"),
        ("value:string;topic:binary", None, "the column 'topic' is binary but must be string"),
        ("value:string;partition:string", "t", "the column 'partition' is string but must be int or bigint"),
        ("value:string;headers:string", "t", "but must be array<struct<key: string, value: binary>>"),
        ("value:string;timestamp:string", "t", "the column 'timestamp' is string but must be timestamp"),
        (
            "value:string;timestamp:timestamp_ntz",
            "t",
            "the column 'timestamp' is timestamp_ntz but must be timestamp: cast it to timestamp, or drop it",
        ),
        ("value:string;timestamp:date", "t", "the column 'timestamp' is date but must be timestamp: cast it to"),
    ],
)
def test_which_columns_a_sink_refuses(columns: str, topic: str | None, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        sink_columns(schema(columns), topic)
    assert sentence in str(caught.value)


def test_overwrite_is_refused_with_advice() -> None:
    source = ShmaccumDataSource(LOG | {"topic": "flights"})
    with pytest.raises(InvalidArgumentError, match=r'use \.mode\("append"\)'):
        source.writer(schema("value:string"), overwrite=True)


# --- options of the source


def test_options_of_the_source_are_the_connector_s() -> None:
    options = source_options(
        {"path": "/log", "subscribePattern": "a.*", "maxoffsetspertrigger": "10", "includeHeaders": "TRUE"}
    )
    assert options.subscribe_pattern == "a.*"
    assert options.max_offsets_per_trigger == 10
    assert options.include_headers


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"subscribe": "a"}, "no source is set"),
        ({"path": "/log", "subscribe": "a", "includeBatches": "true"}, "includeBatches applies only to arenas"),
        ({"path": "/log"}, "found none"),
        ({"path": "/log", "subscribe": "a", "assign": "{}"}, "found assign and subscribe"),
        ({"path": "/log", "subscribe": "a", "startingOffset": "earliest"}, "did you mean starting_offsets?"),
        ({"path": "/log", "subscribe": "a", "maxOffsetsPerTrigger": "0"}, "but must be at least 1"),
        (DIRECTORY | {"kafka.bootstrap.servers": "a:1"}, "to read from brokers, use Spark's format('kafka')"),
        (DIRECTORY | {"minOffsetsPerTrigger": "1"}, "cannot be given to the Spark source: each trigger"),
        (DIRECTORY | {"maxTriggerDelay": "15m"}, "set the trigger's interval"),
        (DIRECTORY | {"maxRecordsPerPartition": "9"}, "use minPartitions instead"),
        (DIRECTORY | {"groupIdPrefix": "x"}, "without a Kafka consumer"),
        (DIRECTORY | {"kafkaConsumer.pollTimeoutMs": "1"}, "without a Kafka consumer"),
        (DIRECTORY | {"fetchOffset.numRetries": "1"}, "without a Kafka consumer"),
        (DIRECTORY | {"fetchOffset.retryIntervalMs": "1"}, "without a Kafka consumer"),
        (DIRECTORY | {"kafka.isolation.level": "read_committed"}, "without a Kafka consumer"),
        (DIRECTORY | {"lingerMs": "1"}, "lingerMs is an option of the producer and the sender: give it to"),
    ],
)
def test_what_a_source_refuses(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        source_options(given)
    assert sentence in str(caught.value)


def test_the_schema_of_the_source_is_the_connector_s() -> None:
    plain = (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int"
    )
    assert source_schema(has_headers=False).simpleString() == plain + ">"
    headers = ",headers:array<struct<key:string,value:binary>>>"
    assert source_schema(has_headers=True).simpleString() == plain + headers
