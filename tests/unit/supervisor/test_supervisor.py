# SPDX-License-Identifier: Apache-2.0
"""A producer restarts its sender after a death, and starts none if none is wanted."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum import Producer, Sender
from shmaccum.arena import Arena
from shmaccum.arena.file import ArenaFile
from shmaccum.arena.reports import Kind, read_reports
from shmaccum.exceptions import (
    ArenaRemovedError,
    BufferExhaustedError,
    InvalidArgumentError,
    OtherSinkError,
    SenderNotStartedError,
)
from shmaccum.log.files import LogReader
from shmaccum.supervisor import IDLE_EXIT_DEFAULT, Recipe, SenderSupervisor, ensure_sender, start, supervisor
from shmaccum.supervisor.start import elected_at_once
from shmaccum.supervisor.supervisor import PAUSE_MAX_S, Restarts
from tests.support.arenas import SHARED_MEMORY, end_senders, sender_pid
from tests.support.processes import WATCHDOG_S, Child, wait_until

TOPIC = "flights"
KILLS = 3


checks: list[str] = []
"""The arenas of a supervisor's checks."""


@pytest.fixture(autouse=True)
def _checks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "ABSENT_CHECK_S", 0.01)
    check = SenderSupervisor._check

    def counted(self: SenderSupervisor, arena: Arena) -> None:
        check(self, arena)
        checks.append(arena.name)

    monkeypatch.setattr(SenderSupervisor, "_check", counted)


def wait_for_checks(times: int) -> None:
    """Wait for more checks of the supervisor, because only its thread may use its watch."""
    end = len(checks) + times
    wait_until(lambda: len(checks) > end, "the supervisor has checked")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def kept(arena_name: str) -> Iterator[Arena]:
    """An arena whose senders and records are removed at the end."""
    with Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB", process_count=64) as arena:
        arena.native.set_topic_partition_count(TOPIC, 1)
        yield arena
        wait_until(lambda: not keeps(arena), "every supervisor has ended")
        end_senders(arena)
        with Sender(arena, "null:") as sender:
            sender.stop()
            sender.run()


def keeps(arena: Arena) -> bool:
    return any(found.uuid == arena.uuid for found in list(supervisor._supervisors))


def pid_of(arena: Arena) -> int:
    wait_until(lambda: sender_pid(arena) is not None, "a sender is named")
    pid = sender_pid(arena)
    assert pid is not None
    return pid


def kill_sender(arena: Arena) -> int:
    pid = pid_of(arena)
    os.kill(pid, signal.SIGKILL)
    return pid


def values(log: Path) -> list[bytes]:
    return [record.value or b"" for record in LogReader(log).partition(TOPIC, 0).records()]


def fill(producer: Producer) -> None:
    """Send past the point at which the arena is full."""
    for _ in range(2 * producer.arena.geometry["slot_count"]):
        producer.send(TOPIC, b"v" * 3000)


@contextlib.contextmanager
def sender_process(arena: Arena, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a separate sender, as a supervisor does."""
    command = [sys.executable, "-m", "shmaccum.sender", arena.name, *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        yield process
        process.kill()


# --- deaths


def test_a_sender_that_is_killed_repeatedly_has_a_successor_and_no_record_is_lost(kept: Arena, log: Path) -> None:
    with Producer(kept, sink=f"log:{log}", linger_ms=1) as producer:
        sent = 0
        for _ in range(KILLS):
            killed = kill_sender(kept)
            futures = [producer.send(TOPIC, b"%d" % number) for number in range(sent, sent + 300)]
            sent += len(futures)
            assert futures[-1].get(WATCHDOG_S).offset == sent - 1
            assert pid_of(kept) != killed
    assert values(log) == [b"%d" % number for number in range(sent)]


def test_a_forked_child_has_its_own_supervisor(kept: Arena, log: Path) -> None:
    producer = Producer(kept, sink=f"log:{log}", linger_ms=1)
    ready, go = os.pipe()

    def send_in_child() -> int:
        producer.send(TOPIC, b"before").get(WATCHDOG_S)
        os.read(ready, 1)
        return producer.send(TOPIC, b"after").get(WATCHDOG_S).offset

    child = Child(send_in_child)
    producer.close()  # the parent supervises no sender any more
    wait_until(lambda: not keeps(kept), "the parent's supervisor has ended")
    wait_until(lambda: kept.native.completion_tail == 1, "the child has sent")
    kill_sender(kept)
    os.write(go, b"!")
    assert child.join() == "1"
    os.close(ready)
    os.close(go)


def test_two_producers_of_a_process_have_one_thread_that_ends_with_the_last(kept: Arena, log: Path) -> None:
    before = set(threading.enumerate())
    first, second = (Producer(kept, sink=f"log:{log}") for _ in range(2))
    names = [thread.name for thread in set(threading.enumerate()) - before]
    assert names.count("shmaccum-supervisor") == 1
    first.close()
    killed = kill_sender(kept)
    second.send(TOPIC, b"v").get(WATCHDOG_S)
    assert pid_of(kept) != killed
    second.close()
    wait_until(lambda: not keeps(kept), "the thread has ended")


def test_a_deleted_producer_supervises_no_sender(kept: Arena, log: Path) -> None:
    producer = Producer(kept, sink=f"log:{log}")
    del producer
    gc.collect()
    wait_until(lambda: not keeps(kept), "the thread has ended")


def test_a_pickled_producer_supervises_the_same_sender(kept: Arena, log: Path) -> None:
    with Producer(kept, sink=f"log:{log}", retries=7, linger_ms=3) as producer:
        copy = pickle.loads(pickle.dumps(producer))
        with copy:
            assert copy.options.linger_ms == 3
            assert copy._recipe == producer._recipe
            assert copy._recipe.options["retries"] == 7


# --- no sender is started


def test_no_sender_is_started_after_a_clean_stop(kept: Arena, log: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Producer(kept, sink=f"log:{log}") as producer:
        os.kill(pid_of(kept), signal.SIGTERM)
        told = f"the sender of {kept.name} left cleanly"
        wait_until(lambda: told in caplog.text, "it was told")
        with Sender(kept.name, f"log:{log}") as sender:
            sender.open()
        wait_until(lambda: caplog.text.count(told) == 2 or not kept.native.sender_is_alive, "the next one has left")
        wait_for_checks(times=5)
        assert kept.native.sender()["epoch"] == 2
        producer.close(0)


def test_no_sender_is_started_while_a_standby_waits(kept: Arena, log: Path) -> None:
    with sender_process(kept, f"--sink=log:{log}") as first:
        wait_until(lambda: sender_pid(kept) == first.pid, "the first one has the role")
        with sender_process(kept, f"--sink=log:{log}", "--standby") as standby:
            wait_until(lambda: "standby" in roles(kept), "it stands by")
            with Producer(kept, sink=f"log:{log}", linger_ms=1) as producer:
                first.kill()
                producer.send(TOPIC, b"v").get(WATCHDOG_S)
                assert pid_of(kept) == standby.pid
                assert [row["text"] for row in kept.native.errors()] == []
                assert sum(row["alive"] for row in kept.native.processes()) == 2


def test_a_stopped_standby_does_not_prevent_the_start_of_a_sender(kept: Arena, log: Path) -> None:
    with sender_process(kept, f"--sink=log:{log}") as first:
        wait_until(lambda: sender_pid(kept) == first.pid, "the first one has the role")
        with sender_process(kept, f"--sink=log:{log}", "--standby") as standby:
            wait_until(lambda: "standby" in roles(kept), "it stands by")
            standby.send_signal(signal.SIGSTOP)
            with Producer(kept, sink=f"log:{log}", linger_ms=1) as producer:
                first.kill()
                producer.send(TOPIC, b"v").get(WATCHDOG_S)
                assert pid_of(kept) not in {first.pid, standby.pid}


def roles(arena: Arena) -> list[str]:
    return [row["role"] for row in arena.native.processes() if row["alive"]]


def test_an_arena_whose_sender_another_program_supervises_gets_none(
    arena_name: str, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Arena.create(arena_name, external_sender=True, options={"mine": 1}) as arena:
        assert arena.has_external_sender
        assert arena.options["mine"] == 1
        with pytest.raises(SenderNotStartedError, match=r"reserved it for an external one \(external_sender\)"):
            ensure_sender(arena, f"log:{log}")
        with Producer(arena, sink=f"log:{log}") as producer, sender_process(arena, f"--sink=log:{log}") as theirs:
            wait_until(lambda: sender_pid(arena) == theirs.pid, "another program has started it")
            wait_until(lambda: arena.native.sender()["sink_name"] is not None, "it has published its sink")
            with pytest.raises(OtherSinkError):
                Producer(arena, sink=f"log:{log}2")
            wait_until(
                lambda: all(found._adopted_s is not None for found in list(supervisor._supervisors)),
                "the supervisor has seen it",
            )
            theirs.kill()
            wait_until(lambda: "nothing is delivered until there is one again" in caplog.text, "it was told")
            wait_for_checks(times=5)
            assert not arena.native.sender_is_alive
            assert arena.native.sender()["epoch"] == 1
            producer.close(0)
    with Arena.attach(arena_name) as again:
        assert again.has_external_sender
        wait_until(lambda: not keeps(again), "the supervisor has ended")


def test_no_sender_is_started_for_a_removed_arena(arena_name: str, log: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Arena.create(arena_name) as arena, Producer(arena, sink=f"log:{log}") as producer:
        pid = pid_of(arena)
        os.kill(pid, signal.SIGSTOP)
        Arena.remove(arena_name)
        with Arena.create(arena_name) as other:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not keeps(arena), "the supervisor has ended")
            assert f"the arena {arena.name} was removed" in caplog.text
            assert other.native.sender()["epoch"] == 0
        producer.close(0)


def test_a_supervisor_that_misses_the_name_closes_the_arena(arena_name: str) -> None:
    with Arena.create(arena_name) as arena, contextlib.suppress(ArenaRemovedError), Producer(arena, sink="null:"):
        pid = pid_of(arena)
        os.kill(pid, signal.SIGSTOP)  # which must not notice the removal
        os.unlink(SHARED_MEMORY / arena_name)
        os.unlink(ArenaFile.parse(arena_name).wake_fifo(arena.uuid))
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: arena.native.closing == "begun", "the arena takes no more records")


# --- failures


def test_a_sink_that_cannot_be_opened_is_reported_by_the_producer_that_names_it(kept: Arena, log: Path) -> None:
    log.write_text("no directory")
    with pytest.raises(SenderNotStartedError, match=f"could not start: .*{log}"):
        Producer(kept, sink=f"log:{log}")
    assert not keeps(kept)


def test_senders_that_fail_repeatedly_are_reported_and_started_less_often(
    kept: Arena, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(kept, sink=f"log:{log}", max_block_ms=1) as producer:
        log.rename(log.with_name("moved"))
        log.write_text("no directory")
        kill_sender(kept)
        wait_until(lambda: "in a row failed or died early; the next start is in 0.2 s" in caplog.text, "it waits")
        reports = [report for report in read_reports(kept.native) if report.kind is Kind.NOT_KEPT]
        assert any("could not start" in report.detail for report in reports)
        with pytest.raises(BufferExhaustedError, match=r"No sender runs: .* Its supervisor reports: "):
            fill(producer)
        log.unlink()
        log.with_name("moved").rename(log)
        producer.flush(WATCHDOG_S)


def test_pauses_between_starts_double_and_end_with_a_sender_that_lives() -> None:
    restarts = Restarts()
    pauses = []
    for _ in range(12):
        pauses.append(restarts.pause_s)
        restarts.count(0.1)
    assert pauses[:7] == [0, 0, 0, 0.1, 0.2, 0.4, 0.8]
    assert restarts.pause_s == PAUSE_MAX_S
    restarts.count(60)
    assert restarts.pause_s == 0


def test_another_sink_than_the_living_senders_is_an_error_at_once_and_later(
    kept: Arena, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Sender(kept.name, f"log:{log}") as theirs:
        theirs.open()
        with pytest.raises(OtherSinkError, match=f"delivers to log:{log}, and null: was asked for"):
            Producer(kept, sink="null:")
        assert not keeps(kept)
        ours = SenderSupervisor.supervise(kept, Recipe(f"log:{log}"))
    with Sender(kept.name, "null:") as other:
        other.open()
        wait_until(lambda: isinstance(ours.failure, OtherSinkError), "the supervisor has seen it")
        wait_until(lambda: "delivers to null:" in caplog.text, "it was told")
    ours.leave(kept)


def test_options_of_the_sender_need_a_sink_and_unknown_ones_are_refused(kept: Arena) -> None:
    with pytest.raises(InvalidArgumentError, match="retries is an option of the sender"):
        Producer(kept, retries=3)
    with pytest.raises(InvalidArgumentError, match="retrys is not an option of the producer or the sender"):
        Producer(kept, sink="null:", retrys=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgumentError, match="every user of this host can read"):
        Producer(
            kept,
            sink="kafka:127.0.0.1:1",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username="me",
            sasl_plain_password="secret",
        )
    assert not keeps(kept)


def test_a_relative_log_stays_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Recipe("log:here").sink == f"log:{tmp_path}/here"


def be_elected_and_fork(name: str, tell: int) -> None:
    with Arena.attach(name) as arena, elected_at_once(arena):
        pid = os.fork()
        if pid != 0:
            os.write(tell, b"%d" % pid)
        signal.pause()


def test_children_do_not_inherit_the_election(kept: Arena) -> None:
    """Its process was killed while it started a sender."""
    ready, tell = os.pipe()
    elected = Child(be_elected_and_fork, kept.name, tell)
    orphan = int(os.read(ready, 16))
    elected.kill()
    try:
        wait_until(lambda: is_electable(kept), "the lock is free")
    finally:
        os.kill(orphan, signal.SIGKILL)
        os.close(ready)
        os.close(tell)


def is_electable(arena: Arena) -> bool:
    with elected_at_once(arena) as is_elected:
        return is_elected


def test_at_exit_a_supervised_sender_delivers_all_records(kept: Arena, log: Path) -> None:
    script = (
        "import os, signal, sys, shmaccum\n"
        "producer = shmaccum.Producer(sys.argv[1], sink=sys.argv[2], linger_ms=1)\n"
        "facts = producer.arena.native.sender()\n"
        "pid = next(row['pid'] for row in producer.arena.native.processes() if row['entry'] == facts['entry'])\n"
        "os.kill(pid, signal.SIGKILL)\n"
        "producer.send('flights', b'at exit')\n"
    )
    command = [sys.executable, "-c", script, kept.name, f"log:{log}"]
    subprocess.run(command, check=True, timeout=WATCHDOG_S)
    wait_until(lambda: kept.native.sender_is_alive, "the successor is alive")
    assert values(log) == [b"at exit"]


def test_the_level_of_a_log_record_depends_on_the_event(
    kept: Arena, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shmaccum.supervisor")
    with Producer(kept, sink=f"log:{log}", linger_ms=1) as producer:
        kill_sender(kept)
        producer.send(TOPIC, b"v").get(WATCHDOG_S)
        wait_until(lambda: "again" in caplog.text, "it was told")
    levels = [
        (record.levelname, record.getMessage()) for record in caplog.records if record.name == "shmaccum.supervisor"
    ]
    assert levels[0] == ("WARNING", f"the sender of {kept.name} died: another one is started")
    assert levels[-1][0] == "INFO"


# --- servers that embed Python


def test_a_server_that_embeds_python_starts_the_sender_with_python(
    kept: Arena, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In uWSGI, ``sys.executable`` is uWSGI."""
    monkeypatch.setattr(sys, "executable", "/usr/sbin/uwsgi")
    with Producer(kept, sink=f"log:{log}", linger_ms=0) as producer:
        assert producer.send(TOPIC, b"record").get(WATCHDOG_S).offset == 0


def test_a_python_starts_the_sender_itself(kept: Arena, log: Path) -> None:
    assert Recipe(f"log:{log}", {}, {}).command(kept)[0] == sys.executable


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {"idle_exit_ms": IDLE_EXIT_DEFAULT}),
        ({"idle_exit": "5s"}, {"idle_exit_ms": "5s"}),
        ({"idle_exit": None}, {}),
        ({"idle_exit_ms": "200ms"}, {"idle_exit_ms": "200ms"}),
        ({"idle.exit.ms": "200ms"}, {"idle.exit.ms": "200ms"}),
    ],
)
def test_a_sender_leaves_when_it_is_asked_to(
    given: dict[str, Any], options: dict[str, Any], kept: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes: list[Recipe] = []
    monkeypatch.setattr(start, "ensure", lambda _arena, recipe, _deadline_s: recipes.append(recipe))
    ensure_sender(kept, "null:", **given)
    assert [recipe.options for recipe in recipes] == [options]
