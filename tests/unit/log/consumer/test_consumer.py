# SPDX-License-Identifier: Apache-2.0
"""The consumer without a group: positions, polls, waiting, and the errors of wrong calls."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.consumer.fetcher import ConsumerRecord as KafkaPythonRecord
from kafka.structs import TopicPartition as KafkaPythonTopicPartition

from shmaccum import (
    Consumer,
    ConsumerRecord,
    ConsumerStateError,
    CorruptLogError,
    InvalidArgumentError,
    LogPartitionNotFoundError,
    NotALogError,
    RecordDeserializationError,
    TopicPartition,
)
from shmaccum.common import clock
from shmaccum.exceptions import GroupBusyError
from shmaccum.log.consumer import OffsetAndMetadata, change_waiter, group
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.log_watch import LogWatch
from shmaccum.log.groups.member_locks import MemberLocks
from tests.support.descriptors import await_no_other, open_descriptors
from tests.support.segment_log import START_MS, TOPIC, log_files, make_batch, make_batches, open_log

WATCHDOG_MS = 60_000
PLACE = TopicPartition(TOPIC, 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogDirectory]:
    """A log that is written while it is consumed: one topic with one partition."""
    with open_log(tmp_path) as directory:
        directory.partition(TOPIC, 0)
        yield directory


def consumer_of(log: LogDirectory, *topics: str, **options: Any) -> Consumer:
    return Consumer(f"log:{log.path}", *topics, **{"auto_offset_reset": "earliest"} | options)


def append(log: LogDirectory, *values: bytes | None, partition: int = 0, topic: str = TOPIC, **fields: Any) -> None:
    log.partition(topic, partition).append([make_batch(values, **fields)])


def values(consumer: Consumer, **arguments: Any) -> list[Any]:
    return [record.value for records in consumer.poll(**arguments).values() for record in records]


# --- records


def test_a_record_has_the_fields_of_kafka_python(log: LogDirectory) -> None:
    append(log, b"v", None, headers=[("a", b"12"), ("b", None)])
    with consumer_of(log, TOPIC) as consumer:
        first, second = consumer.poll()[PLACE]
    assert ConsumerRecord._fields == KafkaPythonRecord._fields
    headers = (("a", b"12"), ("b", None))
    assert first == (TOPIC, 0, 0, 0, START_MS, 0, None, b"v", headers, None, -1, 1, 4)
    assert (second.offset, second.value, second.serialized_value_size) == (1, None, -1)
    assert isinstance(first, ConsumerRecord)


def test_a_record_without_headers_has_no_size_of_them(log: LogDirectory) -> None:
    append(log, b"v")
    with consumer_of(log, TOPIC) as consumer:
        assert next(consumer).serialized_header_size == -1


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4], ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_read(log: LogDirectory, codec: int) -> None:
    append(log, *[b"%d" % number for number in range(100)], codec=codec)
    with consumer_of(log, TOPIC) as consumer:
        assert values(consumer) == [b"%d" % number for number in range(100)]


def test_a_poll_returns_at_most_so_many_records(log: LogDirectory) -> None:
    log.partition(TOPIC, 0).append(make_batches(4, record_count=3))
    with consumer_of(log, TOPIC, max_poll_records=5) as consumer:
        assert [len(values(consumer)) for _ in range(4)] == [5, 5, 2, 0]
        consumer.seek(PLACE, 1)
        assert [record.offset for record in consumer.poll(max_records=3)[PLACE]] == [1, 2, 3]
        assert consumer.position(PLACE) == 4


def test_partitions_take_turns(tmp_path: Path) -> None:
    with LogDirectory(tmp_path) as log:
        log.create_topic(TOPIC, 3)
        for partition in range(3):
            log.partition(TOPIC, partition).append(make_batches(2))
        with consumer_of(log, TOPIC, max_poll_records=6) as consumer:
            polled = [next(iter(consumer.poll())).partition for _ in range(3)]
    assert sorted(polled) == [0, 1, 2]


def test_deserializers_by_name_by_function_and_by_object(log: LogDirectory) -> None:
    class Doubling:
        def deserialize(self, topic: str, headers: Any, data: bytes | None) -> Any:
            return (topic, data)

    append(log, b'{"a": 1}', None)
    for given, wanted in [
        ("json", [{"a": 1}, None]),
        ("str", ['{"a": 1}', None]),
        (len, [8, None]),
        (Doubling(), [(TOPIC, b'{"a": 1}'), (TOPIC, None)]),
    ]:
        with consumer_of(log, TOPIC, value_deserializer=given) as consumer:
            assert values(consumer) == wanted


@pytest.mark.parametrize("codec", [0, 1], ids=["none", "gzip"])
def test_memoryviews_outlive_the_objects_they_came_from(log: LogDirectory, codec: int) -> None:
    wanted = [b"%d" % number * 100 for number in range(50)]
    append(log, *wanted, b"", None, codec=codec)
    with consumer_of(log, TOPIC, value_deserializer="memoryview") as consumer:
        records = consumer.poll()[PLACE]
    parts = [record.value[1:3] for record in records[:50]]
    views = [record.value for record in records if record.value is not None]
    for file in log_files(Path(log.path)):
        file.write_bytes(bytes(file.stat().st_size))
    del consumer
    gc.collect()
    assert [bytes(view) for view in views] == [*wanted, b""]
    assert [bytes(part) for part in parts] == [value[1:3] for value in wanted]
    assert all(isinstance(view, memoryview) and view.readonly for view in views)
    assert (records[51].value, {record.key for record in records}) == (None, {None})


def test_keys_are_memoryviews_beside_values_that_are_deserialized(log: LogDirectory) -> None:
    append(log, b"[1]", key=b"name")
    with consumer_of(log, TOPIC, key_deserializer="memoryview", value_deserializer="json") as consumer:
        record = next(consumer)
    assert isinstance(record.key, memoryview)
    assert (bytes(record.key), record.value, record.serialized_key_size) == (b"name", [1], 4)


def test_a_record_that_a_deserializer_refuses_loses_no_other(log: LogDirectory) -> None:
    append(log, b"1", b"2", b"x", b"4")
    with consumer_of(log, TOPIC, value_deserializer=int) as consumer:
        assert values(consumer) == [1, 2]
        for _ in range(2):
            with pytest.raises(RecordDeserializationError, match=r"offset 2 of flights-0 .* Seek to offset 3"):
                consumer.poll()
        consumer.seek(PLACE, 3)
        assert values(consumer) == [4]


def test_interceptors_see_and_replace_records(log: LogDirectory, caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        def on_consume(self, _records: Any) -> Any:
            raise RuntimeError("broken")

    class First:
        def on_consume(self, records: Any) -> Any:
            return {place: found[:1] for place, found in records.items()}

    append(log, b"1", b"2")
    with consumer_of(log, TOPIC, interceptors=[Failing(), First()]) as consumer:
        assert values(consumer) == [b"1"]
    assert "failed in on_consume" in caplog.text


# --- positions


def test_each_reset_begins_where_it_says(log: LogDirectory) -> None:
    append(log, b"1", b"2")
    with consumer_of(log, TOPIC) as earliest, Consumer(log.path, TOPIC) as latest:
        assert (earliest.position(PLACE), latest.position(PLACE)) == (0, 2)
    with consumer_of(log, TOPIC, auto_offset_reset="none") as strict:
        with pytest.raises(ConsumerStateError, match="flights-0 has no position yet"):
            strict.poll()
        strict.seek(PLACE, 1)
        assert values(strict) == [b"2"]


def test_a_position_that_is_not_in_the_log_is_reset(log: LogDirectory) -> None:
    append(log, b"1", b"2")
    with consumer_of(log, TOPIC) as consumer:
        consumer.seek(PLACE, 100)
        assert values(consumer) == [b"1", b"2"]
    with consumer_of(log, TOPIC, auto_offset_reset="none") as strict:
        strict.seek(PLACE, 100)
        with pytest.raises(ConsumerStateError, match="has no offset 100 in the log"):
            strict.poll()


def test_seeks_and_offsets(log: LogDirectory) -> None:
    log.partition(TOPIC, 0).append(make_batches(3))
    with consumer_of(log, TOPIC) as consumer:
        consumer.seek_to_end()
        assert (consumer.position(PLACE), consumer.poll()) == (9, {})
        consumer.seek_to_beginning(PLACE)
        assert consumer.position(PLACE) == 0
        assert consumer.beginning_offsets([PLACE]) == {PLACE: 0}
        assert consumer.end_offsets([PLACE]) == {PLACE: 9}
        assert consumer.highwater(PLACE) == 9
        assert consumer.offsets_for_times({PLACE: START_MS + 1000}) == {PLACE: (3, START_MS + 1000)}
        assert consumer.offsets_for_times({PLACE: START_MS * 2}) == {PLACE: None}


def test_paused_partitions_keep_their_position(log: LogDirectory) -> None:
    append(log, b"1", b"2")
    with consumer_of(log, TOPIC) as consumer:
        assert values(consumer, max_records=1) == [b"1"]
        consumer.pause(PLACE)
        assert (consumer.paused(), consumer.poll()) == ({PLACE}, {})
        consumer.resume(PLACE)
        assert (consumer.paused(), values(consumer)) == (set(), [b"2"])


def test_damage_is_reported_when_the_records_before_it_were_handed_out(log: LogDirectory, tmp_path: Path) -> None:
    log.partition(TOPIC, 0).append(make_batches(3))
    file = log_files(tmp_path)[0]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    with consumer_of(log, TOPIC) as consumer:
        assert [record.offset for record in consumer.poll()[PLACE]] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(CorruptLogError):
                consumer.poll()
        consumer.seek(PLACE, 6)
        with pytest.raises(CorruptLogError):
            consumer.poll_arrow()


# --- topics


def test_topics_and_partitions(log: LogDirectory) -> None:
    with consumer_of(log) as consumer:
        assert consumer.topics() == {TOPIC}
        assert consumer.partitions_for_topic(TOPIC) == {0}
        assert consumer.partitions_for_topic("none") is None
        assert consumer.subscription() is None
        consumer.assign([KafkaPythonTopicPartition(TOPIC, 0)])
        assert consumer.assignment() == {PLACE}
        with pytest.raises(LogPartitionNotFoundError, match="no partition 7"):
            consumer.assign([TopicPartition(TOPIC, 7)])
        assert consumer.assignment() == {PLACE}
        with pytest.raises(ConsumerStateError, match="unsubscribe"):
            consumer.subscribe([TOPIC])
        consumer.unsubscribe()
        consumer.subscribe(pattern="fl.*")
        assert (consumer.subscription(), consumer.assignment()) == ({TOPIC}, {PLACE})
        with pytest.raises(ConsumerStateError, match="unsubscribe"):
            consumer.assign([PLACE])


def test_a_topic_that_comes_later_is_read_from_its_first_record(log: LogDirectory) -> None:
    assigned: list[list[TopicPartition]] = []

    class Listener:
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            assigned.append(partitions)

    with Consumer(log.path) as consumer:
        consumer.subscribe(["later"], listener=Listener())
        assert (consumer.assignment(), consumer.poll()) == (set(), {})
        log.create_topic("later")
        append(log, b"first", topic="later")
        assert values(consumer, timeout_ms=WATCHDOG_MS) == [b"first"]
    assert assigned == [[TopicPartition("later", 0)]]


# --- waiting


@pytest.mark.parametrize("has_watch", [True, False], ids=["watch", "no watch"])
def test_an_append_ends_a_wait(log: LogDirectory, monkeypatch: pytest.MonkeyPatch, has_watch: bool) -> None:
    monkeypatch.setattr(change_waiter, "CHECK_INTERVAL_S", WATCHDOG_MS / 1000)
    if not has_watch:
        monkeypatch.setattr(LogWatch, "add", lambda _self, _path: False)
    with consumer_of(log, TOPIC) as consumer:
        assert consumer.poll() == {}
        writer = threading.Timer(0.05, append, [log, b"news"])
        writer.start()
        begin_s = time.monotonic()
        assert values(consumer, timeout_ms=WATCHDOG_MS) == [b"news"]
        assert time.monotonic() - begin_s < WATCHDOG_MS / 2000
        writer.join()


def test_an_append_without_a_report_is_found(log: LogDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_waiter, "CHECK_INTERVAL_S", 0.01)
    monkeypatch.setattr(LogWatch, "changed", lambda _self: set())
    with consumer_of(log, TOPIC) as consumer:
        assert consumer.poll() == {}
        append(log, b"silent")
        assert values(consumer, timeout_ms=WATCHDOG_MS) == [b"silent"]


def test_wakeup_ends_a_wait(log: LogDirectory) -> None:
    with consumer_of(log, TOPIC) as consumer:
        consumer.wakeup()
        begin_s = time.monotonic()
        assert consumer.poll(timeout_ms=WATCHDOG_MS) == {}
        assert time.monotonic() - begin_s < WATCHDOG_MS / 2000


def test_an_iteration_ends_when_nothing_comes(log: LogDirectory) -> None:
    log.partition(TOPIC, 0).append(make_batches(3))
    with consumer_of(log, TOPIC, consumer_timeout_ms=0) as consumer:
        assert [record.offset for record in consumer] == list(range(9))
        append(log, b"more")
        assert [record.offset for record in consumer] == [9]


def test_consume_takes_so_many_records(log: LogDirectory) -> None:
    log.partition(TOPIC, 0).append(make_batches(3))
    with consumer_of(log, TOPIC) as consumer:
        assert [record.offset for record in consumer.consume(4)] == [0, 1, 2, 3]
        assert [record.offset for record in consumer.consume(100, timeout=0)] == [4, 5, 6, 7, 8]


def test_batches_are_handed_out_whole(log: LogDirectory) -> None:
    log.partition(TOPIC, 0).append(make_batches(3))
    with consumer_of(log, TOPIC) as consumer:
        consumer.poll(max_records=4)
        found = list(consumer.batches(timeout_ms=0))
        assert [(place, batch.base_offset) for place, batch in found] == [(PLACE, 3), (PLACE, 6)]
        assert consumer.position(PLACE) == 9


def test_arrow_tables_have_every_field(log: LogDirectory) -> None:
    append(log, b"0", b"1", None, headers=[("h", b"v")])
    append(log, b"3", codec=4)
    with consumer_of(log, TOPIC) as consumer:
        consumer.seek(PLACE, 1)
        table = consumer.poll_arrow()
        assert table["offset"].to_pylist() == [1, 2, 3]
        assert table["value"].to_pylist() == [b"1", None, b"3"]
        assert table["headers"].to_pylist() == [[{"key": "h", "value": b"v"}]] * 2 + [None]
        assert set(table["topic"].to_pylist()) == {TOPIC}
        assert (consumer.position(PLACE), consumer.poll_arrow().num_rows) == (4, 0)


def test_an_arrow_table_is_bounded_over_all_partitions(log: LogDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmaccum.log.consumer.consumer.ARROW_SIZE_MAX", 1)
    log.create_topic("wide", 3)
    for partition in range(3):
        append(log, b"v", partition=partition, topic="wide")
    with consumer_of(log, "wide") as consumer:
        tables = [consumer.poll_arrow() for _ in range(4)]
    assert [table.num_rows for table in tables] == [1, 1, 1, 0]


def test_metrics_count_records_and_lag(log: LogDirectory) -> None:
    append(log, b"1", b"2", b"3")
    with consumer_of(log, TOPIC) as consumer:
        consumer.poll(max_records=2)
        metrics = consumer.metrics()
    fetched = metrics["consumer-fetch-manager-metrics"]
    assert (fetched["records-consumed-total"], fetched["records-lag-max"]) == (2, 1)
    assert metrics["consumer-coordinator-metrics"]["assigned-partitions"] == 1


# --- wrong calls


def test_wrong_calls_say_what_to_do(log: LogDirectory, tmp_path: Path) -> None:
    with pytest.raises(NotALogError):
        Consumer(tmp_path / "nothing")
    with pytest.raises(InvalidArgumentError, match="did you mean max_poll_records"):
        Consumer(log.path, max_pol_records=3)
    with pytest.raises(InvalidArgumentError, match="value_deserializer: 3 is neither"):
        Consumer(log.path, value_deserializer=3)
    with consumer_of(log) as consumer:
        with pytest.raises(ConsumerStateError, match="neither a subscription nor an assignment"):
            consumer.poll()
        with pytest.raises(InvalidArgumentError, match="list of names"):
            consumer.subscribe(TOPIC)
        with pytest.raises(InvalidArgumentError, match="not a regular expression"):
            consumer.subscribe(pattern="(")
        with pytest.raises(ConsumerStateError, match="not assigned"):
            consumer.seek(PLACE, 0)
        with pytest.raises(InvalidArgumentError, match="not a TopicPartition"):
            consumer.assign(["flights-0"])  # type: ignore[list-item]
        consumer.assign([PLACE])
        with pytest.raises(InvalidArgumentError, match="0 or more"):
            consumer.seek(PLACE, -1)


def test_a_closed_consumer_reports_it(log: LogDirectory) -> None:
    before = open_descriptors()
    consumer = consumer_of(log, TOPIC)
    consumer.poll()
    assert not open_descriptors() <= before
    consumer.close()
    consumer.close()
    await_no_other(before)
    for call in (
        consumer.poll,
        consumer.wakeup,
        consumer.unsubscribe,
        lambda: consumer.subscribe([TOPIC]),
        lambda: consumer.assign([TopicPartition(TOPIC, 0)]),
    ):
        with pytest.raises(ConsumerStateError, match="was closed"):
            call()


def test_a_forked_child_has_to_make_its_own(log: LogDirectory) -> None:
    append(log, b"1")
    with consumer_of(log, TOPIC) as consumer:
        child = os.fork()
        if not child:
            try:
                consumer.poll()
            except ConsumerStateError as error:
                os._exit(0 if "which forked this one" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert values(consumer) == [b"1"]


# --- a group of one


def test_positions_are_committed_by_close_and_found_again(log: LogDirectory) -> None:
    append(log, b"1", b"2", b"3")
    with consumer_of(log, TOPIC, group_id="g") as consumer:
        assert values(consumer, max_records=2) == [b"1", b"2"]
        assert consumer.committed(PLACE) is None
    with consumer_of(log, TOPIC, group_id="g") as consumer:
        assert consumer.committed(PLACE, metadata=True) == OffsetAndMetadata(2, "", -1)
        assert values(consumer) == [b"3"]


def test_an_error_in_the_body_commits_nothing_by_itself(log: LogDirectory) -> None:
    append(log, b"1")
    with contextlib.suppress(RuntimeError), consumer_of(log, TOPIC, group_id="g") as consumer:
        assert values(consumer) == [b"1"]
        raise RuntimeError("the record was not processed")
    with consumer_of(log, TOPIC, group_id="g") as consumer:
        assert values(consumer) == [b"1"]


def test_positions_are_committed_by_a_poll_after_the_interval(log: LogDirectory) -> None:
    append(log, b"1")
    with consumer_of(log, TOPIC, group_id="g", auto_commit_interval_ms=0) as consumer:
        assert values(consumer) == [b"1"]
        assert consumer.committed(PLACE) is None
        consumer.poll()
        assert consumer.committed(PLACE) == 1


def test_an_automatic_commit_waits_for_no_member_and_stays_due(
    log: LogDirectory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, b"1")
    other = MemberLocks(log.path, "g")
    with consumer_of(log, TOPIC, group_id="g", auto_commit_interval_ms=0) as consumer:
        assert values(consumer) == [b"1"]
        with other.offsets_lock(0):
            consumer.poll()
            assert (consumer.committed(PLACE), caplog.text) == (None, "")
            monkeypatch.setattr(group, "OUTDATED_S", 0.0)
            consumer.poll()
            assert "an automatic commit of the group 'g' failed: another member" in caplog.text
        consumer.poll()
        assert consumer.committed(PLACE) == 1
    other.close()


def test_a_consumer_that_is_no_member_sees_the_members(log: LogDirectory) -> None:
    options = {"group_id": "g", "partition_assignment_strategy": ["sticky"]}
    with consumer_of(log, TOPIC, **options) as consumer, consumer_of(log, group_id="g") as observer:
        consumer.poll()
        assert [member.partitions for member in observer.group_members()] == [[PLACE]]


def test_commits_by_hand(log: LogDirectory) -> None:
    told: list[Any] = []

    class Interceptor:
        def on_consume(self, records: Any) -> Any:
            return records

        def on_commit(self, offsets: Any) -> None:
            told.append(offsets)

    options = {"group_id": "g", "enable_auto_commit": False, "interceptors": [Interceptor()]}
    with consumer_of(log, TOPIC, **options) as consumer:
        consumer.poll()
        consumer.commit({PLACE: OffsetAndMetadata(4, "note")})
        assert consumer.committed(PLACE, metadata=True) == OffsetAndMetadata(4, "note")
        answers: list[Any] = []
        consumer.commit_async({PLACE: 5}, lambda offsets, error: answers.append((offsets, error)))
        other = TopicPartition(TOPIC, 9)
        consumer.commit_async({other: 5}, lambda _offsets, error: answers.append(type(error)))
        assert answers == [({PLACE: 5}, None), ConsumerStateError]
        for wrong in (-1, True, "5", OffsetAndMetadata(1, "x" * 5000)):
            with pytest.raises(InvalidArgumentError, match="flights-0"):
                consumer.commit({PLACE: wrong})
    assert told == [{PLACE: (4, "note", -1)}, {PLACE: (5, "", -1)}]


def test_an_assigned_consumer_commits_while_the_group_has_no_member(log: LogDirectory) -> None:
    with consumer_of(log, group_id="g") as alone:
        alone.assign([PLACE])
        alone.commit({PLACE: 1})
        with consumer_of(log, TOPIC, group_id="g"), pytest.raises(ConsumerStateError, match="has members"):
            alone.commit({PLACE: 2})
        assert alone.committed(PLACE) == 1
    append(log, b"1", b"2")
    with consumer_of(log, group_id="g") as alone:
        alone.assign([PLACE])
        assert values(alone) == [b"2"]


def test_every_listener_gets_every_change(log: LogDirectory) -> None:
    told: list[tuple[str, int]] = []

    class Listener:
        def on_partitions_assigned(self, places: list[TopicPartition]) -> None:
            told.append(("assigned", len(places)))

        def on_partitions_revoked(self, places: list[TopicPartition]) -> None:
            told.append(("revoked", len(places)))

        def on_partitions_lost(self, places: list[TopicPartition]) -> None:
            told.append(("lost", len(places)))

    log.create_topic("gone")
    log.partition("gone", 0)
    with consumer_of(log, group_id="g") as consumer:
        consumer.subscribe([TOPIC, "gone"], listener=Listener())
        consumer.poll()
        log.delete_topic("gone")
        begin_s = time.monotonic()
        while len(consumer.assignment()) > 1:
            consumer.poll(timeout_ms=10)
            assert time.monotonic() - begin_s < WATCHDOG_MS / 1000
        consumer.unsubscribe()
    assert told == [("assigned", 2), ("lost", 1), ("revoked", 1)]


def test_consumers_whose_group_files_are_removed_share_the_partitions_again(log: LogDirectory) -> None:
    lost: list[TopicPartition] = []

    class Listener:
        def on_partitions_lost(self, places: list[TopicPartition]) -> None:
            lost.extend(places)

    with consumer_of(log, group_id="g") as first:
        first.subscribe([TOPIC], listener=Listener())
        first.poll()
        shutil.rmtree(Path(log.path) / ".groups")
        with consumer_of(log, TOPIC, group_id="g") as second:  # which knows nothing of the former files
            second.poll()
            assert second.assignment() == {PLACE}
            begin_s = time.monotonic()
            while not lost:
                first.poll(timeout_ms=10)
                assert time.monotonic() - begin_s < WATCHDOG_MS / 1000
            assert (first.assignment() | second.assignment(), lost) == ({PLACE}, [PLACE])
            assert len(first.group_members()) == 2


def test_a_consumer_without_a_group_cannot_commit(log: LogDirectory) -> None:
    with consumer_of(log, TOPIC) as consumer:
        for call in (consumer.commit, lambda: consumer.committed(PLACE), consumer.group_members, consumer.commit_async):
            with pytest.raises(ConsumerStateError, match="set group_id"):
                call()


def test_a_consumer_that_is_not_used_leaves_its_group(log: LogDirectory) -> None:
    first = consumer_of(log, TOPIC, group_id="g")
    first.poll()
    del first
    gc.collect()
    with consumer_of(log, TOPIC, group_id="g") as second:
        second.poll()
        assert second.assignment() == {PLACE}


def test_a_consumer_without_a_group_that_is_not_used_is_closed(log: LogDirectory) -> None:
    consumer_of(log, TOPIC).close()
    gc.collect()
    former = open_descriptors()
    forgotten = consumer_of(log, TOPIC)
    forgotten.poll()
    del forgotten
    gc.collect()
    consumer_of(log, TOPIC).close()
    await_no_other(former)


@pytest.mark.parametrize("timeout_ms", [2**63 - 1, pytest.param(10**400, id="googols"), 1e300, float("inf")])
def test_a_poll_takes_any_long_timeout(log: LogDirectory, timeout_ms: float) -> None:
    append(log, b"0")
    with consumer_of(log, TOPIC) as consumer:
        assert values(consumer, timeout_ms=timeout_ms) == [b"0"]


def test_a_poll_refuses_a_timeout_that_is_no_number(log: LogDirectory) -> None:
    with consumer_of(log, TOPIC) as consumer:
        with pytest.raises(InvalidArgumentError, match="nan"):
            consumer.poll(timeout_ms=float("nan"))
        with pytest.raises(TypeError, match="a timeout is a number"):
            consumer.poll(timeout_ms="1s")  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, 1.5, float("inf"), float("nan"), "1"])
def test_the_most_records_of_a_poll_are_a_whole_number(log: LogDirectory, count: Any) -> None:
    append(log, b"0")
    with consumer_of(log, TOPIC) as consumer, pytest.raises(InvalidArgumentError, match="max_records must be"):
        consumer.poll(max_records=count)


def test_an_offset_beyond_those_of_kafka_is_refused(log: LogDirectory) -> None:
    with consumer_of(log) as consumer:
        consumer.assign([PLACE])
        consumer.seek(PLACE, 2**63 - 1)
        with pytest.raises(InvalidArgumentError, match="below 2"):
            consumer.seek(PLACE, 2**63)


@pytest.mark.parametrize(
    ("timeout_s", "age_s", "sentence"),
    [
        (0, 0, None),
        (0, group.OUTDATED_S - 1, None),
        (0, group.OUTDATED_S, "failed: it is busy; a member is stopped"),
        (1, 0, "failed: it is busy"),
    ],
)
def test_a_commit_that_was_given_up_is_reported_with_its_cause(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    timeout_s: float,
    age_s: float,
    sentence: str | None,
) -> None:
    member: Any = SimpleNamespace(
        _uncommitted_s=100.0,
        _options=SimpleNamespace(group_id="g"),
        membership=SimpleNamespace(stopped=lambda: "; a member is stopped"),
    )
    with monkeypatch.context() as patch:
        patch.setattr(clock, "monotonic", lambda: 100.0 + age_s)
        group.GroupMembership._warn_of_uncommitted(member, GroupBusyError("it is busy"), timeout_s)
    assert [message.partition("'g' ")[2] for message in caplog.messages] == ([] if sentence is None else [sentence])
