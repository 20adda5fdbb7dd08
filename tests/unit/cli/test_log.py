# SPDX-License-Identifier: Apache-2.0
"""``shmaccum log``: on sound, growing and damaged logs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum.cli import log_cat
from shmaccum.cli.log_cat import compile_format
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files import LogRecord
from tests.support.segment_log import (
    START_MS,
    TOPIC,
    log_files,
    make_batch,
    make_batches,
    offsets,
    open_log,
    partition_folder,
)
from tests.unit.cli.conftest import Shell

RECORD = LogRecord(17, 1234, b"key", "välue".encode(), (("a", b"1"), ("b", None)))
PLACE = TopicPartition("flights", 3)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two partitions: five batches of three records, and one record with every field."""
    path = tmp_path / "log"
    with open_log(path) as directory:
        offsets(directory.partition(TOPIC, 0).append(make_batches(5)))
        directory.create_topic("weather", 2)
        directory.partition("weather", 1).append([make_batch([b"rain", None], headers=[("from", b"north")])])
    return path


def values(output: str) -> list[int]:
    return [int(line[:8]) for line in output.splitlines()]


def damage(path: Path, position: int) -> None:
    """Change one byte in the first segment."""
    with open(log_files(path)[0], "r+b") as stream:
        stream.seek(position)
        byte = stream.read(1)
        stream.seek(position)
        stream.write(bytes([byte[0] ^ 0xFF]))


# --- cat


@pytest.mark.parametrize("prefix", ["", "log:"])
def test_records_are_written_as_lines(shell: Shell, log: Path, prefix: str) -> None:
    assert values(shell("log", "cat", f"{prefix}{log}", "-t", TOPIC).stdout) == list(range(15))


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["-o", "beginning", "-c", "2"], [0, 1]),
        (["-o", "4", "-c", "4"], [4, 5, 6, 7]),
        (["-o", "-2"], [13, 14]),
        (["-o", "-100"], list(range(15))),
        (["-o", "end"], []),
        (["-o", f"s@{START_MS + 2001}"], list(range(7, 15))),
        (["-o", f"s@{START_MS * 2}"], []),
    ],
)
def test_reading_begins_and_ends_as_asked(shell: Shell, log: Path, arguments: list[str], wanted: list[int]) -> None:
    assert values(shell("log", "cat", str(log), "-t", TOPIC, *arguments).stdout) == wanted


def test_records_are_written_as_json_with_kcat_s_keys(shell: Shell, log: Path) -> None:
    lines = shell("log", "cat", str(log), "-t", "weather", "-J").stdout.splitlines()
    rain, nothing = map(json.loads, lines)
    assert rain == {
        "topic": "weather",
        "partition": 1,
        "offset": 0,
        "tstype": "create",
        "ts": START_MS,
        "headers": ["from", "north"],
        "key": None,
        "payload": "rain",
    }
    assert nothing["payload"] is None


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (r"%t-%p@%o %T: %k=%s\n", "flights-3@17 1234: key=välue\n"),
        (r"%S %K %h%%", "6 3 a=1,b=NULL%"),
        (r"\x1e%s\t", "\x1evälue\t"),
        ("%R", "\x00\x00\x00\x06"),
        ("plain", "plain"),
    ],
)
def test_a_format_has_kcat_s_letters(text: str, written: str) -> None:
    assert compile_format(text)(PLACE, RECORD) == written.encode()


def test_null_has_size_minus_one_and_no_bytes() -> None:
    null = RECORD._replace(key=None, value=None)
    assert compile_format("%K%k %S%s")(PLACE, null) == b"-1 -1"


@pytest.mark.parametrize("text", ["%x", "100%"])
def test_a_letter_that_stands_for_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is unknown in a format: use one of %s %S"):
        compile_format(text)


def test_keys_and_delimiters_are_written_as_asked(shell: Shell, log: Path) -> None:
    assert shell("log", "cat", str(log), "-t", "weather", "-K", ":", "-D", r"%\0").stdout == ":rain%\0:%\0"


class SleepsError(Exception):
    """Ends a follower."""


def test_a_follower_sleeps_only_after_no_partition_had_new_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(_: float) -> None:
        raise SleepsError

    monkeypatch.setattr("shmaccum.cli.log_cat.time.sleep", sleep)
    batch = SimpleNamespace(is_control=False, records=lambda: [SimpleNamespace(offset=0)])
    polled = iter([[], [batch], [batch], [], [], []])  # of two partitions in turn
    cursor: Any = SimpleNamespace(offset=0, poll=lambda: next(polled))
    places = [TopicPartition(TOPIC, partition) for partition in range(2)]
    seen: list[TopicPartition] = []
    with pytest.raises(SleepsError):
        seen.extend(place for place, _ in log_cat._follow([(place, cursor) for place in places]))
    assert (seen, list(polled)) == (places[::-1], [])


def test_what_is_appended_is_followed(log: Path) -> None:
    command = [sys.executable, "-m", "shmaccum", "log", "cat", str(log), "-t", TOPIC, "-o", "-1", "--follow", "-c", "4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert values(process.stdout.readline()) == [14]
        with open_log(log) as directory:
            offsets(directory.partition(TOPIC, 0).append(make_batches(1, first=5)))
        assert values(process.stdout.read()) == [15, 16, 17]
    assert process.returncode == 0


def test_damage_is_named_with_segment_and_position_and_can_be_skipped(shell: Shell, log: Path) -> None:
    batch_size = log_files(log)[0].stat().st_size // 5
    damage(log, 2 * batch_size + 70)
    failed = shell("log", "cat", str(log), "-t", TOPIC, code=1)
    assert values(failed.stdout) == list(range(6))
    assert str(log_files(log)[0]) in failed.stderr
    assert str(2 * batch_size) in failed.stderr
    assert "Read it with --skip-corrupt to skip the damage." in failed.stderr
    skipped = shell("log", "cat", str(log), "-t", TOPIC, "--skip-corrupt", code=1)
    assert values(skipped.stdout) == [*range(6), *range(9, 15)]
    assert skipped.stderr.startswith("shmaccum: skipped: ")


def test_a_reader_that_goes_away_ends_cat_quietly(log: Path) -> None:
    with open_log(log) as directory:
        offsets(directory.partition(TOPIC, 0).append(make_batches(2000, first=5)))
    command = [sys.executable, "-m", "shmaccum", "log", "cat", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-t", "nix"], "has no topic 'nix'; it has flights, weather"),
        (["-t", TOPIC, "-p", "9"], "has no partition 9"),
        (["-p", "9"], "has no partition 9"),
        (["-p", "-1"], "-1 is not in the range x>=0"),
        (["-t", TOPIC, "-o", "99"], "does not exist yet: the log ends at 15"),
        (["-o", "middle"], "'middle' is not an offset: write beginning, end"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(shell: Shell, log: Path, arguments: list[str], sentence: str) -> None:
    result = shell("log", "cat", str(log), *arguments, code=2)
    assert sentence in result.stderr


def test_a_directory_that_is_none_is_a_sentence(shell: Shell, tmp_path: Path) -> None:
    for command in ("cat", "info", "offsets", "verify"):
        assert "is not a directory" in shell("log", command, str(tmp_path / "nix"), code=2).stderr
    (tmp_path / "thesis.tex").write_text("years of work")
    for command in ("cat", "info", "offsets", "verify"):
        assert "has other files (thesis.tex) and no partition" in shell("log", command, str(tmp_path), code=2).stderr


# --- info, offsets, verify


@pytest.mark.parametrize(("columns", "time_count"), [(120, 2), (80, 1), (60, 0)])
def test_info_has_a_line_for_each_partition(shell: Shell, log: Path, columns: int, time_count: int) -> None:
    place, head, *lines = shell("log", "info", str(log), columns=columns).stdout.splitlines()
    assert len(lines) == len(shell.json("log", "info", str(log))["partitions"])
    times = [re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", line) for line in lines]
    assert max(map(len, times)) == time_count
    assert max(map(len, [head, *lines])) <= columns
    assert str(log) in place


def test_info_reports_offsets_sizes_and_times(shell: Shell, log: Path) -> None:
    document = shell.json("log", "info", str(log))
    flights = next(facts for facts in document["partitions"] if facts["topic"] == TOPIC)
    size = log_files(log)[0].stat().st_size
    assert flights == {
        "topic": TOPIC,
        "partition": 0,
        "log_start_offset": 0,
        "log_end_offset": 15,
        "record_count": 15,
        "size": size,
        "first_timestamp_ms": START_MS,
        "last_timestamp_ms": START_MS + 4002,
        "segments": [{"base_offset": 0, "size": size}],
    }
    assert document["is_written"] is False
    output = shell("log", "info", str(log), columns=80).stdout
    assert max(map(len, output.splitlines()[1:])) <= 80
    assert "3 partitions" in output
    assert "no sender writes it" in output
    assert "weather-0" in output


def test_offsets_are_those_of_kafka_s_tool(shell: Shell, log: Path) -> None:
    assert shell("log", "offsets", str(log)).stdout == "flights:0:15\nweather:0:0\nweather:1:2\n"
    assert shell("log", "offsets", str(log), "--time", "earliest", "-t", TOPIC).stdout == "flights:0:0\n"
    assert shell("log", "offsets", str(log), "--time", str(START_MS + 1001), "-t", TOPIC).stdout == "flights:0:4\n"
    assert shell.json("log", "offsets", str(log), "--time", str(START_MS * 2), "-p", "0")[0]["offset"] == -1
    assert "is not a time" in shell("log", "offsets", str(log), "--time", "noon", code=2).stderr


def test_a_sound_log_is_sound_and_a_damaged_one_is_not(shell: Shell, log: Path) -> None:
    assert shell("log", "verify", str(log)).stdout == f"{log} is sound (3 partitions)\n"
    damage(log, 100)
    assert "at position 0:" in shell("log", "verify", str(log), code=1).stdout
    document = shell.json("log", "verify", str(log), code=1)
    assert document["is_sound"] is False
    assert document["findings"][0]["path"] == str(log_files(log)[0])


def test_reading_changes_nothing_also_beside_the_writer(shell: Shell, log: Path) -> None:
    def state() -> dict[str, tuple[bytes, int]]:
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in log.rglob("*") if path.is_file()}

    with open_log(log) as directory:
        offsets(directory.partition(TOPIC, 0).append(make_batches(1, first=5)))
        before = state()
        assert "a sender writes it" in shell("log", "info", str(log)).stdout
        for command in ("cat", "offsets", "verify"):
            shell("log", command, str(log), code=None)
        assert state() == before
    assert partition_folder(log).is_dir()


def test_a_check_of_a_sound_log_imports_nothing_slow(log: Path) -> None:
    program = "import sys; from shmaccum.cli import main\ntry: main(sys.argv[1:])\n"
    program += "finally: print(sorted({'numpy', 'crc32c', 'psutil'} & set(sys.modules)), file=sys.stderr)"
    checked = subprocess.run([sys.executable, "-c", program, "log", "verify", log], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "[]\n")
    assert "is sound" in checked.stdout
