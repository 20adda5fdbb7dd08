# SPDX-License-Identifier: Apache-2.0
"""How readers of a log see a topic during its creation, and after a death in between."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition

from shmaccum import Consumer
from shmaccum.cli import main
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config import SparkSourceOptions
from shmaccum.exceptions import LogPartitionNotFoundError
from shmaccum.log.files import LogDirectory, LogReader, check_log, partition_folders
from shmaccum.log.files.partition_folders import FOLDERLESS_MAX, UNFINISHED, _is_whole
from shmaccum.log.files.shipping_positions import PositionsFile, read_shipped
from shmaccum.log.files.small_files import read_topic_id
from shmaccum.log.server.topics import LogTopics
from shmaccum.sender.shipping import Shipper
from shmaccum.sender.sinks.memory import MemorySink
from shmaccum.spark.positions import chosen_partitions, latest_positions, starting_positions
from tests.support.log_server import served
from tests.support.processes import wait_until
from tests.support.segment_log import TOPIC, make_batches, offsets, open_log
from tests.support.system_calls import SOME_OR_EACH, dies_at_system_call, some_of_all

PARTITIONS = 3
PLACES = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]


def append(path: Path, partition: int, first: int = 0) -> None:
    with LogDirectory(path) as log:
        log.create_topic(TOPIC, PARTITIONS)
        offsets(log.partition(TOPIC, partition).append(make_batches(1, first=first)))


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A partly created topic. Only its highest partition has a folder and records."""
    path = tmp_path / "log"
    append(path, PARTITIONS - 1)
    for place in PLACES[:-1]:
        for file in (path / str(place)).iterdir():
            file.unlink()
        (path / str(place)).rmdir()
    return path


def read_all(consumer: Consumer) -> int:
    return sum(1 for _ in consumer)


def read_count(consumer: Any, count: int) -> list[Any]:
    """Read the next records, and return their number."""
    found: list[Any] = []

    def is_read() -> bool:
        found.extend(consumer)
        return len(found) >= count

    wait_until(is_read, "the records are read")
    assert len(found) == count
    return found


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(main, [str(one) for one in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


# --- a folder that is not complete does not exist


@pytest.mark.parametrize("leftover", ["empty folder", "epochs alone", "empty metadata", "half of the metadata"])
def test_a_folder_without_the_id_of_its_topic_does_not_exist_yet(tmp_path: Path, leftover: str) -> None:
    with open_log(tmp_path):
        pass
    folder = tmp_path / "other-0"
    folder.mkdir()
    if leftover == "epochs alone":
        (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    elif leftover != "empty folder":
        (folder / "partition.metadata").write_text("version: 0\n" if leftover == "half of the metadata" else "")
    assert LogReader(tmp_path).topics() == [TOPIC]
    assert LogTopics(str(tmp_path)).names() == [TOPIC]
    with pytest.raises(LogPartitionNotFoundError):
        LogReader(tmp_path).partition("other", 0)
    with LogDirectory(tmp_path) as log:
        assert log.partition_count("other") == 0
        assert log.create_topic("other", 2) == 2
    assert LogReader(tmp_path).partitions("other") == [0, 1]
    assert read_topic_id(str(folder)) == read_topic_id(str(tmp_path / "other-1"))
    assert read_topic_id(str(folder)) is not None


def test_readers_find_a_folder_that_gets_its_files_without_a_change_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_folders, "SETTLED_NS", 0)  # cache each listing if possible
    with open_log(tmp_path):
        pass
    (tmp_path / "other-0").mkdir()
    reader, topics = LogReader(tmp_path), LogTopics(str(tmp_path))
    assert reader.topics() == topics.names() == [TOPIC]
    changed_ns = tmp_path.stat().st_mtime_ns
    (tmp_path / "other-0" / "partition.metadata").write_bytes((tmp_path / f"{TOPIC}-0/partition.metadata").read_bytes())
    assert tmp_path.stat().st_mtime_ns == changed_ns
    assert reader.topics() == topics.names() == [TOPIC, "other"]


def test_records_without_the_id_of_their_topic_are_read(tmp_path: Path) -> None:
    """After a crash of the host, the file of the id may be empty and the records complete."""
    append(tmp_path, 0)
    for place in PLACES:
        (tmp_path / str(place) / "partition.metadata").write_text("")
    assert [record.value for record in LogReader(tmp_path).partition(TOPIC, 0).records()]
    with LogDirectory(tmp_path) as log:
        log.partition(TOPIC, 0)
    assert read_topic_id(str(tmp_path / f"{TOPIC}-0")) is not None


def test_a_reader_that_started_before_the_writer_knows_the_log_id(tmp_path: Path) -> None:
    reader = LogReader(tmp_path)
    assert not reader.is_gapless
    append(tmp_path, 0)
    assert reader.is_gapless


def test_folders_of_a_broker_are_partitions_without_a_check(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=x\n")
    for name in ("flights-2", "flights-5"):
        (tmp_path / name).mkdir()
    assert LogReader(tmp_path).partitions("flights") == [2, 5]


def test_a_folder_with_a_huge_number_adds_no_other_partition(tmp_path: Path) -> None:
    append(tmp_path, 0)
    folder = tmp_path / f"{TOPIC}-{FOLDERLESS_MAX + PARTITIONS + 1}"
    os.rename(tmp_path / str(PLACES[-1]), folder)
    assert len(LogReader(tmp_path).partitions(TOPIC)) == PARTITIONS


# --- a partition without a folder is empty


def test_a_partition_without_a_folder_is_empty(begun: Path) -> None:
    reader = LogReader(begun)
    assert reader.topic_partitions() == PLACES
    partition = reader.partition(TOPIC, 0)
    assert (partition.log_start_offset, partition.log_end_offset, list(partition.records())) == (0, 0, [])
    assert partition.offset_for_timestamp(0) is None
    assert partition.offset_of_max_timestamp() is None
    committed = LogReader(begun, isolation_level="read_committed").partition(TOPIC, 0)
    assert (committed.log_end_offset, list(committed.records())) == (0, [])
    assert check_log(begun) == []


@pytest.mark.parametrize("options", [{}, {"group_id": "group"}, {"isolation_level": "read_committed"}])
@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_consumer_of_a_begun_topic_reads_present_and_later_records(
    begun: Path, options: dict[str, Any], reset: str
) -> None:
    with Consumer(begun, TOPIC, auto_offset_reset=reset, consumer_timeout_ms=200, **options) as consumer:
        assert read_all(consumer) == (3 if reset == "earliest" else 0)
        wait_until(lambda: bool(read_all(consumer)) or consumer.assignment() == set(PLACES), "all are assigned")
        append(begun, 0)
        assert {record.partition for record in read_count(consumer, 3)} == {0}


def test_positions_and_offsets_of_a_begun_topic(begun: Path) -> None:
    with Consumer(begun, group_id="group") as consumer:
        consumer.assign(PLACES)
        assert consumer.partitions_for_topic(TOPIC) == {0, 1, 2}
        assert consumer.beginning_offsets(PLACES) == dict.fromkeys(PLACES, 0)
        assert consumer.end_offsets(PLACES) == {**dict.fromkeys(PLACES, 0), PLACES[-1]: 3}
        assert consumer.offsets_for_times({PLACES[0]: 0}) == {PLACES[0]: None}
        consumer.seek_to_end()
        assert [consumer.position(place) for place in PLACES] == [0, 0, 3]
        assert consumer.highwater(PLACES[0]) == 0
        consumer.commit()
        assert consumer.poll(timeout_ms=10) == {}


def test_a_deleted_topic_is_not_an_empty_one(begun: Path) -> None:
    partition = LogReader(begun).partition(TOPIC, 0)
    with LogDirectory(begun) as log:
        log.delete_topic(TOPIC)
    with pytest.raises(FileNotFoundError):
        partition.segments()


def test_a_server_serves_a_begun_topic(begun: Path) -> None:
    with served(begun, is_writable=False) as address:
        consumer = KafkaConsumer(
            bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=500, group_id="group"
        )
        places = [KafkaPartition(*place) for place in PLACES]
        consumer.assign(places)
        assert consumer.beginning_offsets(places) == dict.fromkeys(places, 0)
        assert consumer.end_offsets(places) == {**dict.fromkeys(places, 0), places[-1]: 3}
        assert {record.partition for record in read_count(consumer, 3)} == {2}
        append(begun, 0)
        assert {record.partition for record in read_count(consumer, 3)} == {0}
        consumer.close()
    topics = LogTopics(str(begun))
    assert topics.partition_count(TOPIC) == PARTITIONS
    assert topics.topic_id(TOPIC).bytes == read_topic_id(str(begun / str(PLACES[-1])))


def test_commands_of_a_begun_topic(begun: Path) -> None:
    with Consumer(begun, TOPIC, group_id="group", auto_offset_reset="earliest", consumer_timeout_ms=100) as consumer:
        wait_until(lambda: bool(read_all(consumer)) or consumer.assignment() == set(PLACES), "all are assigned")
    assert len(run("log", "cat", begun, "-t", TOPIC).splitlines()) == 3
    assert run("log", "cat", begun, "-t", TOPIC, "-p", "0") == ""
    (facts,) = json.loads(run("topics", "list", begun, "--json"))
    assert [part["partition"] for part in facts["partitions"]] == [0, 1, 2]
    assert facts["id"]
    assert "3 partitions" in run("topics", "describe", begun, TOPIC)
    run("log", "verify", begun)
    run("groups", "reset", begun, "group", "--topic", TOPIC, "--to", "earliest")
    run("groups", "describe", begun, "group")


def test_spark_reads_a_begun_topic(begun: Path) -> None:
    options = SparkSourceOptions.parse({"path": str(begun), "subscribe": TOPIC})
    reader = LogReader(begun)
    assert chosen_partitions(reader, options, must_exist=True) == PLACES
    assert starting_positions(reader, PLACES, options, default="earliest") == dict.fromkeys(PLACES, 0)
    assert latest_positions(reader, PLACES) == {**dict.fromkeys(PLACES, 0), PLACES[-1]: 3}


# --- shipping


def ship(path: Path, sink: MemorySink) -> int:
    with Shipper(path, sink, retry_backoff_ms=1, retry_backoff_max_ms=1) as shipper:
        return shipper.run(follow=False).record_count


def test_a_shipper_that_sees_a_topic_being_created_ships_each_record_once(begun: Path) -> None:
    sink = MemorySink(partitions=PARTITIONS)

    def is_shipped() -> bool:
        shipper.run_once(0)
        return shipper.progress().left_record_count == 0 and bool(sink.values(TOPIC, 0))

    (begun / str(PLACES[0])).mkdir()
    with Shipper(begun, sink, retry_backoff_ms=1, retry_backoff_max_ms=1) as shipper:
        assert shipper.open()
        append(begun, 0, first=100)
        wait_until(is_shipped, "all are shipped")
    assert all(position.topic_id for position in read_shipped(str(begun)).positions.values())
    assert ship(begun, sink) == 0
    assert len(sink.values(TOPIC, 0)) == len(sink.values(TOPIC, 2)) == 3


def test_a_position_that_a_former_version_wrote_without_an_id_stays(begun: Path) -> None:
    sink = MemorySink(partitions=PARTITIONS)
    assert ship(begun, sink) == 3
    shipped = read_shipped(str(begun))
    assert shipped.shipped_to is not None
    file = PositionsFile(str(begun), shipped, shipped.shipped_to)
    file.write({place: position._replace(topic_id="") for place, position in shipped.positions.items()})
    file.close()
    assert ship(begun, sink) == 0
    assert all(position.topic_id for position in read_shipped(str(begun)).positions.values())


def test_a_shipper_names_a_partition_with_records_and_without_an_id(begun: Path) -> None:
    (begun / str(PLACES[-1]) / "partition.metadata").unlink()
    sink = MemorySink(partitions=PARTITIONS)
    progress = Shipper(begun, sink).run(follow=False)
    assert "has no partition.metadata" in progress.refusals[PLACES[-1]]
    assert not sink.values(TOPIC, 2)
    append(begun, 0)
    with LogDirectory(begun) as log:
        log.partition(*PLACES[-1])
    assert ship(begun, sink) == 6


# --- deaths


def creation(path: Path) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        log = LogDirectory(path)
        return lambda: log.create_topic(TOPIC, PARTITIONS)

    return prepare


@SOME_OR_EACH
def test_a_death_at_any_step_of_a_creation_leaves_no_topic_or_a_complete_one(tmp_path: Path, stride: int) -> None:
    counts = set()
    for number in some_of_all(stride):
        path = tmp_path / str(number)
        if not dies_at_system_call(creation(path), number):
            break
        reader = LogReader(path)
        counts.add(len(reader.topic_partitions()))
        assert reader.topic_partitions() in ([], PLACES)
        assert [list(reader.partition(*place).records()) for place in reader.topic_partitions()] in ([], [[], [], []])
        append(path, 0)
        assert UNFINISHED not in os.listdir(path)
        with LogDirectory(path) as log:
            assert [log.partition(*place).log_end_offset for place in PLACES] == [3, 0, 0]
        assert len({read_topic_id(str(path / str(place))) for place in PLACES}) == 1
        assert ship(path, MemorySink(partitions=PARTITIONS)) == 3
    assert counts == {0, PARTITIONS}
    assert number > 10


def test_the_next_writer_removes_the_folder_of_a_dead_one(tmp_path: Path) -> None:
    with open_log(tmp_path):
        pass
    (tmp_path / UNFINISHED).mkdir()
    (tmp_path / UNFINISHED / "leader-epoch-checkpoint").write_text("0\n")
    assert LogReader(tmp_path).topics() == [TOPIC]
    with open_log(tmp_path):
        assert not (tmp_path / UNFINISHED).exists()


def test_a_deleted_folder_is_incomplete(tmp_path: Path) -> None:
    assert not _is_whole(str(tmp_path / "deleted"))
