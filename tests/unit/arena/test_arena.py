# SPDX-License-Identifier: Apache-2.0
"""Creating, finding, sharing and removing arenas, and every invalid call."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import pickle
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shmaccum import _native
from shmaccum.arena import Arena, VerifyDepth, tables
from shmaccum.arena.slot_word import SLOT_STATES
from shmaccum.exceptions import (
    ArenaClosedError,
    ArenaExistsError,
    ArenaForbiddenError,
    ArenaInUseError,
    ArenaNotFoundError,
    CorruptArenaError,
    InvalidArgumentError,
    LayoutMismatchError,
    NotAnArenaError,
    ShmaccumError,
    TableFullError,
    UnfinishedArenaError,
)
from shmaccum.producer import Producer
from tests.support.accumulator import Accumulator
from tests.support.arenas import SHARED_MEMORY, deliver_all
from tests.support.descriptors import open_files
from tests.support.processes import descriptor_limit, run_in_child

SMALL: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "process_count": 8}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.arena"


# --- a new arena


def test_a_new_arena_is_free_and_sound(arena: Arena) -> None:
    assert arena.verify(VerifyDepth.DEEP, is_idle=True) == []
    statistics = arena.statistics()
    assert statistics.slots == {"FREE": 16} | dict.fromkeys(
        ("GRANT", "OWNED", "OPEN", "READY", "DONE", "CONT", "BAD"), 0
    )
    assert (statistics.attached_process_count, statistics.sender_is_alive, statistics.poisoned) == (1, False, None)


def test_the_defaults_are_kafkas(arena_name: str) -> None:
    with Arena.create(arena_name) as arena:
        geometry = arena.geometry
    assert geometry["buffer_memory"] == 32 << 20
    assert geometry["batch_size"] == 16384
    assert geometry["slot_count"] == 2048
    assert geometry["record_size_max"] == 1 << 20
    assert geometry["oversized_bytes_max"] == 16 << 20


def test_options_survive_a_round_trip(arena_name: str) -> None:
    options = {"linger_ms": 5, "sink": "log", "nested": {"a": [1, None, b"x"]}}
    with Arena.create(arena_name, options=options, **SMALL), Arena.attach(arena_name) as other:
        assert other.options == options


def test_another_handle_sees_the_same_arena(arena: Arena) -> None:
    with Arena.attach(arena.name) as other:
        assert other.uuid == arena.uuid
        assert other.geometry == arena.geometry
        assert {arena.native.entry_index, other.native.entry_index} == {0, 1}
        assert arena.statistics().attached_process_count == 2


def test_a_slash_in_front_is_the_same_name(arena: Arena) -> None:
    with Arena.attach("/" + arena.name.removeprefix("/")) as other:
        assert other.uuid == arena.uuid


def test_a_path_is_a_file_with_reserved_space(path: Path) -> None:
    with Arena.create(path, **SMALL) as arena:
        found = path.stat()
        assert stat.S_IMODE(found.st_mode) == 0o600
        assert found.st_size == arena.native.size
        assert found.st_blocks * 512 >= arena.native.size
    assert Arena.exists(path)
    Arena.remove(path)
    assert not Arena.exists(path)


def test_the_file_is_open_twice_not_inherited_and_closed_by_close(path: Path) -> None:
    arena = Arena.create(path, **SMALL)
    assert len(open_files(path)) == 2
    assert not any(os.get_inheritable(descriptor) for descriptor in open_files(path))
    arena.close()
    assert open_files(path) == []


def test_a_failed_attach_leaves_no_descriptor(path: Path) -> None:
    path.write_bytes(b"no arena")
    path.chmod(0o600)
    with pytest.raises(NotAnArenaError):
        Arena.attach(path)
    path.chmod(0o666)
    with pytest.raises(ArenaForbiddenError):
        Arena.attach(path)
    assert open_files(path) == []


def test_repr_reports_name_size_and_state(arena: Arena) -> None:
    assert arena.name in repr(arena)
    assert "64 KiB in 16 buffers of 4 KiB, entry 0" in repr(arena)
    with Arena.open_read_only(arena.name) as reader:
        assert "read-only" in repr(reader)
    assert repr(reader) == f"<Arena {arena.name!r} closed>"


def test_pickled_it_attaches_again(arena: Arena) -> None:
    with pickle.loads(pickle.dumps(arena)) as other:
        assert other.uuid == arena.uuid
        assert other.native.entry_index != arena.native.entry_index


def test_pickled_read_only_it_stays_read_only(arena: Arena) -> None:
    with Arena.open_read_only(arena.name) as reader, pickle.loads(pickle.dumps(reader)) as other:
        assert other.native.is_read_only


def test_the_first_to_attach_recovers(arena_name: str) -> None:
    Arena.create(arena_name, **SMALL).close()
    with Arena.attach(arena_name) as first, Arena.attach(arena_name) as second:
        assert (first.native.was_recovered, second.native.was_recovered) == (True, False)
        assert first.native.arena_epoch == 1


def test_the_last_to_leave_in_order_leaves_it_clean(arena_name: str) -> None:
    arena = Arena.create(arena_name, **SMALL)
    with Arena.open_read_only(arena_name) as reader:
        assert not reader.native.is_clean
        arena.close()
        assert reader.native.is_clean


# --- names


def test_a_name_that_is_taken(arena: Arena) -> None:
    with pytest.raises(ArenaExistsError, match="attach to it, or remove it first") as caught:
        Arena.create(arena.name, **SMALL)
    assert isinstance(caught.value, FileExistsError)
    assert arena.verify(VerifyDepth.DEEP) == []


@pytest.mark.parametrize("open_it", [Arena.attach, Arena.open_read_only, Arena.remove])
def test_a_name_that_is_missing(open_it: Callable[[str], Any], arena_name: str, path: Path) -> None:
    for name in (arena_name, str(path)):
        with pytest.raises(ArenaNotFoundError, match="create it first") as caught:
            open_it(name)
        assert isinstance(caught.value, FileNotFoundError)


def test_removing_what_is_missing_may_be_meant(arena_name: str) -> None:
    Arena.remove(arena_name, missing_ok=True)


@pytest.mark.parametrize("name", ["", "/", "//", "a\0b", ".", "..", "/..", "x" * 255])
def test_a_name_that_cannot_be(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be the name"):
        Arena.create(name, **SMALL)


def test_a_name_of_another_type() -> None:
    names: list[Any] = [7, None, b"bytes"]
    for name in names:
        with pytest.raises(TypeError):
            Arena.create(name, **SMALL)


def test_a_name_with_a_slash_inside_is_a_path_whose_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Arena.create(tmp_path / "missing" / "x.arena", **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_removed_it_is_still_there_for_those_attached(arena_name: str) -> None:
    with Arena.create(arena_name, **SMALL) as arena:
        assert arena.is_linked()
        Arena.remove(arena_name)
        assert not arena.is_linked()
        assert arena.verify(VerifyDepth.DEEP) == []
        assert run_in_child(arena.native.check_name) == repr("begun")


# --- sizes


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"buffer_memory": "2KiB"}, r"buffer_memory \(2KiB\) is smaller than batch_size \(4KiB\)"),
        ({"buffer_memory": 0}, "buffer_memory is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 61}, "batch_size is 61"),
        ({"batch_size": "1GiB", "buffer_memory": "4GiB"}, "batch_size"),
        ({"buffer_memory": "64 mib"}, "is not a size"),
        ({"buffer_memory": -1}, "negative"),
        ({"buffer_memory": 2**70}, r"buffer_memory .* at most"),
        ({"buffer_memory": 2**40}, r"buffer_memory .* make batch_size larger"),
        ({"buffer_memory": "64QiB"}, "is not a size"),
        ({"process_count": 2**70}, "process_count is"),
        ({"process_count": 0}, "process_count is 0"),
        ({"process_count": 5000}, "process_count is 5000"),
        ({"waiter_count": 5000}, "waiter_count is 5000"),
        ({"waiter_count": -1}, "waiter_count is -1"),
        ({"topic_count": 0}, "topic_count is 0"),
        ({"partition_count": 2**40}, "partition_count is"),
        ({"completion_count": 2**31}, "completion_count is"),
        ({"completion_count": 0}, "completion_count is 0"),
        ({"completion_count": -1}, "completion_count is -1"),
        ({"oversized_max_bytes": -1}, "negative"),
        ({"max_request_size": "1GiB"}, "record_size_max is"),
        ({"max_request_size": 10}, "record_size_max is 10"),
    ],
)
def test_a_number_that_cannot_be(arena_name: str, sizes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence) as caught:
        Arena.create(arena_name, **(SMALL | sizes))
    assert isinstance(caught.value, ValueError)
    assert not Arena.exists(arena_name)


@pytest.mark.parametrize(
    "sizes",
    [
        {"buffer_memory": 1.5},
        {"buffer_memory": None},
        {"batch_size": True},
        {"process_count": "eight"},
        {"topic_count": None},
        {"completion_count": 1.5},
    ],
)
def test_a_number_of_another_type(arena_name: str, sizes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(sizes))):
        Arena.create(arena_name, **(SMALL | sizes))
    assert not Arena.exists(arena_name)


def test_options_that_are_too_large(arena_name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"options take .* an arena stores at most 2048"):
        Arena.create(arena_name, options={"x": "y" * 3000}, **SMALL)
    assert not Arena.exists(arena_name)


def test_a_full_file_system_is_an_error_at_creation(arena_name: str) -> None:
    whole = os.statvfs(SHARED_MEMORY)  # more than all of it: rejected before any page is taken
    too_much = (whole.f_blocks * whole.f_frsize // 2**20 + 64) * 2**20
    with pytest.raises(OSError, match=r"/dev/shm has no space .* free some there") as caught:
        Arena.create(arena_name, buffer_memory=too_much, batch_size="16MiB")
    assert caught.value.errno == errno.ENOSPC
    assert not Arena.exists(arena_name)


# --- files that are no arena


def test_an_empty_file_is_unfinished(path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0o600)
    with pytest.raises(UnfinishedArenaError, match="remove it and create it again"):
        Arena.attach(path)


def test_garbage_is_no_arena(path: Path) -> None:
    path.write_bytes(os.urandom(100_000))
    path.chmod(0o600)
    with pytest.raises(NotAnArenaError):
        Arena.attach(path)
    assert path.stat().st_size == 100_000


def damage(path: Path, position: int, content: bytes) -> None:
    with open(path, "r+b") as stream:
        stream.seek(position)
        stream.write(content)


def test_another_layout_is_refused(path: Path) -> None:
    Arena.create(path, **SMALL).close()
    damage(path, 8, (99).to_bytes(4, "little"))
    with pytest.raises(LayoutMismatchError, match="layout version 99"):
        Arena.attach(path)


def test_a_superblock_that_contradicts_itself_is_corrupt(path: Path) -> None:
    Arena.create(path, **SMALL).close()
    damage(path, 64, b"\xff" * 8)
    with pytest.raises(CorruptArenaError):
        Arena.attach(path)


SUPERBLOCK_SIZE_USED = 1025  # its fields, and an empty map of options


def test_a_superblock_with_any_byte_changed_is_refused_and_left_as_it_is(path: Path) -> None:
    Arena.create(path, **SMALL).close()
    sound = path.read_bytes()
    for position in range(SUPERBLOCK_SIZE_USED):
        damage(path, position, bytes([sound[position] ^ 0x81]))
        damaged = path.read_bytes()
        for open_it in (Arena.attach, Arena.open_read_only):
            with pytest.raises((NotAnArenaError, LayoutMismatchError, CorruptArenaError)):
                open_it(path)
        assert path.read_bytes() == damaged
        damage(path, position, sound[position : position + 1])
    Arena.attach(path).close()


@pytest.mark.parametrize("size", [100, 4096, 65536])
def test_a_truncated_file_is_refused(path: Path, size: int) -> None:
    Arena.create(path, **SMALL).close()
    os.truncate(path, size)
    with pytest.raises(CorruptArenaError):
        Arena.attach(path)


def test_a_symbolic_link_is_refused(path: Path, tmp_path: Path) -> None:
    Arena.create(path, **SMALL).close()
    link = tmp_path / "link.arena"
    link.symlink_to(path)
    for open_it in (Arena.attach, Arena.open_read_only):
        with pytest.raises(NotAnArenaError, match="symbolic link"):
            open_it(link)
    assert Arena.exists(link)
    with pytest.raises(ArenaExistsError):
        Arena.create(link, **SMALL)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAnArenaError, match="folder"):
        Arena.attach(tmp_path)


def test_a_device_is_refused() -> None:
    with pytest.raises(NotAnArenaError, match="not a regular file"):
        Arena.attach("/dev/null", mode=0o777)


@pytest.mark.parametrize("kind", ["fifo", "socket"])
@pytest.mark.parametrize("place", ["shared memory", "file"])
def test_what_never_answers_is_refused_at_once(arena_name: str, socket_folder: Path, kind: str, place: str) -> None:
    """Any user may create it under an arena's future name. An open must not block on it."""
    planted = SHARED_MEMORY / arena_name if place == "shared memory" else socket_folder / "x.arena"
    name = arena_name if place == "shared memory" else planted
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        if kind == "fifo":
            os.mkfifo(planted, 0o600)
        else:
            listener.bind(str(planted))
        try:
            for open_it in (Arena.attach, Arena.open_read_only):
                with pytest.raises(NotAnArenaError, match="not a regular file"):
                    open_it(name)
            assert Arena.exists(name)
            with pytest.raises(ArenaExistsError):
                Arena.create(name, **SMALL)
        finally:
            planted.unlink()


def test_removing_leaves_alone_what_never_was_an_arena(path: Path) -> None:
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(NotAnArenaError, match=r"x\.arena: this is not a shmaccum arena"):
        Arena.remove(path)
    assert path.exists()


def test_an_arena_in_a_folder_that_is_not_there_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"does not exist.*/missing'"):
        Arena.create(tmp_path / "missing" / "x.arena")


@pytest.mark.parametrize("name", [3, None, b"events", {"bootstrap.servers": "localhost:9092"}])
def test_what_is_no_name_is_a_type_error(name: Any) -> None:
    with pytest.raises(TypeError, match="an arena's name is a str or a path, not "):
        Arena.attach(name)


# --- owner and mode


def test_an_arena_open_to_others_is_refused_unless_it_is_meant(arena_name: str) -> None:
    with Arena.create(arena_name, mode=0o660, **SMALL):
        with pytest.raises(ArenaForbiddenError, match="0o660") as caught:
            Arena.attach(arena_name)
        assert isinstance(caught.value, PermissionError)
        with Arena.attach(arena_name, mode=0o660) as other:
            assert other.mode == 0o660


def test_the_mode_does_not_depend_on_the_umask(path: Path) -> None:
    former = os.umask(0o077)
    try:
        Arena.create(path, mode=0o660, **SMALL).close()
    finally:
        os.umask(former)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_an_arena_of_another_user_is_refused(path: Path) -> None:
    Arena.create(path, **SMALL).close()
    os.chown(path, 12345, -1)
    with pytest.raises(ArenaForbiddenError, match="belongs to user 12345"):
        Arena.attach(path)


# --- entries


def test_when_every_process_entry_is_taken(arena_name: str) -> None:
    with Arena.create(arena_name, **(SMALL | {"process_count": 2})) as arena:
        with Arena.attach(arena_name), pytest.raises(TableFullError, match="process_count"):
            Arena.attach(arena_name)
        assert arena.verify(VerifyDepth.DEEP) == []
        Arena.attach(arena_name).close()


@pytest.mark.parametrize("count", [64, pytest.param(1024, marks=pytest.mark.slow)])
def test_as_many_are_attached_as_the_table_has_entries(arena_name: str, count: int) -> None:
    with descriptor_limit(1024 * 3), Arena.create(arena_name, **(SMALL | {"process_count": count})) as arena:
        handles = [Arena.attach(arena_name) for _ in range(count - 1)]
        try:
            assert sorted(handle.native.entry_index or 0 for handle in handles) == list(range(1, count))
            assert arena.statistics().attached_process_count == count
            with pytest.raises(TableFullError):
                Arena.attach(arena_name)
        finally:
            for handle in handles:
                handle.close()
        assert arena.statistics().attached_process_count == 1


# --- read-only


def test_read_only_takes_no_entry_and_changes_nothing(arena: Arena, accumulator: Accumulator) -> None:
    accumulator.append("t", 0, 1, None, b"v")
    with Arena.open_read_only(arena.name) as reader:
        assert reader.native.entry_index is None
        assert reader.statistics().slots["OPEN"] == 1
        assert reader.native.partitions() == [("t", 0)]
        assert [process["pid"] for process in reader.native.processes() if process["alive"]] == [os.getpid()]
        assert reader.verify(VerifyDepth.DEEP) == []
        with pytest.raises(ArenaClosedError):
            Accumulator(reader)
        with pytest.raises(ArenaClosedError):
            reader.native.set_sender_asleep(True)
    accumulator.become_sender()
    accumulator.abort()


def test_what_recovery_would_do_is_reported_without_doing_it(arena: Arena, sender: Accumulator) -> None:
    sender.append_many("t", 0, [b"v"] * 10)
    plan = arena.native.recovery_plan()
    assert (plan["sealed_count"], plan["record_count"], plan["is_same_boot"]) == (1, 10, 1)
    assert arena.statistics().slots["OPEN"] == 1
    sender.abort()


# --- close


def test_close_twice_is_close(arena_name: str) -> None:
    arena = Arena.create(arena_name, **SMALL)
    arena.close()
    arena.close()
    assert arena.closed


@pytest.mark.parametrize(
    "use",
    [
        lambda arena: arena.geometry,
        lambda arena: arena.statistics(),
        lambda arena: arena.verify(),
        lambda arena: arena.native.region("slot_headers"),
        lambda arena: _native.BufferWait.join(arena.native, 1),
        lambda arena: arena.native.processes(),
        Accumulator,
    ],
)
def test_use_after_close(arena_name: str, use: Callable[[Arena], Any]) -> None:
    arena = Arena.create(arena_name, **SMALL)
    arena.close()
    with pytest.raises(ArenaClosedError, match="attach to it again"):
        use(arena)


def test_close_is_refused_while_an_accumulator_is_open(arena_name: str) -> None:
    arena = Arena.create(arena_name, **SMALL)
    accumulator = Accumulator(arena)
    with pytest.raises(ArenaInUseError, match="open producers and senders: 2"):
        arena.close()
    accumulator.close()
    arena.close()


def test_an_open_producer_does_not_hide_the_exception_of_a_block(arena_name: str) -> None:
    arena = Arena.create(arena_name, **SMALL)
    accumulator = Accumulator(arena)
    with pytest.raises(ZeroDivisionError), arena:
        raise ZeroDivisionError
    with pytest.raises(ArenaInUseError), arena:
        pass
    accumulator.close()
    arena.close()


def test_close_is_refused_while_a_table_is_looked_at(arena_name: str) -> None:
    arena = Arena.create(arena_name, **SMALL)
    table = arena.slot_table()
    with pytest.raises(ArenaInUseError, match="exported buffers: 1") as caught:
        arena.close()
    assert isinstance(caught.value, BufferError)
    assert len(table) == 16
    del table
    gc.collect()
    arena.close()


def test_a_memory_that_was_let_go_of_is_not_looked_at_again(arena_name: str) -> None:
    """The object of a memoryview outlives the view, but not the mapping."""
    arena = Arena.create(arena_name, **SMALL)
    memory = arena.native.region("slot_data")
    behind = memory.obj
    again = memoryview(behind)
    memory.release()
    with pytest.raises(ArenaInUseError, match="exported buffers: 1"):
        arena.close()
    again.release()
    with pytest.raises(BufferError, match="get another one from the arena or the batch"):
        memoryview(behind)
    arena.close()
    with pytest.raises(BufferError):
        memoryview(behind)


def test_a_mapping_lives_as_long_as_its_views(arena_name: str) -> None:
    table = Arena.create(arena_name, **SMALL).slot_table()
    gc.collect()
    assert (table["word"] == 0).all()
    Arena.remove(arena_name)


# --- tables


def test_the_tables_agree_with_the_c_side(arena: Arena, sender: Accumulator) -> None:
    token = sender.append("t", 3, 1234, b"k", b"v")
    sender.append("t", 3, 1300, b"k", b"v")
    slot = arena.slot_table()[token.slot_index]
    words = arena.slot_table()["word"]
    assert tables.slot_state(words)[token.slot_index] == SLOT_STATES.index("OPEN")
    assert tables.slot_record_count(words)[token.slot_index] == 2
    assert slot["partition_index"] == token.partition_index
    assert slot["seq"] == token.seq
    assert slot["base_timestamp_ms"] == 1234
    assert slot["meta"][0]["max_timestamp_ms"] == 1300
    assert slot["created_ns"] <= arena.native.now_ns()
    partition = arena._table("partitions")[token.partition_index]
    assert (partition["partition"], partition["next_seq"]) == (3, token.seq + 1)
    process = arena._table("processes")[arena.native.entry_index]
    assert process[["pid", "record_count", "writing"]].item() == (os.getpid(), 2, 0)
    sender.abort()
    completion = arena.completion_table()[0]
    assert (completion["number"], completion["seq"], completion["record_count"]) == (1, token.seq, 2)
    del slot, words, partition, process, completion


@pytest.mark.parametrize("region", list(tables.DTYPES))
def test_every_dtype_has_the_size_of_its_struct(arena: Arena, region: str) -> None:
    sizes = dict.fromkeys(("processes", "topics", "partitions", "slot_headers"), 128)
    sizes |= dict.fromkeys(("waiters", "completions"), 64)
    assert tables.DTYPES[region].itemsize == sizes[region]
    assert arena.native.region(region).nbytes % sizes[region] == 0


def test_tables_are_read_only(arena: Arena) -> None:
    table = arena.slot_table()
    with pytest.raises(ValueError, match="read-only"):
        table["word"][0] = np.uint64(1)
    with pytest.raises(TypeError):
        arena.native.region("globals")[0] = 1
    with pytest.raises(KeyError):
        arena.native.region("nonsense")


# --- small facts


def test_topics_carry_what_the_sink_reported(arena: Arena) -> None:
    assert arena.native.topic_partition_count("t") == 0
    arena.native.set_topic_partition_count("t", 12)
    with Arena.attach(arena.name) as other:
        assert other.native.topic_partition_count("t") == 12
    assert arena.native.topics() == ["t"]


def test_errors_are_recorded_once_and_counted(arena: Arena) -> None:
    for _ in range(3):
        arena.native.record_error("something")
    (error,) = arena.native.errors()
    assert (error["text"], error["count"]) == ("something", 3)
    assert error["first_ns"] <= error["last_ns"]


def test_the_sender_is_known_to_all_also_when_it_is_gone(arena: Arena) -> None:
    assert arena.native.sender()["entry"] is None
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        accumulator.set_producer_id(71, 3)
        accumulator.maintain()
        facts = arena.native.sender()
    assert facts["entry"] == arena.native.entry_index
    assert (facts["epoch"], facts["producer_id"], facts["producer_epoch"]) == (1, 71, 3)
    assert 0 < facts["heartbeat_ns"] <= arena.native.now_ns()
    assert facts["sink_name"] == b""
    assert arena.native.sender() == facts | {"entry": None, "sink_name": None}


def test_a_manual_clock_stands_still(arena: Arena) -> None:
    arena.native.set_manual_clock(5)
    assert (arena.native.now_ns(), arena.native.has_manual_clock) == (5, True)
    arena.native.set_manual_clock(None)
    assert arena.native.now_ns() > 5
    assert not arena.native.has_manual_clock


def test_one_process_writes_to_the_wake_fifo(arena: Arena) -> None:
    assert not arena.native.take_sleep_flag()
    arena.native.set_sender_asleep(True)
    assert [arena.native.take_sleep_flag() for _ in range(3)] == [True, False, False]


# --- topics


def test_records_can_be_sent_before_any_sender_has_run(arena_name: str) -> None:
    with Arena.create(arena_name, topics={"flights": 4, "airports": 1}, **SMALL) as arena:
        producer = Producer(arena, max_block_ms=0)
        assert producer.partitions_for("flights") == {0, 1, 2, 3}
        producer.send("airports", b"AMS")
        arena.declare_topic("runways", 2)
        producer.send("runways", b"18R")
        producer.close(timeout=0)
    with Arena.attach(arena_name) as arena, Accumulator(arena) as sender:
        sender.become_sender()
        assert sorted(filter(None, deliver_all(sender))) == [b"18R", b"AMS"]


def test_a_topic_is_declared_again_only_with_the_number_it_has(arena: Arena) -> None:
    arena.declare_topic("flights", 4)
    arena.declare_topic("flights", 4)
    with pytest.raises(InvalidArgumentError, match=r"'flights' already has 4 partitions in .*, not 5: declare"):
        arena.declare_topic("flights", 5)
    assert arena.native.topic_partition_count("flights") == 4


@pytest.mark.parametrize("partitions", [0, -1, 17])
def test_a_topic_has_as_many_partitions_as_the_arena_has_room_for(arena_name: str, partitions: int) -> None:
    with Arena.create(arena_name, partition_count=16, **SMALL) as arena:
        with pytest.raises(InvalidArgumentError, match=f"'x' cannot have {partitions} partitions: give it 1 to 16"):
            arena.declare_topic("x", partitions)
        assert arena.native.topics() == []


def test_a_topic_is_declared_by_a_name_and_a_whole_number_only(arena: Arena) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a topic name"):
        arena.declare_topic("a topic", 1)
    with pytest.raises(TypeError):
        arena.declare_topic("flights", 1.5)  # type: ignore[arg-type]
    assert arena.native.topics() == []


def test_a_reader_declares_no_topic(arena: Arena) -> None:
    with Arena.open_read_only(arena.name) as reader, pytest.raises(ArenaClosedError):
        reader.declare_topic("flights", 1)


@pytest.mark.parametrize("topics", [{"flights": 4, "not a name": 1}, {"flights": 0}, {"a": 1, "b": 1, "c": 1}])
def test_an_arena_that_cannot_have_its_topics_is_not_made(arena_name: str, topics: dict[str, int]) -> None:
    with pytest.raises(ShmaccumError):
        Arena.create(arena_name, topics=topics, topic_count=2, **SMALL)
    assert not Arena.exists(arena_name)
