# SPDX-License-Identifier: Apache-2.0
"""``shmaccum sender``: real processes that deliver to a log, are stopped, killed and replaced."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.arena.wake_fifo import wait_readable
from shmaccum.cli.stop import StopResult
from shmaccum.log.files import LogReader
from shmaccum.observe.observation import Observer
from tests.support.accumulator import Accumulator
from tests.support.arenas import deliver_all, sender_pid
from tests.support.other_users import OtherUsers, needs_root
from tests.support.processes import wait_until
from tests.unit.cli.conftest import Shell

TOPIC = "flights"
WATCHDOG_S = 60


def append(arena: Arena, *values: bytes) -> None:
    with Accumulator(arena) as accumulator:
        for value in values:
            accumulator.append(TOPIC, 0, 1_700_000_000_000, None, value)


def delivered(log: Path) -> list[bytes | None]:
    if not (log / f"{TOPIC}-0").is_dir():
        return []
    return [record.value for record in LogReader(log).partition(TOPIC, 0).records()]


class Senders:
    """Starts senders of one arena, and ends the remaining ones."""

    def __init__(self, arena: Arena, log: Path) -> None:
        self.arena = arena
        self.log = log
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "shmaccum", "sender", self.arena.name, "--sink", f"log:{self.log}", *arguments]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._started.append(process)
        return process

    def working(self, *arguments: str) -> subprocess.Popen[str]:
        """A sender that has the role and listens."""
        process = self.start(*arguments)
        native = self.arena.native
        wait_until(lambda: native.sender_is_alive and native.presence != 0, "the sender listens")
        return process

    def end(self) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait(WATCHDOG_S)
            assert process.stderr is not None
            process.stderr.close()


NO_BROKER = ("--sink", "kafka:127.0.0.1:1", "-X", "delivery.timeout.ms=1h")


@pytest.fixture
def senders(arena: Arena, tmp_path: Path) -> Iterator[Senders]:
    senders = Senders(arena, tmp_path / "log")
    yield senders
    senders.end()


def lines_of(process: subprocess.Popen[str], timeout_s: float) -> Iterator[str]:
    """The lines of its log as they arrive. If none arrives for *timeout_s*, fail."""
    assert process.stderr is not None
    descriptor, text = process.stderr.fileno(), ""
    while True:
        assert wait_readable([descriptor], timeout_s), f"no line came after {text!r}"
        *lines, text = (text + os.read(descriptor, 4096).decode()).split("\n")
        yield from lines


def errors_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    text = process.stderr.read()
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_sender_delivers_what_is_there_and_leaves_in_order(senders: Senders, number: signal.Signals) -> None:
    process = senders.working("-X", "linger.ms=1h", "-X", "delivery.timeout.ms=2h")
    append(senders.arena, b"one", b"two")
    process.send_signal(number)
    assert process.wait(WATCHDOG_S) == 0
    assert delivered(senders.log) == [b"one", b"two"]
    log = errors_of(process).splitlines()
    assert log[0].endswith(f"INFO    the sender of {senders.arena.name} delivers to log:{senders.log}")
    assert log[-1].endswith("INFO    stopped cleanly")


def test_a_sender_goes_by_its_name(senders: Senders, shell: Shell) -> None:
    process = senders.working()
    assert psutil.Process(process.pid).name() == "shmaccum-sender"
    sender = shell.json("stat", senders.arena.name)["sender"]
    assert (sender["pid"], sender["name"], sender["is_alive"]) == (process.pid, "shmaccum-sender", True)


def test_options_find_the_sender_or_the_sink(senders: Senders) -> None:
    process = senders.working("-X", "num.partitions=3", "-X", "linger_ms=0")
    append(senders.arena, b"one")
    wait_until(lambda: senders.arena.native.topic_partition_count(TOPIC) == 3, "the sink tells its partitions")
    wait_until(lambda: delivered(senders.log) == [b"one"], "the record is delivered")
    process.terminate()
    assert process.wait(WATCHDOG_S) == 0


def test_an_arena_has_one_sender(senders: Senders) -> None:
    senders.working()
    second = senders.start()
    assert second.wait(WATCHDOG_S) == 2
    assert errors_of(second).splitlines()[-1].startswith("shmaccum: ")


def test_a_standby_takes_over_from_a_killed_sender(senders: Senders) -> None:
    first = senders.working()
    standby = senders.start("--standby")
    wait_until(
        lambda: len([each for each in senders.arena.native.processes() if each["alive"]]) == 3, "both are attached"
    )
    os.kill(first.pid, signal.SIGSTOP)
    append(senders.arena, b"left behind")
    first.kill()
    wait_until(lambda: delivered(senders.log) == [b"left behind"], "the standby has delivered")
    standby.terminate()
    assert standby.wait(WATCHDOG_S) == 0


def test_a_second_signal_makes_it_leave_at_once(senders: Senders) -> None:
    """Without a broker, the records cannot be delivered. Two equal signals might be merged into one."""
    process = senders.working("--sink", "kafka:127.0.0.1:1", "-X", "delivery.timeout.ms=1h")
    append(senders.arena, b"one")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert process.wait(WATCHDOG_S) == 0
    with Accumulator(senders.arena) as next_one:
        next_one.become_sender()
        assert deliver_all(next_one) == [b"one"]


def test_a_sender_that_is_asked_to_stop_reports_what_it_does_first(senders: Senders) -> None:
    process = senders.working(*NO_BROKER)
    append(senders.arena, b"one", b"two")
    process.terminate()
    line = next(line for line in lines_of(process, WATCHDOG_S) if "asked to stop" in line)
    assert process.poll() is None
    assert f"the sender of {senders.arena.name} was asked to stop: 2 records are delivered first" in line
    assert "for at most 60 min. A second signal, or stop(0), makes it leave at once" in line
    process.terminate()
    assert process.wait(WATCHDOG_S) == 0


# --- shmaccum stop


def test_stop_waits_until_the_sender_has_delivered_and_left(senders: Senders, shell: Shell) -> None:
    process = senders.working("-X", "linger.ms=1h", "-X", "delivery.timeout.ms=2h")
    append(senders.arena, b"one")
    ended = shell("stop", senders.arena.name)
    assert f"process {process.pid} was asked to stop; 1 record waits" in ended.stderr
    assert ended.stdout == (
        f"the sender of {senders.arena.name} (process {process.pid}) has stopped, and no record remains\n"
    )
    assert process.wait(WATCHDOG_S) == 0
    assert delivered(senders.log) == [b"one"]


def test_stop_reports_what_is_left_and_a_second_one_makes_the_sender_leave_at_once(
    senders: Senders, shell: Shell
) -> None:
    process = senders.working(*NO_BROKER)
    append(senders.arena, b"one")
    said = shell("stop", senders.arena.name, "--timeout", "500ms", code=1).stdout
    assert "has not stopped after 500 ms and continues to deliver; 1 record remains" in said
    assert process.poll() is None
    ended = shell.json("stop", senders.arena.name, code=1)
    assert (ended["outcome"], ended["pid"], ended["left_record_count"]) == ("left", process.pid, 1)
    assert process.wait(WATCHDOG_S) == 0


def test_without_a_sender_stop_has_nothing_to_do(shell: Shell, arena: Arena) -> None:
    assert shell("stop", arena.name).stdout == f"{arena.name} has no sender, and no record remains\n"
    append(arena, b"one")
    document = shell.json("stop", arena.name, code=1)
    assert (document["outcome"], document["pid"], document["left_record_count"]) == ("none", None, 1)


def test_stop_names_an_arena_that_is_not_there(shell: Shell, arena_name: str) -> None:
    assert f"there is no arena {arena_name}" in shell("stop", arena_name, code=2).stderr


def test_producers_that_keep_a_sender_start_none_after_stop(shell: Shell, arena: Arena, tmp_path: Path) -> None:
    with Producer(arena, sink=f"log:{tmp_path / 'log'}") as producer:
        producer.send(TOPIC, b"one", partition=0)
        shell("stop", arena.name)
        assert delivered(tmp_path / "log") == [b"one"]
        assert not arena.native.sender_died


def test_stop_ends_the_restarts_of_a_sender_that_dies(shell: Shell, arena: Arena, tmp_path: Path) -> None:
    """If another sender is starting, it is asked to stop."""
    with Producer(arena, sink=f"log:{tmp_path / 'log'}"):
        wait_until(lambda: sender_pid(arena) is not None, "the sender is known")
        pid = sender_pid(arena)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: sender_pid(arena) != pid, "the sender has died")
        assert shell.json("stop", arena.name)["outcome"] in {"left", "none"}
        assert not arena.native.sender_died
        assert not arena.native.sender_is_alive


def test_after_stop_a_dead_sender_counts_as_one_that_left_in_order(senders: Senders, shell: Shell) -> None:
    process = senders.working()
    process.kill()
    process.wait(WATCHDOG_S)
    assert senders.arena.native.sender_died
    assert shell.json("stop", senders.arena.name)["outcome"] == "none"
    assert not senders.arena.native.sender_died


def test_stop_leaves_a_standby_that_takes_over(senders: Senders, shell: Shell) -> None:
    first = senders.working()
    standby = senders.start("--standby")
    wait_until(
        lambda: any(row["role"] == "standby" for row in senders.arena.native.processes() if row["alive"]),
        "the standby stands by",
    )
    document = shell.json("stop", senders.arena.name, code=None)
    assert document["outcome"] in {"left", "replaced"}  # the standby may take the role after the last check
    assert first.wait(WATCHDOG_S) == 0
    wait_until(lambda: sender_pid(senders.arena) == standby.pid, "the standby has taken over")
    assert shell.json("stop", senders.arena.name)["pid"] == standby.pid
    assert standby.wait(WATCHDOG_S) == 0


def test_stop_reports_that_a_sender_is_stopped(senders: Senders, shell: Shell) -> None:
    process = senders.working()
    process.send_signal(signal.SIGSTOP)
    said = shell("stop", senders.arena.name, "--timeout", "300ms", code=1).stdout
    assert f"is stopped: continue it (kill -CONT {process.pid})" in said
    process.send_signal(signal.SIGCONT)
    assert process.wait(WATCHDOG_S) == 0


def test_stop_names_the_process_where_the_arena_was_removed_meanwhile(arena: Arena) -> None:
    """A command can no longer find it by the name of the arena."""
    seen = Observer(arena).observe()
    said = [StopResult("waits", os.getpid(), seen._replace(is_removed=gone)).sentence(10**9) for gone in (False, True)]
    assert said[0].endswith("To stop it at once, run this command again")
    assert said[1].endswith(f"To stop it at once, send it SIGTERM (kill {os.getpid()})")


@needs_root
def test_stop_reports_another_user_whose_sender_it_is(other_users: OtherUsers, arena_name: str) -> None:
    Arena.create(arena_name, mode=0o660, group=23470).close()
    command = [sys.executable, "-m", "shmaccum", "sender", arena_name, "--sink", "null:", "--mode", "0660", "-q"]
    sender = subprocess.Popen(command)
    try:
        with Arena.attach(arena_name, mode=0o660) as arena:
            wait_until(lambda: arena.native.sender_is_alive, "the sender has its role")
        ended = other_users.run(23471, (23470,), "-m", "shmaccum", "stop", arena_name)
        assert ended.returncode == 2
        assert f"(process {sender.pid}) belongs to user 0: run this command as that user, or as root" in ended.stderr
    finally:
        sender.terminate()
        assert sender.wait(WATCHDOG_S) == 0


# --- leaving


SIGNALLED_LATE = """
import os, signal
from shmaccum.cli import main

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), numbers=(signal.SIGTERM, signal.SIGINT)):
        for number in numbers:
            kill(pid, number)

late = Late()
main()
"""
"""A global of the module is destroyed after the interpreter has restored its signal handlers."""


def test_a_signal_that_comes_when_it_has_left_changes_nothing(arena_name: str) -> None:
    Arena.create(arena_name).close()
    command = [sys.executable, "-c", SIGNALLED_LATE, "sender", arena_name, "--sink", "null:", "--idle-exit", "100ms"]
    assert subprocess.run(command, capture_output=True, timeout=WATCHDOG_S).returncode == 0


def test_an_idle_sender_leaves(arena_name: str, tmp_path: Path) -> None:
    Arena.create(arena_name).close()
    command = [sys.executable, "-m", "shmaccum", "sender", arena_name, "--sink", f"log:{tmp_path / 'log'}"]
    result = subprocess.run(
        [*command, "--idle-exit", "100ms", "-q"], capture_output=True, text=True, timeout=WATCHDOG_S
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_a_sender_is_started_in_the_background_once(senders: Senders, shell: Shell) -> None:
    arguments = ("sender", senders.arena.name, "--sink", f"log:{senders.log}", "--detach")
    assert "was started" in shell(*arguments).stdout
    pid = shell.json("stat", senders.arena.name)["sender"]["pid"]
    try:
        assert "already has a sender" in shell(*arguments).stdout
        append(senders.arena, b"one")
        wait_until(lambda: delivered(senders.log) == [b"one"], "it delivers")
    finally:
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not senders.arena.native.sender_is_alive, "it leaves")
        wait_until(lambda: not psutil.pid_exists(pid), "it is gone")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sink", "nix:x"], "nix: is not a kind of sink"),
        (["--sink", "log"], "write the kind and a colon first, as in log:log"),
        (["--sink", "log:"], "log: needs a directory"),
        (["--sink", "null:", "-X", "acks=1"], "enable_idempotence needs acks=all"),
        (
            ["--sink", "log:x", "-X", "linger.mss=1"],
            "linger.mss is not an option of the sender or the served log: did you",
        ),
        (
            ["--sink", "null:", "-X", "linger.mss=1"],
            "not an option of the sender or the memory and null sinks",
        ),
        (["--sink", "memory:", "-X", "partitons=1"], "did you mean partitions?"),
        (["--sink", "null:", "-X", "sync=batch"], "sync is an option of the log sink"),
        (["--sink", "kafka:h:1", "-X", "compresion.type=lz4"], "did you mean compression_type?"),
        (["--sink", "null:", "-X", "linger.ms=1", "-X", "linger_ms=2"], "are the same option"),
        (["--sink", "log:x", "-X", "max_block_ms=1"], "max_block_ms is an option of the producer"),
        (["--sink", "log:x", "--idle-exit", "soon"], "idle_exit_ms: 'soon' is not a duration"),
        (["--sink", "log:x", "-X", "sync=interval"], "sync=interval needs sync_interval_ms"),
        ([], "Missing option '--sink'"),
    ],
)
def test_what_cannot_be_is_a_sentence(shell: Shell, arena: Arena, arguments: list[str], sentence: str) -> None:
    assert sentence in shell("sender", arena.name, *arguments, code=2).stderr
    assert not arena.native.sender_is_alive


def test_a_sink_that_cannot_be_opened_is_a_sentence(shell: Shell, arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "something").write_text("else")
    assert "shmaccum: " in shell("sender", arena.name, "--sink", f"log:{tmp_path}", code=2).stderr
    assert not arena.native.sender_is_alive


def test_the_help_names_every_kind_of_sink(shell: Shell) -> None:
    text = shell("sender", "--help").stdout
    assert all(kind in text for kind in ("kafka:HOST:PORT", "log:DIR", "null:", "memory:"))


def test_a_certificate_that_is_not_there_is_one_sentence(arena: Arena) -> None:
    command = [sys.executable, "-m", "shmaccum", "sender", arena.name, "--sink", "kafka:127.0.0.1:9"]
    command += ["-X", "security_protocol=SSL", "-X", "ssl_cafile=/nobody/has/this.pem"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("shmaccum: TLS cannot be set up")
    assert result.stderr.count("\n") == 1
