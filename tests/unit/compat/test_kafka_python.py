# SPDX-License-Identifier: Apache-2.0
"""kafka-python's KafkaProducer on an arena: its options, results and exceptions."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import kafka
import pytest
from kafka import errors
from kafka.partitioner import DefaultPartitioner
from kafka.producer.future import RecordMetadata
from kafka.serializer import DefaultSerializer

from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.compat.kafka_python import ROWS, KafkaProducer
from shmaccum.exceptions import BufferExhaustedError, DeliveryFailedError, FlushTimeoutError, ResultPendingError
from shmaccum.log.files import LogReader
from tests.support.arenas import Drainer
from tests.support.processes import WATCHDOG_S, Child
from tests.unit.compat.conftest import TOPIC

PROCESSES = 8


def values(log: Path) -> list[bytes]:
    return [record.value or b"" for record in LogReader(log).partition(TOPIC, 0).records()]


def test_every_option_of_the_library_has_a_row() -> None:
    assert set(ROWS) == set(kafka.KafkaProducer.DEFAULT_CONFIG) - {"bootstrap_servers"}


def test_a_record_is_delivered_and_its_metadata_have_the_librarys_shape(own: dict[str, Any], tmp_path: Path) -> None:
    told: list[RecordMetadata] = []
    with KafkaProducer(**own, value_serializer=DefaultSerializer(), partitioner=DefaultPartitioner()) as producer:
        future = producer.send(TOPIC, "one", key=b"k", headers=[("h", b"1")], timestamp_ms=7)
        metadata = future.add_callback(told.append).get(timeout=WATCHDOG_S)
        producer.flush()
        assert producer.bootstrap_connected()
        assert producer.partitions_for(TOPIC) == {0}
        assert producer.metrics()["producer-metrics"]["record-send-total"] == 1  # type: ignore[index]
    assert isinstance(metadata, RecordMetadata)
    assert metadata == (TOPIC, 0, kafka.TopicPartition(TOPIC, 0), 0, 7, None, 1, 3, 2)
    assert (future.is_done, future.succeeded(), future.failed(), future.exception) == (True, True, False, None)
    assert told == [metadata]
    assert values(tmp_path / "log") == [b"one"]


def _send_one(own: dict[str, Any], number: int) -> str:
    with KafkaProducer(bootstrap_servers="unused", **own) as producer:
        producer.send(TOPIC, b"%d" % number)
        return producer._producer.arena.name


def test_processes_with_equal_settings_share_an_arena_and_a_sender(own: dict[str, Any], tmp_path: Path) -> None:
    children = [Child(_send_one, own, number) for number in range(PROCESSES)]
    assert {child.join() for child in children} == {repr(own["shmaccum_arena"])}
    assert sorted(values(tmp_path / "log")) == [b"%d" % number for number in range(PROCESSES)]


def test_a_serializer_is_called_for_none_too(own: dict[str, Any], tmp_path: Path) -> None:
    with KafkaProducer(
        **own, key_serializer=str.encode, value_serializer=lambda value: repr(value).encode()
    ) as producer:
        producer.send(TOPIC, None, key="k")
    assert values(tmp_path / "log") == [b"None"]


def test_wrong_records_are_rejected_like_in_the_library(unkept: dict[str, Any], unsent: Arena) -> None:
    with KafkaProducer(**unkept, max_block_ms=50) as producer:
        with pytest.raises(ValueError, match="at least one"):
            producer.send(TOPIC)
        wrong: list[Any] = [(("a", b"1"),), [["a", b"1"]], [("a", "1")]]
        for headers in wrong:
            with pytest.raises(TypeError, match="headers"):
                producer.send(TOPIC, b"v", headers=headers)
        with pytest.raises(TypeError):
            producer.send(TOPIC, "text")
        with pytest.raises(ValueError, match="partition"):
            producer.send(TOPIC, b"v", partition=9)
        with pytest.raises(errors.MessageSizeTooLargeError):
            producer.send(TOPIC, b"v" * (2 << 20))
    with pytest.raises(errors.IllegalStateError):
        producer.send(TOPIC, b"v")


def test_a_timeout_is_an_exception_of_the_library_and_of_shmaccum(unkept: dict[str, Any], unsent: Arena) -> None:
    producer = KafkaProducer(**unkept, max_block_ms=5)
    try:
        with pytest.raises(errors.KafkaTimeoutError):
            producer.partitions_for("unknown")
        with pytest.raises(errors.KafkaTimeoutError):
            producer.send("unknown", b"v")
        future = producer.send(TOPIC, b"v")
        with pytest.raises(errors.KafkaTimeoutError) as pending:
            future.get(timeout=0)
        assert isinstance(pending.value, ResultPendingError)
        with pytest.raises(errors.KafkaTimeoutError) as unflushed:
            producer.flush(timeout=0)
        assert isinstance(unflushed.value, FlushTimeoutError)
        for _ in range(unsent.geometry["slot_count"] * 13 // 16 - 1):  # the share of one topic of several
            producer.send(TOPIC, b"v" * 3000)
        with pytest.raises(errors.KafkaTimeoutError) as exhausted:
            producer.send(TOPIC, b"v" * 3000)
        assert isinstance(exhausted.value, BufferExhaustedError)
    finally:
        producer.close(timeout=0)


def test_a_rejected_record_has_the_librarys_exception_for_its_code(unkept: dict[str, Any], unsent: Arena) -> None:
    told: list[Exception] = []
    with KafkaProducer(**unkept) as producer, Drainer(unsent, result=BatchResult.FAILED, error_code=10):
        future = producer.send(TOPIC, b"v").add_errback(told.append)
        with pytest.raises(errors.MessageSizeTooLargeError) as failure:
            future.get(timeout=WATCHDOG_S)
        producer.flush()
    assert isinstance(failure.value, DeliveryFailedError)
    assert [type(error) for error in told] == [type(failure.value)]
    copy = pickle.loads(pickle.dumps(failure.value))
    assert (type(copy), copy.args, copy.error_code) == (type(failure.value), failure.value.args, 10)


def test_wrong_options_raise_the_librarys_configuration_errors() -> None:
    with pytest.raises(errors.KafkaConfigurationError, match="ssl_context is refused") as refusal:
        KafkaProducer(ssl_context=object())
    assert isinstance(refusal.value, ValueError)
    with pytest.raises(errors.KafkaConfigurationError, match="incompatible with acks=1, retries=0"):
        KafkaProducer(acks=1, retries=0, enable_idempotence=True)


def test_default_idempotence_is_disabled_by_conflicting_options(unkept: dict[str, Any], unsent: Arena) -> None:
    for options in {"acks": 1}, {"retries": 0}, {"max_in_flight_requests_per_connection": 6}:
        with KafkaProducer(**unkept, **options) as producer:
            assert producer.config["enable_idempotence"] is False
    with KafkaProducer(**unkept, retries=float("inf")) as producer:
        assert producer.config["enable_idempotence"] is True
        assert producer.config["acks"] == -1
