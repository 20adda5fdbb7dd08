# SPDX-License-Identifier: Apache-2.0
"""In a process that gevent or eventlet has patched, no wait of a producer stops the other greenlets.

In a program, one greenlet ends the wait of another. A wait in C would never end.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from shmaccum.arena import Arena
from tests.support.arenas import end_senders
from tests.support.processes import WATCHDOG_S

PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}
PRELUDE = """
import os, signal, sys, threading
import shmaccum
from tests.support.arenas import sender_pid
from tests.support.processes import wait_until
name, log, made_before = sys.argv[1:4]
def make():
    return shmaccum.Producer(name, sink=log, max_block_ms="60s", linger_ms=0)
producer = make() if made_before == "before" else None
"""
BEGIN = """
producer = producer or make()
producer.send("t", b"0").get(30)
pid = sender_pid(producer.arena)
def when(moment):
    "Lets the sender go on as soon as another greenlet waits."
    def watch():
        wait_until(moment, "a greenlet waits")
        os.kill(pid, signal.SIGCONT)
    threading.Thread(target=watch).start()
def begun(owner, method):
    begin, calls = getattr(owner, method), []
    setattr(owner, method, lambda *given: (calls.append(1), begin(*given))[1])
    return lambda: calls
"""
WAITS = {
    "send": """
when(lambda: producer.arena.statistics().waiting_count == 1)
for _ in range(12):
    producer.send("t", bytes(10_000))
""",
    "get": """
future = producer.send("t", b"1")
when(begun(producer._tracker, "wake_waiting_sender"))
future.get(50)
""",
    "flush": """
producer.send("t", b"1")
when(begun(producer._appender, "begin_flush"))
producer.flush(50)
""",
    "callback": """
told = []
producer.send("t", b"1").add_callback(told.append)
when(lambda: producer._tracker._waiters.native.waiting_count)
wait_until(lambda: told, "the callback was called")
""",
    "partitions_for": """
when(lambda: "new" in producer.arena.native.topics())
producer.partitions_for("new")
""",
    "close": """
producer.send("t", b"1")
when(begun(producer._appender, "begin_flush"))
producer.close(50)
""",
}


def program_of(waits: Iterable[str]) -> str:
    """The waits one after the other, each with a stopped sender. Each prints its name when it has ended."""
    return "\n".join(f"os.kill(pid, signal.SIGSTOP)\n{WAITS[wait]}\nprint({wait!r}, flush=True)" for wait in waits)


def run(*parts: str, arguments: tuple[str, ...]) -> str:
    command = [sys.executable, "-W", "ignore", "-c", "\n".join(parts), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * WATCHDOG_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def arena_with_sender(arena_name: str) -> str:
    Arena.create(arena_name, buffer_memory="64KiB", batch_size="16KiB", topics={"t": 1}).close()
    return arena_name


def leave(arena_name: str) -> None:
    with Arena.attach(arena_name) as arena:
        end_senders(arena)


def skip_without(library: str) -> None:
    """Skip without an import here, since eventlet warns of each later fork of the process."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


@pytest.mark.parametrize("library", PATCHES)
def test_other_greenlets_run_while_one_waits(library: str, arena_with_sender: str, tmp_path: Path) -> None:
    skip_without(library)
    arguments = arena_with_sender, f"log:{tmp_path}/log", "after"
    try:
        assert run(PATCHES[library], PRELUDE, BEGIN, program_of(WAITS), arguments=arguments).split() == [*WAITS]
    finally:
        leave(arena_with_sender)


@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("library", PATCHES)
def test_other_greenlets_run_where_the_library_patches_late(
    library: str, made: str, arena_with_sender: str, tmp_path: Path
) -> None:
    skip_without(library)
    waits = ["send", "callback", "close"]
    arguments = arena_with_sender, f"log:{tmp_path}/log", made
    try:
        assert run(PRELUDE, PATCHES[library], BEGIN, program_of(waits), arguments=arguments).split() == waits
    finally:
        leave(arena_with_sender)


def test_a_library_that_is_imported_and_patches_nothing_changes_nothing() -> None:
    for library in PATCHES:
        skip_without(library)
    code = """
import gevent.monkey, eventlet.patcher
from shmaccum.common import cooperative
print(cooperative.patched_by())
"""
    assert run(code, arguments=()) == "None"


@pytest.mark.parametrize("library", PATCHES)
def test_what_waits_in_c_refuses_a_patched_process(library: str, arena_with_sender: str, tmp_path: Path) -> None:
    skip_without(library)
    code = """
import shmaccum, sys
for make in (
    lambda: shmaccum.Sender(sys.argv[1], "null:"),
    lambda: shmaccum.Consumer(sys.argv[2]),
):
    try:
        make()
    except shmaccum.InvalidArgumentError as error:
        print(error)
"""
    lines = run(PATCHES[library], code, arguments=(arena_with_sender, f"log:{tmp_path}")).splitlines()
    assert len(lines) == 2
    assert all(f"that {library} has patched: run it in " in line for line in lines)


@pytest.mark.parametrize("library", PATCHES)
@pytest.mark.parametrize("durability", ["sync", "interval"])
def test_the_disk_is_waited_for_in_a_thread(library: str, durability: Any, tmp_path: Path) -> None:
    skip_without(library)
    options: Any = {"sync_interval_ms": 20} if durability == "interval" else {}
    Arena.create(tmp_path / "arena", durability=durability, topics={"t": 1}, **options).close()
    code = """
import sys, threading
import shmaccum
from tests.support.processes import wait_until
with shmaccum.Producer(sys.argv[1], linger_ms=0) as producer:
    producer.send("t", b"1")
    wait_until(lambda: producer.arena.native.poisoned is None, "it is sound")
    producer.arena.sync(30)
    producer.close(0)
print("synced")
"""
    try:
        assert run(PATCHES[library], code, arguments=(str(tmp_path / "arena"),)) == "synced"
    finally:
        Arena.remove(tmp_path / "arena")
