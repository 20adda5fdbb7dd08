# SPDX-License-Identifier: Apache-2.0
"""``shmaccum consume``: records as text, groups and their commits, and the end of a reader."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shmaccum import Consumer, TopicPartition
from shmaccum.segment_log.directory import LogDirectory
from tests.log_support import START_MS, TOPIC, make_batch, open_log
from tests.support import WATCHDOG_S, wait_until
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


def test_a_group_goes_on_behind_the_records_that_were_written(shell: Shell, log: str) -> None:
    assert shell("consume", log, "-t", TOPIC, "-g", GROUP, "-e", "-c", "2").stdout == "0\n1\n"
    assert committed(log) == 2
    arguments = ("consume", log, "-t", TOPIC, "-g", GROUP, "-e")
    assert shell(*arguments, "-X", "enable.auto.commit=false").stdout == "2\n3\n4\n"
    assert committed(log) == 2
    assert shell(*arguments).stdout == "2\n3\n4\n"
    assert shell(*arguments).stdout == ""


def test_a_group_without_offsets_begins_where_it_is_told(shell: Shell, log: str) -> None:
    assert shell("consume", log, "-t", TOPIC, "-g", GROUP, "-e", "-o", "end").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("-t", "none"), "has no topic 'none'"),
        (("-t", TOPIC, "-p", "7"), "has no partition 7"),
        (("-t", TOPIC, "-g", GROUP, "-o", "3"), "--offset is beginning or end"),
        (("-t", TOPIC, "-g", GROUP, "-p", "0"), "exclude each other"),
        (("-t", TOPIC, "-X", "group.id=g"), "named by --group"),
        (("-t", TOPIC, "-X", "max_pol_records=1"), "did you mean max_poll_records"),
        (("-t", TOPIC, "-f", "%y"), "stands for nothing in a format"),
    ],
)
def test_wrong_arguments_say_what_to_do(shell: Shell, log: str, arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in shell("consume", log, *arguments, code=2).output


def test_it_waits_for_records_until_it_is_interrupted(log: str, tmp_path: Path, interruptible: None) -> None:
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
