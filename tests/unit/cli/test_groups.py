# SPDX-License-Identifier: Apache-2.0
"""``shmaccum groups`` shows lag, moves offsets, and disturbs no active group."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.structs import TopicPartition as KafkaTopicPartition

from shmaccum import Consumer
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.reader import LogReader
from shmaccum.log.groups import members
from shmaccum.log.groups.export import partition_of
from shmaccum.log.groups.offsets_file import Committed, GroupLock, OffsetsFile
from tests.support.log_server import served
from tests.support.segment_log import START_MS, TOPIC, make_batches, open_log
from tests.unit.cli.conftest import Shell

GROUP = "readers/ä"
RECORD_COUNT = 30


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two partitions of 30 records, and a group that has consumed 12 of the first."""
    path = tmp_path / "log"
    with open_log(path) as directory:
        directory.create_topic(TOPIC, 2)
        for partition in range(2):
            directory.partition(TOPIC, partition).append(make_batches(RECORD_COUNT // 3))
    commit(path, {TopicPartition(TOPIC, 0): 12})
    return path


def commit(path: Path, offsets: dict[TopicPartition, int]) -> None:
    file = OffsetsFile(os.fspath(path), GROUP, is_writer=True)
    file.commit({place: Committed(offset, 0, "note", START_MS) for place, offset in offsets.items()})
    file.close()


def test_a_name_that_a_client_chose_moves_no_cursor_and_begins_no_line(shell: Shell, log: Path) -> None:
    name, note = "a\x1b[2J\nTWO\r\u202e", "n\x07\x9b1A\nTHREE"
    file = OffsetsFile(os.fspath(log), name, is_writer=True)
    file.commit({TopicPartition(TOPIC, 0): Committed(1, 0, note, START_MS)})
    file.close()
    for command in ("list", "describe", "delete"):
        said = shell("groups", command, str(log), *[name] * (command != "list")).stdout
        assert all(letter.isprintable() or letter == "\n" for letter in said)
        assert not any(line.startswith(("TWO", "THREE")) for line in said.splitlines())
    assert "has no group" in shell("groups", "describe", str(log), name, code=2).stderr


def offsets(shell: Shell, log: Path) -> dict[int, int]:
    return {one["partition"]: one["offset"] for one in shell.json("groups", "describe", str(log), GROUP)["partitions"]}


def test_groups_are_listed_and_described_with_their_lag(shell: Shell, log: Path) -> None:
    commit(log, {TopicPartition("gone", 0): 5})
    (facts,) = shell.json("groups", "list", str(log))
    assert (facts["group"], facts["state"], facts["lag"], facts["members"]) == (GROUP, "Empty", 18, [])
    assert [(one["topic"], one["lag"]) for one in facts["partitions"]] == [(TOPIC, 18), ("gone", None)]
    assert GROUP in shell("groups", "list", str(log)).stdout
    shown = shell("groups", "describe", str(log), GROUP).stdout.splitlines()
    assert shown[0] == f"{GROUP}: Empty, 0 members, lag 18"
    assert shown[2].split() == ["flights-0", "12", "30", "18", "note"]
    assert shown[3].split() == ["gone-0", "5", "gone", "-", "note"]


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("earliest", 0),
        ("latest", 30),
        ("7", 7),
        ("99", 30),
        ("-4", 26),
        (f"s@{START_MS + 2001}", 7),
        (f"s@{START_MS * 2}", 30),
    ],
)
def test_offsets_are_moved(shell: Shell, log: Path, target: str, wanted: int) -> None:
    shell("groups", "reset", str(log), GROUP, "--to", target, "--dry-run")
    assert offsets(shell, log) == {0: 12}
    found = shell.json("groups", "reset", str(log), GROUP, "--to", target)
    assert found["partitions"] == [{"topic": TOPIC, "partition": 0, "from": 12, "to": wanted}]
    assert offsets(shell, log) == {0: wanted}
    shell("groups", "reset", str(log), GROUP, "--to", target, "-t", TOPIC)
    assert offsets(shell, log) == {0: wanted, 1: wanted}


def test_a_new_group_starts_at_the_requested_place(shell: Shell, log: Path) -> None:
    assert "name a topic with --topic" in shell("groups", "reset", str(log), "new", "--to", "3", code=2).stderr
    shell("groups", "reset", str(log), "new", "--to", "3", "-t", TOPIC, "-p", "1")
    (facts,) = [one for one in shell.json("groups", "list", str(log)) if one["group"] == "new"]
    assert [(one["partition"], one["offset"]) for one in facts["partitions"]] == [(1, 3)]


def test_a_deleted_group_is_gone(shell: Shell, log: Path) -> None:
    assert shell("groups", "delete", str(log), GROUP).stdout == f"{GROUP} was deleted with 1 offset\n"
    assert shell.json("groups", "list", str(log)) == []
    assert "it has none" in shell("groups", "delete", str(log), GROUP, code=2).stderr


def test_a_group_whose_lock_another_process_holds_is_left_alone(shell: Shell, log: Path) -> None:
    lock = GroupLock(os.fspath(log), GROUP)
    for arguments in (["reset", str(log), GROUP, "--to", "0"], ["delete", str(log), GROUP]):
        assert "is not a server" in shell("groups", *arguments, code=2).stderr
    assert offsets(shell, log) == {0: 12}
    lock.write_address("127.0.0.1:1")
    assert "did not answer" in shell("groups", "delete", str(log), GROUP, code=2).stderr
    lock.release()
    shell("groups", "delete", str(log), GROUP)


def test_a_group_that_consumers_share_on_this_host_is_shown_and_left_alone(shell: Shell, log: Path) -> None:
    with contextlib.closing(Consumer(f"log:{log}", group_id=GROUP)) as living:
        living.subscribe([TOPIC])
        living.poll(timeout_ms=100)
        facts = shell.json("groups", "describe", str(log), GROUP)
        (member,) = facts["members"]
        assert (facts["state"], member["pid"], member["is_stopped"]) == ("Local", os.getpid(), False)
        assert member["partitions"] == [f"{TOPIC}-0", f"{TOPIC}-1"]
        shown = shell("groups", "describe", str(log), GROUP).stdout
        assert f"process {os.getpid()} has {TOPIC}-0, {TOPIC}-1" in shown
        for arguments in (["reset", str(log), GROUP, "--to", "0"], ["delete", str(log), GROUP]):
            assert "without a server" in shell("groups", *arguments, code=2).stderr
    assert shell.json("groups", "describe", str(log), GROUP)["state"] == "Empty"


def test_a_stopped_member_is_shown(shell: Shell, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "is_stopped", lambda _pid: True)
    with contextlib.closing(Consumer(f"log:{log}", TOPIC, group_id=GROUP)):
        assert "1 (1 stopped)" in shell("groups", "list", str(log)).stdout
        shown = shell("groups", "describe", str(log), GROUP).stdout
        assert f"process {os.getpid()} is stopped and holds {TOPIC}-0, {TOPIC}-1" in shown


def consumer(address: str) -> KafkaConsumer:
    found = KafkaConsumer(TOPIC, bootstrap_servers=address, group_id=GROUP, auto_offset_reset="earliest")
    while not found.poll(timeout_ms=100):
        pass
    return found


def test_a_served_group_is_changed_through_its_server_and_never_while_it_lives(shell: Shell, log: Path) -> None:
    with served(log, is_writable=False) as address:
        with contextlib.closing(consumer(address)) as living:
            facts = shell.json("groups", "describe", str(log), GROUP)
            assert (facts["state"], len(facts["members"])) == ("Stable", 1)
            for arguments in (["reset", str(log), GROUP, "--to", "0"], ["delete", str(log), GROUP]):
                assert "has live members" in shell("groups", *arguments, code=2).stderr
            living.commit()
        shell("groups", "reset", str(log), GROUP, "--to", "29", "-t", TOPIC)
        with contextlib.closing(consumer(address)) as next_one:
            places = [KafkaTopicPartition(TOPIC, partition) for partition in range(2)]
            assert [next_one.committed(place) for place in places] == [29, 29]
        shell("groups", "delete", str(log), GROUP)
        assert shell.json("groups", "list", str(log)) == []


def test_exported_offsets_are_records_as_kafka_s_own(shell: Shell, log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert shell("groups", "export", str(log), str(out)).stdout == f"1 group with 1 offset were written to {out}\n"
    (record,) = LogReader(out).partition("__consumer_offsets", partition_of(GROUP)).records()
    key: Any = record.key
    name = GROUP.encode()
    assert key == struct.pack(">hh", 1, len(name)) + name + struct.pack(">h", 7) + b"flights" + struct.pack(">i", 0)
    assert record.value == struct.pack(">hqih", 3, 12, 0, 4) + b"note" + struct.pack(">q", START_MS)
    assert "name a new directory" in shell("groups", "export", str(log), str(out), code=2).stderr
    assert "into itself" in shell("groups", "export", str(log), str(log), code=2).stderr


@pytest.mark.parametrize(("group_id", "partition"), [("g", 3), ("hello", 22), ("polygenelubricants", 0)])
def test_a_group_is_in_the_partition_of_java_s_hash(group_id: str, partition: int) -> None:
    assert partition_of(group_id) == partition
