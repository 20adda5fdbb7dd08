# SPDX-License-Identifier: Apache-2.0
"""The view of stat in rare states: bars, rates, stopped processes, a poisoned arena."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmaccum import _native
from shmaccum.arena import Arena
from shmaccum.arena.slot_word import SLOT_STATES
from shmaccum.cli.drawing import Screen, View, drawn
from shmaccum.cli.stat_view import STATE_STYLES, busiest, cells, stat_view, top_view
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.observe import observation
from shmaccum.observe.limited_topics import LimitedTopic
from shmaccum.observe.observation import ErrorFacts, Observation, Observer, ProcessFacts, Rates
from shmaccum.observe.resources import Resources
from tests.support.accumulator import Accumulator
from tests.support.arenas import deliver_all
from tests.support.processes import Child, wait_until
from tests.unit.cli.conftest import Shell, fill


def rendered(view: View, width: int = 100) -> str:
    return "\n".join(drawn(view, Screen(width)))


def changed(seen: Observation, **changes: Any) -> Observation:
    return seen._replace(**changes)


@pytest.fixture
def seen(arena: Arena) -> Observation:
    fill(arena)
    return Observer(arena).observe()


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8), st.integers(0, 200))
def test_a_bar_is_full_and_shows_whatever_exists(counts: list[int], width: int) -> None:
    shares = cells(counts, width)
    assert sum(shares) == (width if sum(counts) else 0)
    assert all(count > 0 or share == 0 for count, share in zip(counts, shares, strict=True))
    if width >= len(counts):
        assert all(share > 0 for count, share in zip(counts, shares, strict=True) if count)


def test_every_state_has_a_style() -> None:
    assert set(STATE_STYLES) == set(SLOT_STATES)


def test_a_terminal_without_unicode_gets_a_bar_of_ascii(seen: Observation) -> None:
    lines = drawn(stat_view(seen, Rates.between(seen, seen)), Screen(80, has_unicode=False))
    assert all(line.isascii() for line in lines)
    assert any("#" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_an_error_is_reported_whole_with_when_and_how_often(seen: Observation, width: int) -> None:
    sentence = "x-0 is retried: " + " ".join(f"word{number}" for number in range(30))
    error = ErrorFacts(text=sentence, status="OK", count=1234, age_ns=625 * 10**6)
    text = rendered(stat_view(changed(seen, errors=(error,)), Rates.between(seen, seen)), width)
    assert "625 ms ago" in text
    assert "1,234" in text
    assert all(word in text for word in sentence.split())


def test_rates_are_what_happened_per_second(seen: Observation) -> None:
    process = seen.processes[0]
    later = changed(
        seen,
        time_ns=seen.time_ns + 2 * 10**9,
        record_count=seen.record_count + 1000,
        record_bytes=seen.record_bytes + 8192,
        counters={**seen.counters, "records completed": seen.counters["records completed"] + 500},
        processes=(process._replace(record_count=process.record_count + 1000),),
    )
    rates = Rates.between(seen, later)
    assert (rates.records, rates.bytes, rates.records_completed) == (500, 4096, 250)
    assert rates.records_of_entry == {process.entry: 500}
    text = rendered(stat_view(later, rates))
    assert "500 records/s" in text
    assert "100%" in text


def test_an_arena_that_was_recovered_between_two_looks_has_no_negative_rates(seen: Observation) -> None:
    earlier = changed(seen, time_ns=seen.time_ns - 10**9, record_count=10**6, counters={"batches opened": 10**6})
    rates = Rates.between(earlier, seen)
    assert (rates.records, rates.batches) == (0, 0)


def test_problems_are_named(seen: Observation) -> None:
    counters = {**seen.counters, "batches expired": 3, "allocations that gave up waiting": 7}
    counters |= {"allocations that waited for a buffer": 10, "nanoseconds spent waiting for a buffer": 30_000_000}
    sick = changed(
        seen,
        poisoned="CORRUPT",
        counters=counters,
        waiting_count=4,
        slots={**seen.slots, "BAD": 2},
        sender=seen.sender._replace(is_alive=True, pid=77, name="sender", state="stopped", heartbeat_age_ns=12 * 10**9),
        dead_slot_count=5,
        processes=(
            seen.processes[0]._replace(
                state="stopped",
                stopped_age_ns=3 * 10**9,
                held_slot_count=2,
                is_waiting=True,
                is_forcing=True,
            ),
        ),
    )
    text = rendered(stat_view(sick, Rates.between(seen, sick)), width=160)
    for words in (
        "POISONED (CORRUPT)",
        "3 batches expired",
        "4 for a buffer now",
        "6 waits before, 5 ms in the mean",
        "7 gave up",
        "BAD 2",
        "STOPPED for 12 s",
        "for 3 s, holds 2 buffers, waits for a buffer, FORCES THE ARENA TO DISK",
        "kill -CONT",
        "5 buffers of dead processes",
    ):
        assert words in text


def test_a_process_whose_records_go_elsewhere_is_shown_as_such(arena: Arena) -> None:
    with Accumulator(arena):
        arena.native.show_fallback()
        seen = Observer(arena).observe()
    for view in (stat_view, top_view):
        assert "fallback" in rendered(view(seen, Rates.between(seen, seen)))


@pytest.mark.parametrize("width", [80, 120])
def test_views_keep_within_the_terminal(seen: Observation, width: int) -> None:
    many = tuple(seen.processes[0]._replace(entry=entry, pid=10**6 + entry) for entry in range(40))
    topic = LimitedTopic("flights", 30, 9, {}, "it has no leader", 10**9, 10**4, 10**9, 0.5, 10**4, 10**3, 10**9, 0)
    topics = tuple(topic._replace(topic=f"a-topic-with-a-name-of-its-own-{number}") for number in range(12))
    crowd = changed(seen, processes=many, record_count=10**9, limited_topics=topics)
    for view in (stat_view, top_view):
        text = rendered(view(crowd, Rates.between(crowd, crowd)), width)
        assert max(map(len, text.splitlines())) <= width
        assert str(10**6) in text
        assert "topics at a limit (12 of" in text
        assert "and 4 more" in text
    assert "and 28 more" in rendered(stat_view(crowd, Rates.between(crowd, crowd)), width)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_rates_of_processes_are_shown_in_any_width(seen: Observation, width: int) -> None:
    process = seen.processes[0]._replace(entry=0, pid=10**6, name="gunicorn")
    rates = Rates.between(seen, seen)._replace(records_of_entry={0: 1_234_567.0})
    for view in (stat_view, top_view):
        text = rendered(view(changed(seen, processes=(process,)), rates), width)
        (line,) = [line for line in text.splitlines() if line.startswith("1000000 ")]
        assert "1,234,567" in line
        assert len(line) <= width


def busy(seen: Observation) -> Observation:
    """Large numbers, a long sink name, and many of each item."""
    many = tuple(seen.processes[0]._replace(entry=entry, pid=10**6 + entry) for entry in range(40))
    sender = seen.sender._replace(
        is_alive=True,
        pid=10**6,
        name="shmaccum-sender",
        heartbeat_age_ns=88_900_000,
        sink="kafka:broker-1.example:9092,broker-2.example:9092",
    )
    errors = tuple(ErrorFacts(text=f"error {age}", status="OK", count=1, age_ns=age * 10**9) for age in range(20))
    counters = {**seen.counters, "records completed": 10**9}
    return changed(seen, processes=many, record_count=10**9, sender=sender, errors=errors, counters=counters)


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_of_the_head_breaks_within_a_fact(seen: Observation, width: int) -> None:
    later = changed(busy(seen), time_ns=seen.time_ns + 10**9, record_count=seen.record_count + 10**9)
    lines = rendered(stat_view(later, Rates.between(seen, later)), width).splitlines()
    for facts in (
        ("in ", "1,000,000,000 records/s", f"{later.record_count:,} in total"),
        ("sender ", "shmaccum-sender (1000000)", "heartbeat 88.9 ms ago"),
        ("sink ", "kafka:broker-1.example:9092,broker-2.example:9092"),
    ):
        assert any(line.startswith(facts[0]) for line in lines)
        assert all(any(fact in line for line in lines) for fact in facts)


@pytest.mark.parametrize("height", [24, 30, 50])
@pytest.mark.parametrize("width", [80, 120])
def test_a_screen_that_is_painted_over_shows_the_newest_error_and_the_busiest_process(
    seen: Observation, width: int, height: int
) -> None:
    crowd = busy(seen)
    for view in (stat_view, top_view):
        lines = drawn(view(crowd, Rates.between(crowd, crowd)), Screen(width, height))
        assert len(lines) <= height
        assert any("1000000 " in line for line in lines)
        assert any("error 0" in line for line in lines) == (view is stat_view)


def test_brackets_in_a_name_are_no_style(seen: Observation) -> None:
    process = seen.processes[0]._replace(name="[/red]x[b]")
    assert "[/red]x[b]" in rendered(stat_view(changed(seen, processes=(process,)), Rates.between(seen, seen)))


def test_the_busiest_come_first_and_the_dead_not_at_all(seen: Observation) -> None:
    process = seen.processes[0]
    lazy, busy, dead = (
        process._replace(entry=entry, state=state) for entry, state in enumerate(["sleeping", "running", "gone"])
    )
    rates = Rates.between(seen, seen)._replace(records_of_entry={0: 1.0, 1: 9.0, 2: 99.0})
    assert busiest(changed(seen, processes=(lazy, busy, dead)), rates) == [busy, lazy]


# --- real processes

PRODUCER = """
import sys
from shmaccum import Arena, Producer
with Arena.attach(sys.argv[1]) as arena:
    arena.native.set_topic_partition_count("t", 1)
    producer = Producer(arena)
    producer.send("t", b"v")
    print("ready", flush=True)
    sys.stdin.read()
    producer.close(0)
"""


def facts_of(observer: Observer, pid: int) -> ProcessFacts:
    return next(facts for facts in observer.observe().processes if facts.pid == pid)


def test_a_look_reads_the_state_of_each_process_once(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    running = observation._running

    def reading(pid: int) -> observation._ProcessState | None:
        read.append(pid)
        return running(pid)

    monkeypatch.setattr(observation, "_running", reading)
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        seen = Observer(arena).observe()
    assert seen.sender.state == "running"
    assert read == [process.pid for process in seen.processes]


def test_a_stopped_process_is_named_and_keeps_its_entry(arena: Arena) -> None:
    observer = Observer(arena)
    command = [sys.executable, "-c", PRODUCER, arena.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            os.kill(process.pid, signal.SIGSTOP)
            wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "the process is stopped")
            stopped = facts_of(observer, process.pid)
            assert (stopped.is_stopped, stopped.is_alive) == (True, True)
            first_ns = stopped.stopped_age_ns or 0
            assert stopped.stopped_age_ns is not None
            wait_until(
                lambda: (facts_of(observer, process.pid).stopped_age_ns or 0) > first_ns, "the kernel's clock goes on"
            )
        finally:
            os.kill(process.pid, signal.SIGCONT)
            process.communicate("")
    gone = facts_of(observer, process.pid)
    assert (gone.state, gone.is_alive, gone.stopped_age_ns) == ("gone", False, None)


def test_a_row_counts_from_the_attach_of_its_process(arena: Arena) -> None:
    observer = Observer(arena)
    counts = []
    for number in range(1, 4):
        with Arena.attach(arena.name) as other, Accumulator(other) as accumulator:
            entry = other.native.entry_index
            for _ in range(number):
                accumulator.append("t", 0, 0, None, b"v")
            facts = next(facts for facts in observer.observe().processes if facts.entry == entry)
            counts.append((facts.entry, facts.record_count, facts.record_bytes > 0))
    assert [(count, has_bytes) for _, count, has_bytes in counts] == [(1, True), (2, True), (3, True)]
    assert len({entry for entry, _, _ in counts}) == 1
    assert observer.observe().record_count == 6


def test_a_process_that_left_and_lives_is_not_gone(arena: Arena) -> None:
    with Arena.attach(arena.name) as other:
        entry = other.native.entry_index
    facts = next(facts for facts in Observer(arena).observe().processes if facts.entry == entry)
    assert (facts.pid, facts.state, facts.is_alive) == (os.getpid(), "detached", False)


LOOK = """
import sys
from shmaccum.cli import main
try:
    main(sys.argv[1:])
finally:
    slow = {"numpy", "psutil", "rich", "logging", "pathlib", "shmaccum.sender.sinks"}
    print(sorted(slow & set(sys.modules)), file=sys.stderr)
"""


def test_a_look_loads_no_large_package(arena: Arena) -> None:
    assert loaded_by(arena, "stat", arena.name, "--once") == "[]\n"


@pytest.mark.parametrize("command", [["stat", "--processes"], ["stat", "--json"], ["top"]])
def test_what_shows_cpu_and_memory_loads_psutil(arena: Arena, command: list[str]) -> None:
    assert "'psutil'" in loaded_by(arena, *command, arena.name, "--once")


def loaded_by(arena: Arena, *arguments: str) -> str:
    looked = subprocess.run([sys.executable, "-c", LOOK, *arguments], capture_output=True, text=True, check=True)
    assert arena.name in looked.stdout
    return looked.stderr


def is_shown(text: str) -> tuple[bool, bool]:
    """Whether CPU and memory are columns of the process table, and shown for this process."""
    row = rf"^ *{os.getpid()} .* \d+ %  +\d[^ ]* [KMG]iB"
    return "cpu" in text and "memory" in text, re.search(row, text, re.MULTILINE) is not None


def test_stat_shows_cpu_and_memory_of_processes_if_asked(shell: Shell, filled: str) -> None:
    assert is_shown(shell("stat", filled, "--once", "--processes", columns=80).stdout) == (True, True)
    assert is_shown(shell("stat", filled, "--once", columns=160).stdout) == (False, False)
    for document in (shell.json("stat", filled, "--once"), shell.json("inspect", filled)):
        process = next(row for row in document["processes"] if row["pid"] == os.getpid())
        assert process["cpu_percent"] >= 0
        assert process["memory_size"] > 2**20


@pytest.mark.usefixtures("sender")
def test_the_cpu_of_a_process_is_that_since_the_look_before_also_of_the_sender(arena: Arena) -> None:
    observer = Observer(arena, Resources())
    first = facts_of(observer, os.getpid())
    end_s = time.process_time() + 0.1
    while time.process_time() < end_s:
        pass
    seen = observer.observe()
    assert seen.sender.pid == os.getpid()
    facts = next(facts for facts in seen.processes if facts.pid == os.getpid())
    assert first.cpu_percent == 0
    assert (facts.cpu_percent or 0) > 0
    assert (facts.memory_size or 0) > 2**20


def test_a_process_that_has_ended_or_is_another_has_no_figures(arena: Arena) -> None:
    resources = Resources()
    child = Child(time.sleep, 3600)
    entry = {"entry": 1, "pid": child.pid, "start_time_ticks": 1}
    assert resources.read(entry) is not None
    child.kill()
    assert resources.read(entry) is None
    later = {"entry": 1, "pid": os.getpid(), "start_time_ticks": 2}
    used = resources.read(later)
    assert used is not None
    assert used.memory_size > 2**20
    assert facts_of(Observer(arena), os.getpid()).memory_size is None


SHARE: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "process_count": 16, "waiter_count": 8}
ONE_BATCH = bytes(3000)


def of_child(arena: Arena, child: Child) -> ProcessFacts:
    return facts_of(Observer(arena), child.pid)


def fill_and_stop(name: str, batch_count: int) -> None:
    with Arena.attach(name) as arena, Accumulator(arena) as accumulator:
        for _ in range(batch_count):
            accumulator.append("t", 0, 1, None, ONE_BATCH)
        os.kill(os.getpid(), signal.SIGSTOP)
        signal.pause()


def is_stopped(child: Child) -> bool:
    return psutil.Process(child.pid).status() == psutil.STATUS_STOPPED


def test_each_process_is_reported_with_its_share_even_if_it_is_stopped_or_dead(
    arena_name: str,
) -> None:
    with Arena.create(arena_name, max_process_share="25%", **SHARE) as arena:
        child = Child(fill_and_stop, arena_name, 3)
        wait_until(lambda: is_stopped(child), "it has filled its batches and stopped")
        facts = of_child(arena, child)
        assert (facts.held_slot_count, facts.held_size, facts.owned_slot_count) == (3, 3 * 4096, 0)
        seen = Observer(arena).observe()
        assert (seen.process_slot_count_max, seen.dead_slot_count) == (4, 0)
        text = rendered(stat_view(seen, Rates.between(seen, seen)), 160)
        assert re.search(
            rf"stopped +{facts.name} \({child.pid}\), producer, for .* [mu]?s, holds 3 buffers: kill -CONT", text
        )
        assert re.search(rf"{child.pid} .* 3 of 4 +12 KiB", text)
        child.kill()
        seen = Observer(arena).observe()
        assert seen.dead_slot_count == 3
        assert "3 buffers of dead processes" in rendered(stat_view(seen, Rates.between(seen, seen)), 160)
        deliver_everything(arena)


def deliver_everything(arena: Arena) -> None:
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        deliver_all(accumulator)


def test_a_stopped_waiter_has_to_wait(arena_name: str) -> None:
    with Arena.create(arena_name, **SHARE) as arena:
        full = Child(fill_and_stop, arena_name, 16)
        wait_until(lambda: is_stopped(full), "nothing is free")
        waiter = Child(fill_and_stop, arena_name, 1)
        wait_until(lambda: Observer(arena).observe().waiting_count == 1, "it waits")
        os.kill(waiter.pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(waiter), "it is stopped")
        facts = of_child(arena, waiter)
        assert facts.is_waiting
        seen = Observer(arena).observe()
        text = rendered(stat_view(seen, Rates.between(seen, seen)), 160)
        assert re.search(
            rf"\({waiter.pid}\), producer, for .* [mu]?s, waits for a buffer: kill -CONT {waiter.pid}", text
        )
        for child in (waiter, full):
            child.kill()
        deliver_everything(arena)


def sync_for_ever(path: str) -> None:
    with Arena.attach(path) as arena, Accumulator(arena) as accumulator:
        while True:
            accumulator.append("t", 0, 1, None, b"v")


def test_a_stopped_leader_of_the_group_commit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.arena"
    try:
        arena = Arena.create(path, durability="sync", **SHARE)
    except InvalidArgumentError:
        pytest.skip("the folder of temporary files lies in memory, where no arena is durable")
    with arena:
        leader = Child(sync_for_ever, str(path))

        def is_stopped_while_it_leads() -> bool:
            os.kill(leader.pid, signal.SIGCONT)
            os.kill(leader.pid, signal.SIGSTOP)
            wait_until(lambda: is_stopped(leader), "it is stopped")
            return any(facts.is_forcing for facts in Observer(arena).observe().processes)

        wait_until(lambda: any(process["alive"] for process in arena.native.processes()[1:]), "it is attached")
        wait_until(is_stopped_while_it_leads, "it is stopped in the middle of a force")
        assert of_child(arena, leader).is_forcing
        seen = Observer(arena).observe()
        text = rendered(stat_view(seen, Rates.between(seen, seen)), 200)
        assert re.search(rf"\({leader.pid}\), producer, for .* [mu]?s,.* FORCES THE ARENA TO DISK", text)
        leader.kill()
        assert not any(facts.is_forcing for facts in Observer(arena).observe().processes)


def test_one_that_waits_is_seen_waiting(arena: Arena, sender: Accumulator) -> None:
    observer = Observer(arena)
    place = _native.BufferWait.join(arena.native, 1)
    try:
        seen = observer.observe()
        assert seen.waiting_count + sum(seen.slots[state] for state in ("GRANT", "OWNED")) >= 1
    finally:
        place.cancel()


def test_a_terminal_is_painted_again_and_again_until_ctrl_c(shell: Shell, filled: str) -> None:
    import pty

    shell("stat", filled)
    pid, descriptor = pty.fork()
    if pid == 0:
        os.environ.update(COLUMNS="80", LINES="24", TERM="xterm")
        os.execv(sys.executable, [sys.executable, "-m", "shmaccum", "stat", filled, "-n", "0.05"])
    painted = b""
    while painted.count(b"oldest") < 3:
        painted += os.read(descriptor, 4096)
    assert b"\x1b[?1049h" in painted
    os.kill(pid, signal.SIGINT)
    try:
        while block := os.read(descriptor, 4096):
            painted += block
    except OSError:
        pass  # the terminal is closed with the process
    _, status = os.waitpid(pid, 0)
    os.close(descriptor)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"\x1b[?1049l" in painted
    assert b"No space left on device" in painted.rpartition(b"\x1b[?1049l")[2]
