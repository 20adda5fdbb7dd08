# SPDX-License-Identifier: Apache-2.0
"""Hostile logs: the files of a log, damaged at random in important fields, read, checked and opened for writing.

Whatever bytes the files have, shmaccum raises only its own errors and does not loop forever. If it checks the CRC, it
returns only records that were written. The test runs for a few seconds, or with ``-m fuzz`` for
SHMACCUM_FUZZ_SECONDS.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum.exceptions import ShmaccumError
from shmaccum.log.files.inspection import check_log
from shmaccum.log.files.reader import LogReader
from tests.support.seeds import new_seed
from tests.support.segment_log import START_MS, TOPIC, make_batch, make_batches, open_log, partition_folder

SHORT_SECONDS = 1
LONG_SECONDS = int(os.environ.get("SHMACCUM_FUZZ_SECONDS", "600"))
ROOM_S = 600
BATCH_HEADER_FIELDS = (0, 8, 12, 16, 17, 21, 23, 27, 35, 43, 51, 53, 57)
EDGES = (0, 1, 2, 12, 49, 60, 61, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
DAMAGES_MAX = 6

Damage = Callable[[random.Random, Path], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log of several segments with indexes, a snapshot, compressed batches, and batches without a producer
    id.
    """
    path = tmp_path_factory.mktemp("logs") / "sound"
    with open_log(path, segment_bytes=2000, index_interval_bytes=200) as directory:
        log = directory.partition(TOPIC, 0)
        for batch in make_batches(20):
            log.append([batch])
        for codec in range(5):
            values = [b"codec %d, " % codec + bytes(50) for _ in range(4)]
            log.append([make_batch(values, timestamp_ms=START_MS + 50_000 + codec, codec=codec)])
    return path


# --- damage


def flip(chance: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.randint(1, 4) if data else 0):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def put_number(chance: random.Random, path: Path) -> None:
    """Write an extreme value of a type to a field of a batch header, or anywhere in an index."""
    data = bytearray(path.read_bytes())
    form = chance.choice([">B", ">H", ">I", ">Q"])
    number = chance.choice(EDGES) & ((1 << 8 * struct.calcsize(form)) - 1)
    starts = [at for at in range(max(len(data) - 61, 1)) if data[at + 16 : at + 17] == b"\2"] or [0]
    at = chance.choice(starts) + chance.choice(BATCH_HEADER_FIELDS) if path.suffix == ".log" else chance.randrange(40)
    if at + struct.calcsize(form) <= len(data):
        struct.pack_into(form, data, at, number)
        path.write_bytes(data)


def cut(chance: random.Random, path: Path) -> None:
    os.truncate(path, chance.randint(0, path.stat().st_size))


def grow(chance: random.Random, path: Path) -> None:
    tail = chance.choice([bytes(100), chance.randbytes(chance.randint(1, 200)), path.read_bytes()[-300:]])
    path.write_bytes(path.read_bytes() + tail)


def move(chance: random.Random, path: Path) -> None:
    """Move a piece of the file to another place in it."""
    data = path.read_bytes()
    first, second, third = sorted(chance.randint(0, len(data)) for _ in range(3))
    path.write_bytes(data[:first] + data[second:third] + data[first:second] + data[third:])


def exchange(chance: random.Random, path: Path) -> None:
    other = chance.choice(sorted(path.parent.iterdir()))
    if other.is_file():
        path.write_bytes(other.read_bytes())


def rename(chance: random.Random, path: Path) -> None:
    name = f"{chance.choice([0, 1, 7, 2**62, 10**19]):020}{path.suffix}"
    path.rename(path.with_name(name))


def delete(_chance: random.Random, path: Path) -> None:
    path.unlink()


DAMAGES: tuple[Damage, ...] = (flip, flip, *[put_number] * 3, cut, grow, move, exchange, rename, delete)


def damage(chance: random.Random, path: Path) -> None:
    for _ in range(chance.randint(1, DAMAGES_MAX)):
        files = sorted(each for each in [*path.iterdir(), *partition_folder(path).iterdir()] if each.is_file())
        if files:
            chance.choice(DAMAGES)(chance, chance.choice(files))


# --- readers and openers


def values_of(path: Path, **options: Any) -> Iterator[bytes | None]:
    reader = LogReader(path, **options)
    for place in reader.topic_partitions():
        partition = reader.partition(place.topic, place.partition)
        yield from (record.value for record in partition.records())
        partition.offset_for_timestamp(START_MS + 3000)


def use(path: Path, written: frozenset[bytes | None]) -> None:
    with contextlib.suppress(ShmaccumError):
        assert written.issuperset(values_of(path))
    with contextlib.suppress(ShmaccumError):
        assert written.issuperset(values_of(path, on_corrupt="skip"))
    with contextlib.suppress(ShmaccumError):
        list(values_of(path, on_corrupt="skip", verify_crc=False))
    with contextlib.suppress(ShmaccumError):
        check_log(path)
    with contextlib.suppress(ShmaccumError), open_log(path, segment_bytes=2000) as directory:
        directory.partition(TOPIC, 0).append([make_batch([b"after"])])
    with contextlib.suppress(ShmaccumError):
        assert (written | {b"after"}).issuperset(values_of(path, on_corrupt="skip"))


def try_input(number: int, sound: Path, place: Path, written: frozenset[bytes | None]) -> None:
    """Use one damaged log. If an input hangs, the test times out, and the report has the number of the input."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(sound, place)
    damage(random.Random(number), place)
    try:
        use(place, written)
    except Exception as error:
        raise AssertionError(f"input {number}: {error!r}") from error
    except pytest.fail.Exception:
        print(f"input {number} was not finished")
        raise


def fuzz(seconds: float, sound: Path, place: Path, seed: int) -> int:
    """Run inputs for some seconds, and return their number."""
    written = frozenset(values_of(sound))
    assert len(written) > 60
    end = time.monotonic() + seconds
    for number in itertools.count(seed):
        try_input(number, sound, place, written)
        if time.monotonic() >= end:
            return number - seed + 1
    raise AssertionError


@pytest.mark.timeout(SHORT_SECONDS + ROOM_S)
def test_some_hostile_logs_do_no_harm(sound: Path, tmp_path: Path) -> None:
    seed = new_seed()
    assert fuzz(SHORT_SECONDS, sound, tmp_path / "log", seed) > 0


@pytest.mark.fuzz
@pytest.mark.timeout(LONG_SECONDS + ROOM_S)
def test_many_hostile_logs_do_no_harm(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = new_seed()
    count = fuzz(LONG_SECONDS, sound, tmp_path / "log", seed)
    with capsys.disabled():
        print(f"SHMACCUM_SEED={seed}: {count:,} inputs in {LONG_SECONDS} s")
