# SPDX-License-Identifier: Apache-2.0
"""``shmaccum consume``: records as text, groups and their commits, and the end of a reader."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shmaccum import Consumer, TopicPartition
from shmaccum.log.files.directory import LogDirectory
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.segment_log import START_MS, TOPIC, make_batch, open_log
from tests.unit.cli.conftest import Shell

GROUP = "readers"


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Two topics: five records, and one with headers."""
    with open_log(tmp_path / "log") as directory:
        directory.partition(TOPIC, 0).append([make_batch([b"%d" % number for number in range(5)])])
        directory.create_topic("weather")
        directory.partition("weather", 0).append([make_batch([b"rain"], headers=[("from", b"north")])])
        return directory.path


def committed(log: str) -> object:
    with Consumer(log, group_id=GROUP) as consumer:
        return consumer.committed(TopicPartition(TOPIC, 0))


def test_records_are_written_in_a_format(shell: Shell, log: str) -> None:
    assert shell("consume", log, "-t", TOPIC, "-e", "-f", "%t-%p %o %s,").stdout == "".join(
        f"{TOPIC}-0 {number} {number}," for number in range(5)
    )
    assert shell("consume", f"log:{log}", "-t", TOPIC, "-e", "-o", "-2").stdout == "3\n4\n"
    assert shell("consume", log, "-t", TOPIC, "-p", "0", "-e", "-o", "1", "-c", "2").stdout == "1\n2\n"


def test_records_are_written_as_json(shell: Shell, log: str) -> None:
    line = json.loads(shell("consume", log, "-t", "weather", "-e", "--json").stdout)
    assert (line["payload"], line["headers"], line["ts"]) == ("rain", ["from", "north"], START_MS)


def test_a_group_continues_after_the_records_that_were_written(shell: Shell, log: str) -> None:
    assert shell("consume", log, "-t", TOPIC, "-g", GROUP, "-e", "-c", "2").stdout == "0\n1\n"
    assert committed(log) == 2
    arguments = ("consume", log, "-t", TOPIC, "-g", GROUP, "-e")
    assert shell(*arguments, "-X", "enable.auto.commit=false").stdout == "2\n3\n4\n"
    assert committed(log) == 2
    assert shell(*arguments).stdout == "2\n3\n4\n"
    assert shell(*arguments).stdout == ""


def test_a_group_without_offsets_starts_at_the_requested_place(shell: Shell, log: str) -> None:
    assert shell("consume", log, "-t", TOPIC, "-g", GROUP, "-e", "-o", "end").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("-t", "none"), "has no topic 'none'"),
        (("-t", TOPIC, "-p", "7"), "has no partition 7"),
        (("-t", TOPIC, "-g", GROUP, "-o", "3"), "--offset must be beginning or end"),
        (("-t", TOPIC, "-g", GROUP, "-p", "0"), "cannot be combined"),
        (("-t", TOPIC, "-X", "group.id=g"), "set the group with --group"),
        (("-t", TOPIC, "-X", "replace_stalled_ms=30s"), "no effect without group_id"),
        (("-t", TOPIC, "-X", "value.deserializer=json"), "with --format or --json"),
        (("-t", TOPIC, "-X", "max_pol_records=1"), "did you mean max_poll_records"),
        (("-t", TOPIC, "-f", "%y"), "is unknown in a format"),
    ],
)
def test_wrong_arguments_say_what_to_do(shell: Shell, log: str, arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in shell("consume", log, *arguments, code=2).output


def test_options_of_a_member_go_with_a_group(shell: Shell, log: str) -> None:
    options = ("-X", "replace_stalled_ms=30s", "-X", "group.instance.id=one")
    assert shell("consume", log, "-t", TOPIC, "-g", GROUP, "-e", "-c", "1", *options).stdout == "0\n"


def on_a_terminal(*arguments: str) -> tuple[str, str]:
    """Standard output of a command, and the things that a terminal shows as its standard error."""
    ours, its = pty.openpty()
    try:
        command = [sys.executable, "-m", "shmaccum", *arguments]
        variables = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its, env=variables) as process:
            output, _ = process.communicate(timeout=WATCHDOG_S)
        os.set_blocking(ours, False)
        return output.decode(), os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(its)


def test_a_terminal_shows_how_many_records_went_elsewhere(log: str) -> None:
    output, shown = on_a_terminal("consume", log, "-t", TOPIC, "-e")
    assert output == "0\n1\n2\n3\n4\n"
    assert "shmaccum: 5 records (10 B) written" in shown


# --- tail


def test_the_last_records_of_all_partitions_are_written_by_time(shell: Shell, log: str) -> None:
    with LogDirectory(log) as directory:
        directory.create_topic("days", 2)
        for partition, values, timestamp_ms in [(0, [b"tue"], 200), (1, [b"mon"], 100), (0, [b"wed", b"thu"], 300)]:
            directory.partition("days", partition).append([make_batch(values, timestamp_ms=timestamp_ms)])
    days = ("tail", log, "-t", "days", "-e")
    assert shell(*days).stdout == "mon\ntue\nwed\nthu\n"
    assert shell(*days, "-n", "3", "-f", "%p %s,").stdout == "0 tue,0 wed,0 thu,"
    assert shell(*days, "-n", "1", "-p", "1").stdout == "mon\n"
    assert shell(*days, "-n", "0").stdout == ""
    assert shell(*days, "-c", "1").stdout == "mon\n"
    assert json.loads(shell("tail", log, "-t", TOPIC, "-e", "-n", "1", "--json").stdout)["offset"] == 4
    assert "has no topic 'none'" in shell("tail", log, "-t", "none", code=2).output


def test_tail_writes_what_comes_until_it_is_interrupted(log: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    command = [sys.executable, "-m", "shmaccum", "tail", log, "-t", TOPIC, "-n", "2"]
    with output.open("wb") as file, subprocess.Popen(command, stdout=file) as process:
        try:
            wait_until(lambda: output.read_bytes() == b"3\n4\n", "it has written the last records")
            with LogDirectory(log) as directory:
                directory.partition(TOPIC, 0).append([make_batch([b"more"])])
            wait_until(lambda: output.read_bytes() == b"3\n4\nmore\n", "it writes what comes")
            process.send_signal(signal.SIGINT)
            assert process.wait(WATCHDOG_S) == 130
        finally:
            process.kill()


def test_it_waits_for_records_until_it_is_interrupted(log: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    command = [sys.executable, "-m", "shmaccum", "consume", log, "-t", TOPIC, "-g", GROUP]
    with output.open("wb") as file, subprocess.Popen(command, stdout=file) as process:
        try:
            wait_until(lambda: output.read_bytes().count(b"\n") == 5, "it has written what was there")
            with LogDirectory(log) as directory:
                directory.partition(TOPIC, 0).append([make_batch([b"more"])])
            wait_until(lambda: output.read_bytes().endswith(b"more\n"), "it writes what comes")
            wait_until(lambda: committed(log) == 6, "the last record is committed")
            process.send_signal(signal.SIGINT)
            assert process.wait(WATCHDOG_S) == 130
        finally:
            process.kill()
