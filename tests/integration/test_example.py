# SPDX-License-Identifier: Apache-2.0
"""``make run`` with real processes, as a user sees it, on the first flights of the year."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples.flights import data, pipeline
from setup import ROOT
from shmaccum.arena import Arena
from shmaccum.exceptions import ShmaccumError
from shmaccum.log.files import LogDirectory, LogReader
from tests.kafka.distribution import require
from tests.kafka.dumping import dump_each
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.segment_log import make_batch

FLIGHT_COUNT = 5_000
FEW_FLIGHTS = 500
MANY_FLIGHTS = 20_000
RUNS = pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((), id="undisturbed", marks=pytest.mark.slow),
        pytest.param(("--kill",), id="worker and sender killed"),
    ],
)
"""A run without deaths has all steps of the other runs. The test of a watched run has such a run, too."""


def run(directory: Path, *arguments: str, count: int = FLIGHT_COUNT) -> subprocess.CompletedProcess[str]:
    """Run the example to its end. Check that shared memory has nothing of it."""
    command = [sys.executable, "-m", "examples.flights", "--directory", str(directory), "--flights", str(count)]
    command += arguments
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        output, errors = process.communicate()
    assert not Arena.exists(f"shmaccum-flights-{process.pid}")
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def is_sending(arena: str) -> bool:
    """True while the arena has a sender."""
    if not Arena.exists(arena):
        return False
    with contextlib.suppress(ShmaccumError), Arena.open_read_only(arena) as attached:
        return attached.native.sender_is_alive
    return False


def test_the_sender_of_a_killed_run_ends(tmp_path: Path, arena_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "IDLE_EXIT", "100ms")
    with Arena.create(arena_name):
        sender = pipeline.Sender(arena_name, tmp_path / "log", None)
        try:
            wait_until(lambda: is_sending(arena_name), "the sender has its role")
        except BaseException:
            sender.end()
            raise
    try:
        assert sender._process.wait(WATCHDOG_S) == 0
    finally:
        sender.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_run_that_a_signal_ends_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    directory = tmp_path / "log"
    unignored = ["env", f"--default-signal={number.name.removeprefix('SIG')}"]  # the tests may run under nohup
    command = [*unignored, sys.executable, "-m", "examples.flights", "--no-peer", "--directory", str(directory)]
    with (tmp_path / "told").open("wb") as told:
        process = subprocess.Popen(command, stdout=told, stderr=told, start_new_session=True, cwd=ROOT)
    arena = f"shmaccum-flights-{process.pid}"
    try:
        wait_until(lambda: is_sending(arena) or process.poll() is not None, "the sender works")
        process.send_signal(number)
        assert process.wait(WATCHDOG_S) == 128 + number, (tmp_path / "told").read_text()
        assert not Arena.exists(arena)
        LogDirectory(directory).close()  # no sender writes it any more
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def record_count(directory: Path) -> int:
    log = LogReader(directory)
    return sum(log.partition(*place).log_end_offset for place in log.topic_partitions())


def shares(rows: list[tuple[str, str]]) -> list[tuple[str, int]]:
    """The state of each consumer in a picture, and its partition count, sorted: any may be idle."""
    return sorted((state.partition(" ")[2], cells.count("■")) for state, cells in rows)


@RUNS
def test_every_flight_is_read_back_once_by_every_reader(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    directory = tmp_path / "out" / "log"
    ended = run(directory, *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for reader in ("shmaccum", "kafka-python", "4 consumers of this host"):
        assert f"✓ read back with {reader}: every flight once, in order, unharmed" in ended.stdout
    assert record_count(directory) == FLIGHT_COUNT
    before, after = (re.findall(r"│ (\d \w*) +((?:│ [■·] +)+)│", part) for part in ended.stdout.split("kill -9 of "))
    assert shares(before) == [("", 1)] * 3 + [("idle", 0)]
    assert shares(after) == [("", 1)] * 3 + [("killed", 0)]
    assert ("killed in mid-flight, and replaced" in ended.stdout) == bool(arguments)


@RUNS
def test_every_flight_is_consumed_by_a_group_from_the_sender(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ended = run(tmp_path / "log", "--serve", "--no-peer", *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "✓ read back with a group of 3 consumers: every flight once, in order, unharmed" in ended.stdout


def write_older_log(directory: Path) -> None:
    """Write a log of the example with more records than the next run has."""
    values = [b"older"] * (FEW_FLIGHTS + 1)
    with LogDirectory(directory) as log:
        for topic in data.topics():
            log.create_topic(topic)
            log.partition(topic, 0).append([make_batch(values)])


def test_a_watched_run_begins_when_a_browser_has_the_page_and_replaces_an_older_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_older_log(tmp_path / "log")
    asked = tmp_path / "asked.json"
    browser = tmp_path / "browser.py"
    script = f"import sys, urllib.request\nurllib.request.urlretrieve(sys.argv[1] + 'arena.json', {str(asked)!r})\n"
    browser.write_text(script, encoding="utf-8")
    monkeypatch.setenv("BROWSER", f"{sys.executable} {browser} %s")
    ended = run(tmp_path / "log", "--watch", count=FEW_FLIGHTS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads(asked.read_text(encoding="utf-8"))["record_count"] == 0
    assert record_count(tmp_path / "log") == FEW_FLIGHTS


def test_what_is_no_log_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    ended = run(tmp_path)
    assert ended.returncode == 2
    assert "shmaccum: " in ended.stderr
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_log_that_is_not_of_the_example_is_left_alone(tmp_path: Path) -> None:
    with LogDirectory(tmp_path / "log") as log:
        log.create_topic("payments")
    ended = run(tmp_path / "log")
    assert ended.returncode == 2
    assert "topics that are not of this example (payments)" in ended.stderr
    assert LogReader(tmp_path / "log").topics() == ["payments"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_dump_log_segments_accepts_what_it_wrote(tmp_path: Path) -> None:
    require()
    directory = tmp_path / "log"
    assert run(directory, "--no-peer", "--kill", count=MANY_FLIGHTS).returncode == 0
    folders = sorted(directory.glob("[!.]*-*/"))  # the offsets of the groups are next to them
    data = dump_each(folders, "--deep-iteration", "--print-data-log")
    assert sum(len(re.findall(r"^\| offset: ", each, re.MULTILINE)) for each in data) == MANY_FLIGHTS
    dump_each(folders, "--index-sanity-check")
    assert not any("Mismatches" in each for each in dump_each(folders, "--verify-index-only"))
