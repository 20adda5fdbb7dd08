# SPDX-License-Identifier: Apache-2.0
"""Readers as Spark would call them: their offsets, ranges and rows."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make spark, or pip install '.[spark]'")

from pyspark.sql.datasource import InputPartition

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config import LogSinkOptions
from shmaccum.exceptions import (
    ConsumerStateError,
    CorruptLogError,
    GroupModeError,
    InvalidArgumentError,
    LogError,
    LogPartitionNotFoundError,
    NotALogError,
    OffsetOutOfRangeError,
)
from shmaccum.log.consumer import Consumer
from shmaccum.log.files import LogDirectory
from shmaccum.log.groups.member_locks import MemberLocks
from shmaccum.log.groups.offsets_file import GroupLock
from shmaccum.spark import group_offsets
from shmaccum.spark.planning import LogRange, limit_positions, plan_ranges, shares
from shmaccum.spark.positions import Offsets
from shmaccum.spark.readers import HAS_READ_LIMITS, BatchReader, StreamReader
from shmaccum.spark.settings import source_options
from tests.support.segment_log import START_MS, make_batch

FLIGHTS_0, FLIGHTS_1, PLANES_0 = TopicPartition("flights", 0), TopicPartition("flights", 1), TopicPartition("planes", 0)


def append(path: Path, place: TopicPartition, count: int, *, record_count: int = 3, first: int = 0) -> None:
    """Append batches of numbered values, a second apart, to one of two partitions."""
    with LogDirectory(path, LogSinkOptions(partitions=2)) as directory:
        directory.create_topic(place.topic)
        directory.partition(*place).append(
            [
                make_batch(
                    [b"%d" % (index * record_count + n) for n in range(record_count)],
                    timestamp_ms=START_MS + 1000 * index,
                    headers=[("h", b"x")],
                )
                for index in range(first, first + count)
            ]
        )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """30 records in flights-0, 6 in flights-1, 3 in planes-0."""
    path = tmp_path / "log"
    append(path, FLIGHTS_0, 10)
    append(path, FLIGHTS_1, 2)
    append(path, PLANES_0, 1)
    return path


def options(log: Path, **given: Any) -> Any:
    chosen = {} if {"assign", "subscribePattern"} & set(given) else {"subscribe": "flights"}
    return source_options({"path": str(log), **chosen, **given})


def ranges(log: Path, **given: Any) -> list[tuple[str, int, int]]:
    planned = BatchReader(options(log, **given)).partitions()
    return [(str(each.place), each.start, each.end) for each in planned if isinstance(each, LogRange)]


def rows(log: Path, **given: Any) -> list[dict[str, Any]]:
    """The rows of a batch, read as Spark does: planned here, pickled, read there."""
    reader = BatchReader(options(log, **given))
    planned = reader.partitions()
    reader, planned = pickle.loads(pickle.dumps((reader, planned)))
    found = [batch for part in planned for batch in reader.read(part)]
    for batch in found:
        batch.validate(full=True)
    return [row for batch in found for row in batch.to_pylist()]


# --- rows


def test_a_batch_has_every_record_in_spark_s_columns(log: Path) -> None:
    found = rows(log, subscribe="planes")
    assert [row["value"] for row in found] == [b"0", b"1", b"2"]
    first = found[0]
    assert (first["key"], first["topic"], first["partition"], first["offset"]) == (None, "planes", 0, 0)
    assert first["timestamp"].timestamp() * 1000 == START_MS
    assert first["timestampType"] == 0
    assert "headers" not in first


def test_headers_come_when_they_are_asked_for(log: Path) -> None:
    (first, *_) = rows(log, subscribe="planes", includeHeaders="true")
    assert first["headers"] == [{"key": "h", "value": b"x"}]


def test_keys_of_headers_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    from shmaccum.log.files.columns import BytesColumn
    from shmaccum.spark.record_batches import _text_array

    ends = pa.array([0, 1, 2], pa.int32()).buffers()[1].to_pybytes()
    assert _text_array(BytesColumn(2, 0, b"\x03", ends, b"a\xff")).to_pylist() == ["a", "�"]


def test_a_partition_of_spark_s_own_making_has_nothing(log: Path) -> None:
    assert list(BatchReader(options(log)).read(InputPartition(None))) == []


def test_large_ranges_come_in_record_batches_of_spark_s_size(tmp_path: Path) -> None:
    append(tmp_path / "log", FLIGHTS_0, 50, record_count=500)
    reader = BatchReader(options(tmp_path / "log", assign='{"flights": [0]}'))
    (part,) = reader.partitions()
    assert [batch.num_rows for batch in reader.read(part)] == [10_000, 10_000, 5_000]


# --- which partitions


def test_subscribe_assign_and_pattern(log: Path) -> None:
    both = [("flights-0", 0, 30), ("flights-1", 0, 6)]
    assert ranges(log, subscribe="flights") == both
    assert ranges(log, subscribe=" flights, planes ") == [*both, ("planes-0", 0, 3)]
    assert ranges(log, subscribePattern="pl.*") == [("planes-0", 0, 3)]
    assert ranges(log, subscribePattern="lane") == []
    assert ranges(log, assign='{"flights": [1], "planes": [0]}') == [("flights-1", 0, 6), ("planes-0", 0, 3)]


# --- which offsets


def test_starting_and_ending_offsets(log: Path) -> None:
    start, end = json.dumps({"flights": {"0": 7, "1": -2}}), json.dumps({"flights": {"0": -1, "1": 4}})
    assert ranges(log, startingOffsets=start, endingOffsets=end) == [("flights-0", 7, 30), ("flights-1", 0, 4)]
    assert [row["offset"] for row in rows(log, startingOffsets=start, endingOffsets=end)] == [*range(7, 30), 0, 1, 2, 3]
    assert ranges(log, startingOffsets="earliest", endingOffsets="latest") == [
        ("flights-0", 0, 30),
        ("flights-1", 0, 6),
    ]


def test_starting_and_ending_times(log: Path) -> None:
    given = {"startingTimestamp": str(START_MS + 1000), "endingTimestamp": str(START_MS + 4001)}
    assert ranges(log, **given) == [("flights-0", 3, 13), ("flights-1", 3, 6)]
    times = json.dumps({"flights": {"0": START_MS + 9000, "1": START_MS + 9000}})
    late = {"startingOffsetsByTimestamp": times, "startingOffsetsByTimestampStrategy": "latest"}
    assert ranges(log, **late) == [("flights-0", 27, 30)]
    with pytest.raises(OffsetOutOfRangeError, match="no record of flights-1 has the time"):
        ranges(log, startingOffsetsByTimestamp=times)


@pytest.mark.parametrize(("edge", "other_edge"), [("starting", "ending"), ("ending", "starting")])
def test_times_take_precedence_over_other_options_for_an_edge(log: Path, edge: str, other_edge: str) -> None:
    """The order is that of Spark's Kafka source: one time for all, then one for each partition, then offsets."""
    given = {
        f"{edge}Timestamp": str(START_MS + 1000),
        f"{edge}OffsetsByTimestamp": json.dumps({"flights": {"0": START_MS + 4000, "1": START_MS}}),
        f"{edge}Offsets": json.dumps({"flights": {"0": 7, "1": 2}}),
    }
    for first, second in ((3, 3), (12, 0), (7, 2)):
        bounds = {edge: (first, second), other_edge: (30, 6) if other_edge == "ending" else (0, 0)}
        wanted = [
            (f"flights-{partition}", bounds["starting"][partition], bounds["ending"][partition]) for partition in (0, 1)
        ]
        assert ranges(log, **given) == [found for found in wanted if found[1] < found[2]]
        del given[next(iter(given))]


def test_min_partitions_cuts_what_is_large(log: Path) -> None:
    assert ranges(log, minPartitions="6") == [
        ("flights-0", 0, 6),
        ("flights-0", 6, 12),
        ("flights-0", 12, 18),
        ("flights-0", 18, 24),
        ("flights-0", 24, 30),
        ("flights-1", 0, 6),
    ]
    assert [row["offset"] for row in rows(log, assign='{"flights": [0]}', minPartitions="4")] == list(range(30))
    assert plan_ranges({FLIGHTS_0: 5}, {FLIGHTS_0: 5}, 3) == []


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        ({"subscribe": "fligths"}, LogPartitionNotFoundError, "has no fligths; its topics are flights, planes"),
        ({"assign": '{"flights": [7]}'}, LogPartitionNotFoundError, "has no flights-7"),
        ({"assign": "flights"}, InvalidArgumentError, "assign is not JSON"),
        ({"assign": '["flights"]'}, InvalidArgumentError, "but must be a JSON object"),
        ({"assign": '{"flights": 3}'}, InvalidArgumentError, "but must look like"),
        ({"subscribePattern": "("}, InvalidArgumentError, "is not a regular expression"),
        ({"startingOffsets": "latest"}, InvalidArgumentError, "startingOffsets cannot be latest"),
        ({"startingOffsets": '{"flights": {"0": 1}}'}, InvalidArgumentError, "it lacks flights-1"),
        ({"startingOffsets": '{"flights": {"0": 1, "1": 1, "2": 1}}'}, InvalidArgumentError, "names flights-2"),
        ({"startingOffsets": '{"flights": 1}'}, InvalidArgumentError, "but must look like"),
        ({"endingOffsets": "earliest"}, InvalidArgumentError, "endingOffsets cannot be earliest"),
        ({"startingOffsets": '{"flights": {"0": 31, "1": 0}}'}, OffsetOutOfRangeError, "the log has 0 to 30"),
        ({"maxOffsetsPerTrigger": "5"}, InvalidArgumentError, "does not apply to a batch"),
    ],
)
def test_what_a_batch_refuses(log: Path, given: dict[str, Any], error: type[LogError], sentence: str) -> None:
    with pytest.raises(error) as caught:
        ranges(log, **given)
    assert sentence in str(caught.value)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotALogError, match="is not a directory"):
        ranges(tmp_path / "nowhere")


# --- losses


def test_a_missing_offset_can_be_accepted(log: Path) -> None:
    start = '{"flights": {"0": 31, "1": 0}}'
    assert ranges(log, startingOffsets=start, failOnDataLoss="false") == [("flights-1", 0, 6)]


def test_records_that_are_gone_when_a_task_reads(log: Path) -> None:
    part = LogRange(FLIGHTS_0, 0, 33)
    with pytest.raises(OffsetOutOfRangeError, match="flights-0 ends at offset 30, but 33 existed"):
        list(BatchReader(options(log)).read(part))
    lenient = BatchReader(options(log, failOnDataLoss="false"))
    assert sum(batch.num_rows for batch in lenient.read(part)) == 30


def test_damage_fails_or_is_passed_over(log: Path) -> None:
    (segment,) = (log / "flights-0").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    with pytest.raises(CorruptLogError, match="is damaged"):
        rows(log)
    found = [row["offset"] for row in rows(log, failOnDataLoss="false") if row["partition"] == 0]
    assert len(found) == 27


# --- streams


def stream(log: Path, **given: Any) -> StreamReader:
    return StreamReader(options(log, **given))


def test_a_stream_starts_at_the_end_or_at_the_requested_place(log: Path) -> None:
    assert stream(log).initialOffset() == {"flights": {"0": 30, "1": 6}}
    assert stream(log, startingOffsets="earliest").initialOffset() == {"flights": {"0": 0, "1": 0}}


def test_a_micro_batch_has_what_came_since(log: Path) -> None:
    reader = stream(log)
    start = reader.initialOffset()
    assert reader.latestOffset(start) == start
    append(log, FLIGHTS_0, 1, first=10)
    end = reader.latestOffset(start)
    assert end == {"flights": {"0": 33, "1": 6}}
    (part,) = reader.partitions(start, end)
    assert part == LogRange(FLIGHTS_0, 30, 33)
    (batch,) = reader.read(part)
    assert batch.column("value").to_pylist() == [b"30", b"31", b"32"]


@pytest.mark.skipif(not HAS_READ_LIMITS, reason="read limits came with Spark 4.2")
def test_max_offsets_per_trigger_is_shared_among_partitions(log: Path) -> None:
    reader = stream(log, startingOffsets="earliest", maxOffsetsPerTrigger="12")
    limit = reader.getDefaultReadLimit()
    start, ends = reader.initialOffset(), []
    for _ in range(4):
        start = reader.latestOffset(start, limit)
        ends.append((start["flights"]["0"], start["flights"]["1"]))
    assert ends == [(10, 2), (20, 4), (30, 6), (30, 6)]


def test_available_now_ends_where_the_log_ended_when_it_began(log: Path) -> None:
    reader = stream(log, startingOffsets="earliest")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    append(log, FLIGHTS_0, 1, first=10)
    assert reader.latestOffset(start) == {"flights": {"0": 30, "1": 6}}


def test_a_topic_may_come_later_and_is_read_from_its_start(log: Path) -> None:
    reader = stream(log, subscribe="weather")
    start = reader.initialOffset()
    assert start == {}
    append(log, TopicPartition("weather", 1), 2)
    end = reader.latestOffset(start)
    assert end == {"weather": {"0": 0, "1": 6}}
    assert reader.partitions(start, end) == [LogRange(TopicPartition("weather", 1), 0, 6)]


def test_a_partition_that_lost_records_fails_the_query(log: Path) -> None:
    start = {"flights": {"0": 31, "1": 0}}
    with pytest.raises(OffsetOutOfRangeError, match="was read up to offset 31 and now ends at 30"):
        stream(log).latestOffset(start)
    end = stream(log, failOnDataLoss="false").latestOffset(start)
    assert end == {"flights": {"0": 30, "1": 6}}  # and a later record there is read
    assert records(stream(log, failOnDataLoss="false"), start, end) == 30 + 6
    with pytest.raises(LogPartitionNotFoundError, match="gone-0 was read up to offset 3 and does not exist"):
        stream(log).latestOffset({"gone": {"0": 3}, "flights": {"0": 0, "1": 0}})


# --- topics that are deleted and created again


def in_checkpoint(offsets: Offsets) -> Any:
    """Serialize and parse like Spark."""
    return json.loads(json.dumps(offsets))


def create_again(log: Path, count: int) -> None:
    with LogDirectory(log) as directory:
        directory.delete_topic("flights")
    append(log, FLIGHTS_0, count)


def records(reader: StreamReader, start: Offsets, end: Offsets) -> int:
    """Return how many records a micro-batch reads."""
    return sum(each.end - each.start for each in reader.partitions(start, end) if isinstance(each, LogRange))


def test_a_position_has_the_id_of_its_topic_in_a_checkpoint(log: Path) -> None:
    start = stream(log).latestOffset(stream(log).initialOffset())
    assert start == {"flights": {"0": 30, "1": 6}}
    topic_id = in_checkpoint(start)["topic ids"]["flights"]
    create_again(log, 1)
    assert in_checkpoint(stream(log).initialOffset())["topic ids"]["flights"] != topic_id


@pytest.mark.parametrize("count", [4, 10, 20])
@pytest.mark.parametrize("has_ids", [False, True])
def test_the_records_of_a_new_topic_are_read(
    log: Path, count: int, has_ids: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Fewer records than before, as many, or more. A checkpoint of a former version detects only the first case."""
    start = in_checkpoint(stream(log).latestOffset(stream(log).initialOffset()))
    if not has_ids:
        del start["topic ids"]
    create_again(log, count)
    if has_ids or count < 10:
        with pytest.raises(OffsetOutOfRangeError, match="flights-0 was read up to offset 30"):
            stream(log).latestOffset(start)
    if not has_ids and count >= 10:
        return
    end = in_checkpoint(stream(log, failOnDataLoss="false").latestOffset(start))
    assert end["flights"]["0"] == 3 * count
    assert records(stream(log, failOnDataLoss="false"), start, end) == 3 * count
    assert "flights-0 was read up to offset 30" in caplog.text
    append(log, FLIGHTS_0, 1, first=count)
    following = stream(log).latestOffset(end)
    assert records(stream(log), end, following) == 3


def test_a_micro_batch_of_a_topic_that_was_created_again_since_is_empty(log: Path) -> None:
    start = in_checkpoint(stream(log, startingOffsets="earliest").initialOffset())
    end = in_checkpoint(stream(log).latestOffset(start))
    create_again(log, 20)
    with pytest.raises(OffsetOutOfRangeError, match="created again"):
        stream(log).partitions(start, end)
    assert records(stream(log, failOnDataLoss="false"), start, end) == 0


# --- a checkpoint of other topics


def test_a_topic_that_the_query_does_not_name_is_not_read_and_keeps_its_position(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = {"flights": {"0": 3, "1": 0}}
    reader = stream(log, subscribe="planes")
    end = reader.latestOffset(start)
    assert end == {"flights": {"0": 3, "1": 0}, "planes": {"0": 3, "1": 0}}
    assert reader.partitions(start, end) == [LogRange(PLANES_0, 0, 3)]
    assert "the checkpoint has positions of flights, which the query no longer selects" in caplog.text
    again = stream(log, subscribe="flights, planes")
    last = again.latestOffset(end)
    assert again.partitions(end, last) == [LogRange(FLIGHTS_0, 3, 30), LogRange(FLIGHTS_1, 0, 6)]


def test_a_position_is_kept_without_a_start_from_spark(log: Path) -> None:
    """Before Spark 4.2, the first micro-batch of a query is planned without the positions of its checkpoint."""
    start = {"flights": {"0": 3, "1": 0}}
    reader = stream(log, subscribe="planes")
    end = reader.latestOffset()
    assert reader.partitions(start, end) == [LogRange(PLANES_0, 0, 3)]
    assert reader.latestOffset() == {**start, **end}
    both = stream(log, subscribe="flights,planes")
    assert both.partitions(start, end) == [LogRange(PLANES_0, 0, 3)]
    assert both.partitions(end, both.latestOffset()) == [LogRange(FLIGHTS_0, 3, 30), LogRange(FLIGHTS_1, 0, 6)]


def test_planned_records_of_a_topic_that_the_query_does_not_name_are_refused_or_left_out(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start, end = {"flights": {"0": 3}, "planes": {"0": 0}}, {"flights": {"0": 6}, "planes": {"0": 3}}
    with pytest.raises(InvalidArgumentError, match=r"the offsets 3 to 6 of flights-0.*select it until the"):
        stream(log, subscribe="planes").partitions(start, end)
    lenient = stream(log, subscribe="planes", failOnDataLoss="false")
    assert lenient.partitions(start, end) == [LogRange(PLANES_0, 0, 3)]
    assert "these records are skipped" in caplog.text


def test_a_group_gets_the_offsets_of_the_named_topics(log: Path) -> None:
    stream(log, subscribe="flights", groupId="g").commit({"flights": {"0": 3, "1": 0}, "planes": {"0": 9}})
    with Consumer(log, group_id="g") as observer:
        assert observer.committed(FLIGHTS_0) is not None
        assert observer.committed(PLANES_0) is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"subscribe": "flights,weather"},
            "has no weather yet: the stream waits for it; its topics are flights, planes",
        ),
        ({"subscribePattern": "we.*"}, "has no topic that matches 'we.*' yet: the stream waits for one"),
        ({"assign": '{"flights": [0, 7]}'}, "has no flights-7 yet: the stream waits for it"),
    ],
)
def test_a_stream_that_waits_for_a_topic_reports_it_once(
    log: Path, caplog: pytest.LogCaptureFixture, given: dict[str, str], sentence: str
) -> None:
    reader = stream(log, **given)
    start = reader.initialOffset()
    reader.latestOffset(start)
    assert caplog.text.count(sentence) == 1


def test_a_query_reports_the_end_of_the_log(log: Path, tmp_path: Path) -> None:
    reader = stream(log, startingOffsets="earliest", maxOffsetsPerTrigger="12") if HAS_READ_LIMITS else stream(log)
    assert reader.reportLatestOffset() == {"flights": {"0": 30, "1": 6}}
    assert stream(log, subscribe="weather").reportLatestOffset() is None
    assert stream(tmp_path / "nothing").reportLatestOffset() is None


# --- groups


def committed(log: Path) -> dict[TopicPartition, Any]:
    with Consumer(log, group_id="g") as observer:
        return {place: observer.committed(place) for place in (FLIGHTS_0, FLIGHTS_1)}


def test_a_stream_begins_where_a_group_has_committed_and_commits_for_it(log: Path) -> None:
    with Consumer(log, group_id="g") as consumer:
        consumer.commit({FLIGHTS_0: 7})
    reader = stream(log, groupId="g", startingOffsets="earliest")
    start = reader.initialOffset()
    assert start == {"flights": {"0": 7, "1": 0}}
    reader = pickle.loads(pickle.dumps(reader))
    assert committed(log) == {FLIGHTS_0: 7, FLIGHTS_1: None}
    reader.commit(reader.latestOffset(start))
    assert committed(log) == {FLIGHTS_0: 30, FLIGHTS_1: 6}
    assert stream(log, groupId="g").initialOffset() == {"flights": {"0": 30, "1": 6}}


def test_a_committed_offset_that_is_not_there_fails_the_query(log: Path) -> None:
    with Consumer(log, group_id="g") as consumer:
        consumer.commit({FLIGHTS_0: 31})
    with pytest.raises(OffsetOutOfRangeError, match="offset 31 of flights-0 does not exist"):
        stream(log, groupId="g").initialOffset()
    assert stream(log, groupId="g", failOnDataLoss="false").initialOffset() == {"flights": {"0": 30, "1": 6}}


def test_a_group_with_members_is_not_committed_for(log: Path) -> None:
    with Consumer(log, "flights", group_id="g"), pytest.raises(ConsumerStateError, match="has members"):
        stream(log, groupId="g").commit({"flights": {"0": 1, "1": 1}})
    with contextlib.closing(_Served(log)), pytest.raises(GroupModeError, match="coordinated by a server"):
        stream(log, groupId="g").initialOffset()


def test_a_group_whose_files_are_held_is_committed_for_later(
    log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_offsets, "COMMIT_TIMEOUT_S", 0.0)
    with contextlib.closing(MemberLocks(str(log), "g")) as locks, locks.offsets_lock(0.0):
        stream(log, groupId="g").commit({"flights": {"0": 1, "1": 1}})
    assert "was not committed for the group 'g'" in caplog.text
    assert committed(log) == {FLIGHTS_0: None, FLIGHTS_1: None}


class _Served:
    """A group that a server coordinates."""

    def __init__(self, log: Path) -> None:
        self._lock = GroupLock(str(log), "g")

    def close(self) -> None:
        self._lock.release()


def test_a_batch_has_no_group(log: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="group_id does not apply to a batch"):
        BatchReader(options(log, groupId="g"))


def test_options_of_batches_are_refused(log: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="ending_offsets does not apply to a stream"):
        stream(log, endingOffsets='{"flights": {"0": 3, "1": 3}}')


def test_a_limit_is_used_up_to_the_last_record() -> None:
    starts = {FLIGHTS_0: 0, FLIGHTS_1: 5, PLANES_0: 0}
    ends = {FLIGHTS_0: 1, FLIGHTS_1: 1005, PLANES_0: 1}
    limited = limit_positions(starts, ends, 10)
    assert sum(limited[place] - starts[place] for place in starts) == 10
    assert limit_positions(starts, ends, 5000) == ends


def test_a_small_partition_is_read_beside_a_large_backlog() -> None:
    starts, ends = {FLIGHTS_0: 0, FLIGHTS_1: 0}, {FLIGHTS_0: 1_000_000, FLIGHTS_1: 10}
    for _ in range(10):
        starts = limit_positions(starts, ends, 1000)
        ends[FLIGHTS_0] += 1000
    assert starts == {FLIGHTS_0: 9990, FLIGHTS_1: 10}


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7])
def test_partitions_take_turns_under_a_limit_that_is_smaller_than_their_number(limit: int) -> None:
    places = [TopicPartition("t", number) for number in range(10)]
    starts = dict.fromkeys(places, 0)
    ends = {place: 0 if place.partition in {3, 4} else 100 for place in places}
    for _ in range(20):
        before, starts = starts, limit_positions(starts, ends, limit)
        assert sum(starts.values()) - sum(before.values()) == limit
    assert all(starts[place] for place in places if ends[place])


def test_shares_are_whole_and_within_their_bounds(seeded: Callable[[], random.Random]) -> None:
    generator = seeded()
    for _ in range(500):
        count = generator.randint(1, 8)
        sizes = {TopicPartition("t", number): generator.choice([1, 2, 10, 10**6]) for number in range(count)}
        total = generator.randint(count, sum(sizes.values()) + 5)
        given = shares(sizes, total)
        assert sum(given.values()) == min(total, sum(sizes.values()))
        assert all(1 <= given[place] <= size for place, size in sizes.items())


def test_there_are_as_many_tasks_as_min_partitions_says() -> None:
    ends = {FLIGHTS_0: 5, FLIGHTS_1: 5, PLANES_0: 5}
    starts = dict.fromkeys(ends, 0)
    assert [len(plan_ranges(starts, ends, count)) for count in (1, 3, 4, 5, 7, 15, 16)] == [3, 3, 4, 5, 7, 15, 15]
