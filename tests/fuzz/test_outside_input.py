# SPDX-License-Identifier: Apache-2.0
"""Input from outside is accepted, or rejected with an exception of shmaccum: names, options, arguments, small files.

hypothesis draws the input, and finds the smallest one that fails. Hostile arenas, batches, Arrow data and segments have
their own fuzzers in this folder.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import struct
from pathlib import Path
from typing import Any, NamedTuple

import crc32c
import msgpack
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shmaccum import _native
from shmaccum.arena import Arena
from shmaccum.cli import live, main
from shmaccum.common.units import parse_duration_ms, parse_percent, parse_size
from shmaccum.exceptions import CorruptArenaError, InvalidArgumentError, ShmaccumError
from shmaccum.log.files.reader import LogReader
from shmaccum.log.files.small_files import read_offsets_checkpoint
from shmaccum.observe.inspection import export
from shmaccum.producer import Producer
from tests.support.accumulator import Accumulator
from tests.support.arenas import deliver_all
from tests.support.segment_log import TOPIC, make_batch, make_batches, open_log, partition_folder

some = settings(max_examples=60)
few = settings(some, max_examples=25)
_numbers = itertools.count()

QUANTITY = st.text(alphabet="0123456789.kKmMiBst %-", max_size=8) | st.text(max_size=5) | st.integers() | st.floats()
OTHERS = st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
ANYTHING = OTHERS | st.integers()
PACKABLE = OTHERS | st.integers(-(2**63), 2**64 - 1)
"""The values that msgpack can encode."""


# --- numbers with units


@pytest.mark.parametrize("parse", [parse_size, parse_duration_ms, parse_percent])
@some
@given(text=QUANTITY)
def test_any_quantity_is_a_number_or_refused(parse: Any, text: Any) -> None:
    with contextlib.suppress(InvalidArgumentError, TypeError):
        assert parse(text) >= 0


# --- names


@some
@given(name=st.text(max_size=300) | st.text(alphabet="/.a\0", max_size=12) | ANYTHING)
@example("\udc80\ud800")
@example("/" + "x" * 5000)
def test_any_name_is_looked_for_or_refused(name: Any) -> None:
    for use in (Arena.exists, Arena.attach, Arena.open_read_only):
        with contextlib.suppress(ShmaccumError, OSError, TypeError):
            use(name)


# --- the option blob of a superblock

CRC_AT, COVERED_FROM, SIZE_AT, OPTIONS_AT, OPTIONS_MAX = 12, 16, 272, 1024, 2048


def options_write(path: Path, blob: bytes) -> None:
    """Replace the options, and correct the superblock's checksum."""
    with path.open("r+b") as file:
        head = bytearray(file.read(OPTIONS_AT + OPTIONS_MAX))
        struct.pack_into("<I", head, SIZE_AT, len(blob))
        head[OPTIONS_AT : OPTIONS_AT + len(blob)] = blob
        struct.pack_into("<I", head, CRC_AT, crc32c.crc32c(bytes(head[COVERED_FROM : OPTIONS_AT + len(blob)])))
        file.seek(0)
        file.write(head)


@pytest.fixture(scope="module")
def closed_arena(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of an arena with some batches and no attached process."""
    path = tmp_path_factory.mktemp("arenas") / "closed.arena"
    arena = Arena.create(path, buffer_memory="32KiB", batch_size="4KiB", process_count=4, waiter_count=4)
    with arena, Accumulator(arena) as accumulator:
        for partition in range(3):
            accumulator.append("topic", partition, None, None, b"%d" % partition)
    return path


def command(*arguments: str) -> int:
    """Run ``shmaccum``, which must exit with one of its codes and without a traceback. Return the code."""
    result = CliRunner().invoke(main, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 1, 2), result.output
    return result.exit_code


@few
@given(blob=st.binary(max_size=40) | st.recursive(PACKABLE, st.lists, max_leaves=5).map(msgpack.packb))
@example(msgpack.packb([-(2**63), 2**64 - 1]))
@example(msgpack.packb({"a": 1}) + b"\0")
@example(b"\x91" * 2000)
@example(msgpack.packb({1: [msgpack.ExtType(1, b"x")]}))
def test_any_options_in_an_arena_are_read_or_refused(
    closed_arena: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blob: bytes
) -> None:
    monkeypatch.setattr(live, "ONE_SHOT_S", 0.0)
    path = tmp_path / "options.arena"
    shutil.copyfile(closed_arena, path)
    path.chmod(0o600)
    options_write(path, blob)
    with Arena.open_read_only(path) as arena, contextlib.suppress(CorruptArenaError):
        assert isinstance(arena.options, dict)
    for name in ("stat", "inspect", "check"):
        assert command(name, str(path), "--json") == 0
        assert command(name, str(path)) == 0


# --- a damaged arena is exported


@few
@given(damages=st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=9)), max_size=12))
def test_whatever_is_in_an_arena_is_exported_or_refused(
    closed_arena: Path, tmp_path: Path, damages: list[tuple[int, bytes]]
) -> None:
    path = tmp_path / "damaged.arena"
    content = bytearray(closed_arena.read_bytes())
    for place, damage in damages:
        at = 4096 + place % (len(content) - 4096 - len(damage))
        content[at : at + len(damage)] = damage
    path.write_bytes(content)
    path.chmod(0o600)
    with contextlib.suppress(ShmaccumError, FileExistsError), Arena.open_read_only(path) as arena:
        export(arena, tmp_path / f"export-{next(_numbers)}")
    command("recover", str(path), "--export", str(tmp_path / f"export-{next(_numbers)}"))


# --- arguments of a producer


@few
@given(
    topic=ANYTHING,
    value=ANYTHING,
    named=st.fixed_dictionaries(
        {},
        optional={
            "key": ANYTHING,
            "headers": ANYTHING | st.lists(ANYTHING | st.tuples(ANYTHING, ANYTHING), max_size=3),
            "partition": ANYTHING,
            "timestamp_ms": ANYTHING,
            "other": ANYTHING,
        },
    ),
)
def test_anything_is_sent_or_refused(arena: Arena, topic: Any, value: Any, named: dict[str, Any]) -> None:
    with Producer(arena, max_block_ms=0) as producer, Accumulator(arena) as sender:
        sender.become_sender()
        with contextlib.suppress(ShmaccumError, TypeError, ValueError, OverflowError):
            producer.send(topic, value, **named)
            assert deliver_all(sender) == [value]
        deliver_all(sender)


# --- arguments of commands that only look

WORDS = ["--json", "--help", "--slot", "--mode", "--records", "-1", "0", "7", "--dry-run", "--state", "READY", "--from"]


@some
@given(
    name=st.sampled_from(["inspect", "check", "recover", "log"]),
    rest=st.lists(st.sampled_from(WORDS) | st.text(max_size=6).filter(lambda text: "\0" not in text), max_size=5),
)
def test_any_arguments_are_understood_or_refused(closed_arena: Path, name: str, rest: list[str]) -> None:
    if name == "recover":
        rest = [*rest, "--dry-run"]
    command(name, str(closed_arena), *rest)


# --- records as bytes


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Any, ...]


RECORD_BYTES = make_batch([b"one", None, b"three"], headers=[("name", b"value")]).wire[61:]


@some
@given(
    cut=st.tuples(st.integers(0, len(RECORD_BYTES)), st.integers(0, len(RECORD_BYTES))),
    insert=st.binary(max_size=12),
    count=st.integers(-1, 5) | st.integers(),
    offset=st.integers(),
    time=st.none() | st.integers(),
)
def test_any_bytes_are_decoded_or_refused(
    cut: tuple[int, int], insert: bytes, count: int, offset: int, time: int | None
) -> None:
    wire = RECORD_BYTES[: min(cut)] + insert + RECORD_BYTES[max(cut) :]
    with contextlib.suppress(ShmaccumError, OverflowError):
        assert len(_native.decode_records(wire, Record, offset, 0, count, time)) == count
    with contextlib.suppress(ShmaccumError, OverflowError):
        assert _native.decode_columns([(wire, offset, 0, count, time)], 0, 2**63 - 1, True)[0] <= count


# --- the small files of a log


@some
@given(content=st.binary(max_size=30) | st.text(alphabet="0123 \nab-.", max_size=20).map(str.encode))
@example(b"0\nmany\n")
@example(b"0\n1\ntopic 0 99999999999999999999999\n")
def test_any_checkpoint_is_read_or_knows_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    assert isinstance(read_offsets_checkpoint(str(path)), dict)


@pytest.fixture(scope="module")
def sound_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "sound"
    with open_log(path, segment_bytes=1000, index_interval_bytes=200) as directory:
        for batch in make_batches(6):
            directory.partition(TOPIC, 0).append([batch])
        directory.new_producer_id()
    return path


@few
@given(data=st.data())
def test_whatever_a_small_file_of_a_log_holds_no_record_is_lost(sound_log: Path, tmp_path: Path, data: Any) -> None:
    path = tmp_path / f"log-{next(_numbers)}"
    shutil.copytree(sound_log, path)
    files = [each for each in (*path.iterdir(), *partition_folder(path).iterdir()) if each.is_file()]
    target = data.draw(st.sampled_from(sorted(each for each in files if each.suffix != ".log")))
    former = target.read_bytes()
    content = data.draw(st.binary(max_size=40) | st.binary(max_size=9).map(lambda extra: former + extra))
    target.write_bytes(content)
    written = [record.value for record in LogReader(sound_log).partition(TOPIC, 0).records()]
    with contextlib.suppress(ShmaccumError):
        assert [record.value for record in LogReader(path).partition(TOPIC, 0).records()] == written
    with contextlib.suppress(ShmaccumError), open_log(path, segment_bytes=1000) as directory:
        directory.new_producer_id()
        directory.partition(TOPIC, 0).append([make_batch([b"after"])])
        assert [record.value for record in LogReader(path).partition(TOPIC, 0).records()] == [*written, b"after"]
    shutil.rmtree(path)
