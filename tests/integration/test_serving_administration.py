# SPDX-License-Identifier: Apache-2.0
"""Administrators of a served log change settings, delete records and read epochs with other clients."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from shmaccum.log.files.reader import LogReader
from tests.support.log_server import DEADLINE_S, confluent_consumer, consume_with_confluent, produce, served
from tests.support.segment_log import TOPIC, log_files, make_batch, make_batches, open_log

Error = confluent_kafka.KafkaError


def admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address})


def results(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(DEADLINE_S) for future in futures.values()]


def set_to(name: str, value: str | None) -> ConfigEntry:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    return ConfigEntry(name, value or "", incremental_operation=operation)


def change(client: AdminClient, *entries: ConfigEntry, topic: str = TOPIC) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=list(entries))
    results(client.incremental_alter_configs([resource]))


def settings(client: AdminClient, topic: str = TOPIC) -> dict[str, tuple[str, int]]:
    """The value and source of each setting."""
    (found,) = results(client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    return {name: (entry.value, entry.source) for name, entry in found.items()}


def test_settings_of_a_topic_are_set_deleted_and_outlive_the_server(tmp_path: Path) -> None:
    with served(tmp_path / "log", retention_ms=5000) as address:
        produce(address, range(3))
        client = admin(address)
        assert settings(client)["retention.ms"] == ("5000", 4)
        change(client, set_to("retention.ms", "7000"), set_to("segment.bytes", "2000"))
        change(client, set_to("segment.bytes", None))
        assert settings(client)["retention.ms"] == ("7000", 1)
        assert settings(client)["segment.bytes"] == ("1073741824", 5)
    with served(tmp_path / "log") as address:
        client = admin(address)
        assert settings(client)["retention.ms"] == ("7000", 1)
        whole = ConfigResource(ResourceType.TOPIC, TOPIC, set_config={"segment.ms": "9000"})
        with pytest.warns(DeprecationWarning, match="alter_configs"):  # the only client here that sends AlterConfigs
            results(client.alter_configs([whole]))
        assert settings(client)["segment.ms"] == ("9000", 1)
        assert settings(client)["retention.ms"] == ("-1", 5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", "inf"),
        ("cleanup.policy", "shrink"),
        ("compression.type", "lz4"),
        ("no.such.setting", "1"),
        ("flush.ms", "1"),
        ("segment.bytes", "1"),
    ],
)
def test_a_setting_that_cannot_be_had_is_refused_with_a_sentence(tmp_path: Path, name: str, value: str) -> None:
    with served(tmp_path / "log") as address:
        produce(address, range(3))
        client = admin(address)
        with pytest.raises(confluent_kafka.KafkaException) as found:
            change(client, set_to(name, value))
        assert found.value.args[0].code() == Error.INVALID_CONFIG
        assert name.replace(".", "_") in found.value.args[0].str().replace(".", "_")
        with pytest.raises(confluent_kafka.KafkaException) as found:
            results(client.create_topics([NewTopic("other", 1, config={name: value})]))
        assert found.value.args[0].code() == Error.INVALID_CONFIG


def append_to(name: str, value: str, *, is_removed: bool = False) -> ConfigEntry:
    operation = AlterConfigOpType.SUBTRACT if is_removed else AlterConfigOpType.APPEND
    return ConfigEntry(name, value, incremental_operation=operation)


def test_the_policy_of_a_topic_is_described_altered_and_outlives_the_server(tmp_path: Path) -> None:
    name = "cleanup.policy"
    with served(tmp_path / "log") as address:
        client = admin(address)
        config = {name: "compact", "min.cleanable.dirty.ratio": "0.01", "unclean.leader.election.enable": "false"}
        results(client.create_topics([NewTopic(TOPIC, 1, config=config), NewTopic("other", 1)]))
    with served(tmp_path / "log") as address:
        client = admin(address)
        found = settings(client)
        assert {name: found[name] for name in config} == {name: (value, 1) for name, value in config.items()}
        assert settings(client, "other")[name] == ("delete", 5)
        change(client, append_to(name, "delete"))
        assert settings(client)[name] == ("compact,delete", 1)
        change(client, append_to(name, "compact", is_removed=True))
        assert settings(client)[name] == ("delete", 1)
        for wrong in (append_to(name, "delete", is_removed=True), append_to("retention.ms", "5")):
            with pytest.raises(confluent_kafka.KafkaException) as refused:
                change(client, wrong)
            assert refused.value.args[0].code() == Error.INVALID_CONFIG
        change(client, set_to(name, None))
        assert settings(client)[name] == ("delete", 5)


def test_a_compacted_topic_keeps_each_record_and_refuses_those_without_a_key(tmp_path: Path) -> None:
    told: dict[bytes | None, int] = {}

    def note(error: Any, message: Any) -> None:
        told[message.key()] = 0 if error is None else error.code()

    with served(tmp_path / "log") as address:
        client = admin(address)
        results(client.create_topics([NewTopic(TOPIC, 1, config={"cleanup.policy": "compact"})]))
        producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 0})
        for key in (b"a", None, b"", b"a"):
            producer.produce(TOPIC, b"%d" % len(told), key=key, on_delivery=note)
            assert producer.flush(DEADLINE_S) == 0
        assert told == {b"a": 0, None: Error.INVALID_RECORD, b"": 0}
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            results(client.delete_records([confluent_kafka.TopicPartition(TOPIC, 0, 1)]))
        assert refused.value.args[0].code() == Error.POLICY_VIOLATION
    records = list(LogReader(tmp_path / "log").partition(TOPIC, 0).records())
    assert [record.key for record in records] == [b"a", b"", b"a"]


def test_a_client_learns_which_records_of_a_batch_have_no_key(tmp_path: Path) -> None:
    told: dict[int, int] = {}

    def note(error: Any, message: Any) -> None:
        told[int(message.value())] = 0 if error is None else error.code()

    with served(tmp_path / "log") as address:
        client = admin(address)
        results(client.create_topics([NewTopic(TOPIC, 1, config={"cleanup.policy": "compact"})]))
        producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 60_000})
        for number, key in enumerate((b"a", None, b"b", None)):
            producer.produce(TOPIC, b"%d" % number, key=key, on_delivery=note)
        assert producer.flush(DEADLINE_S) == 0
    other = Error._INVALID_DIFFERENT_RECORD
    assert told == {0: other, 1: Error.INVALID_RECORD, 2: other, 3: Error.INVALID_RECORD}


def test_produce_is_held_to_the_message_size_of_its_topic(tmp_path: Path) -> None:
    with served(tmp_path / "log", max_message_bytes=100_000) as address:
        client = admin(address)
        results(client.create_topics([NewTopic(TOPIC, 1), NewTopic("small", 1, config={"max.message.bytes": "2000"})]))
        errors: dict[str, int] = {}

        def note(error: Any, message: Any) -> None:
            errors[f"{message.topic()} {len(message.value())}"] = 0 if error is None else error.code()

        producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 0})
        for topic in (TOPIC, "small"):
            for size in (1000, 50_000, 200_000):
                producer.produce(topic, b"x" * size, on_delivery=note)
                producer.flush(DEADLINE_S)
        too_large = Error.MSG_SIZE_TOO_LARGE
        assert errors == {
            f"{TOPIC} 1000": 0,
            f"{TOPIC} 50000": 0,
            f"{TOPIC} 200000": too_large,
            "small 1000": 0,
            "small 50000": too_large,
            "small 200000": too_large,
        }


def test_a_topic_with_log_append_time_gives_producers_and_consumers_the_time_of_the_log(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    with served(tmp_path / "log") as address:
        client = admin(address)
        results(client.create_topics([NewTopic(TOPIC, 1, config={"message.timestamp.type": "LogAppendTime"})]))
        assert settings(client)["message.timestamp.type"] == ("LogAppendTime", 1)
        producer = confluent_kafka.Producer({"bootstrap.servers": address})
        for _ in range(3):
            producer.produce(TOPIC, b"x", timestamp=1000, on_delivery=lambda _, sent: told.append(sent.timestamp()))
        assert producer.flush(DEADLINE_S) == 0
        with contextlib.closing(confluent_consumer(address, "g")) as consumer:
            found = [message.timestamp() for _ in range(3) for message in consumer.consume(1, DEADLINE_S)]
    assert found == told
    assert {kind for kind, _ in told} == {confluent_kafka.TIMESTAMP_LOG_APPEND_TIME}
    assert all(time_ms > 1000 for _, time_ms in told)


def test_deleted_records_are_not_served(tmp_path: Path) -> None:
    place = confluent_kafka.TopicPartition
    with served(tmp_path / "log") as address:
        client = admin(address)
        results(client.create_topics([NewTopic(TOPIC, 1)]))
        produce(address, range(100))
        found = results(client.delete_records([place(TOPIC, 0, 40)]))
        assert [one.low_watermark for one in found] == [40]
        with contextlib.closing(confluent_consumer(address, "g")) as consumer:
            assert consumer.get_watermark_offsets(place(TOPIC, 0), DEADLINE_S) == (40, 100)
            assert consume_with_confluent(consumer, 60) == list(range(40, 100))
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            results(client.delete_records([place(TOPIC, 0, 101)]))
        assert refused.value.args[0].code() == Error.OFFSET_OUT_OF_RANGE
        assert results(client.delete_records([place(TOPIC, 0, -1)]))[0].low_watermark == 100
        assert sum(file.stat().st_size for file in log_files(tmp_path / "log")) == 0
    with served(tmp_path / "log") as address:
        produce(address, range(100, 103))
        with contextlib.closing(confluent_consumer(address, "h")) as consumer:
            assert consume_with_confluent(consumer, 3) == [100, 101, 102]
    assert LogReader(tmp_path / "log").partition(TOPIC, 0).log_start_offset == 100


def test_a_server_that_only_reads_changes_nothing(tmp_path: Path) -> None:
    with open_log(tmp_path / "log"), served(tmp_path / "log", is_writable=False) as address:
        client = admin(address)
        for attempt in (
            lambda: change(client, set_to("retention.ms", "1")),
            lambda: results(client.delete_records([confluent_kafka.TopicPartition(TOPIC, 0, 0)])),
            lambda: results(client.delete_topics([TOPIC])),
        ):
            with pytest.raises(confluent_kafka.KafkaException) as refused:
                attempt()
            codes = {Error.CLUSTER_AUTHORIZATION_FAILED, Error.TOPIC_AUTHORIZATION_FAILED}
            assert refused.value.args[0].code() in codes
        assert settings(client)["cleanup.policy"] == ("delete", 5)


def test_a_consumer_after_a_cut_reads_the_records_that_were_given_the_offsets_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with open_log(log) as directory:
        directory.partition(TOPIC, 0).append(make_batches(3))
    os.truncate(log_files(log)[-1], log_files(log)[-1].stat().st_size - 7)
    with open_log(log) as directory, served(log, is_writable=False) as address:
        directory.partition(TOPIC, 0).append([make_batch([b"%08d" % (100 + number)]) for number in range(9)])
        with contextlib.closing(confluent_consumer(address, "g")) as consumer:
            messages = consumer.consume(15, DEADLINE_S)
            assert [message.leader_epoch() for message in messages] == [0] * 6 + [1] * 9
            assert [int((message.value() or b"")[:8]) for message in messages] == [*range(6), *range(100, 109)]
