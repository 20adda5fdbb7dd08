# SPDX-License-Identifier: Apache-2.0
"""Read-only commands on live, empty and damaged arenas change nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from shmaccum import _native
from shmaccum.arena import Arena
from shmaccum.cli.group import EXIT_READER_GONE
from shmaccum.cli.inspect import ROW_COUNT_MAX, hex_lines, shown, superblock
from shmaccum.common.format.batch_header import TRANSACTIONAL
from shmaccum.log.files import LogReader
from shmaccum.observe.inspection import Inspector
from tests.support.accumulator import Accumulator
from tests.support.arenas import deliver_all, drain
from tests.unit.cli.conftest import RECORD_COUNT, Shell, damage_region

LOOKING = {
    "stat": ["stat", "{}", "--once"],
    "stat --json": ["stat", "{}", "--json"],
    "top": ["top", "{}", "--once"],
    "inspect": ["inspect", "{}"],
    "inspect --json": ["inspect", "{}", "--json"],
    "slots": ["inspect", "{}", "--slots"],
    "slots --json": ["inspect", "{}", "--slots", "--json"],
    "free": ["inspect", "{}", "--state", "free"],
    "slot": ["inspect", "{}", "--slot", "1"],
    "slot --json": ["inspect", "{}", "--slot", "1", "--json"],
    "completions": ["inspect", "{}", "--completions", "5"],
    "completions --json": ["inspect", "{}", "--completions", "5", "--json"],
    "check": ["check", "{}", "--depth", "deep"],
    "check --json": ["check", "{}", "--json"],
    "metrics": ["metrics", "{}"],
    "recover": ["recover", "{}", "--dry-run"],
    "recover --json": ["recover", "{}", "--dry-run", "--json"],
}
each_command = pytest.mark.parametrize("command", LOOKING.values(), ids=LOOKING)
REGIONS = [
    *("globals", "processes", "waiters", "topics", "partitions", "names", "free_hints", "slot_headers", "completions"),
    *("counters", "error_log", "slot_data"),
]


def spell(command: list[str], name: object) -> list[str]:
    return [part.format(name) for part in command]


# --- nothing is changed, nothing crashes


@each_command
def test_inspection_changes_nothing(shell: Shell, make_file: Callable[[], Path], command: list[str]) -> None:
    path = make_file()
    before = path.read_bytes(), path.stat().st_mtime_ns
    result = shell(*spell(command, path))
    assert result.stdout
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@each_command
def test_inspection_works_beside_a_process_that_appends(shell: Shell, arena: Arena, command: list[str]) -> None:
    with Accumulator(arena) as accumulator:
        accumulator.append("t", 0, 0, b"k", b"v")
        shell(*spell(command, arena.name))
        accumulator.append("t", 0, 0, b"k", b"v")
        accumulator.become_sender()
        assert deliver_all(accumulator) == [b"v", b"v"]


@each_command
def test_inspection_of_an_empty_arena(shell: Shell, arena: Arena, command: list[str]) -> None:
    shell(*spell(command, arena.name))


@each_command
@pytest.mark.parametrize("region", REGIONS)
def test_inspection_of_a_damaged_arena_neither_crashes_nor_changes_it(
    shell: Shell, make_file: Callable[[], Path], command: list[str], region: str
) -> None:
    path = make_file()
    data = damage_region(path, region, f"{region} {command}")
    result = shell(*spell(command, path), code=None)
    assert result.exit_code in ({0, 1, 2} if command[0] in {"check", "recover"} else {0, 2})
    assert path.read_bytes() == data


@each_command
@pytest.mark.parametrize("damage", ["missing", "folder", "fifo", "something else", "truncated"])
def test_what_is_no_arena_is_a_sentence_and_exit_code_two(
    shell: Shell, make_file: Callable[[], Path], command: list[str], damage: str
) -> None:
    path = make_file()
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:5000])
    elif damage == "something else":
        path.write_bytes(b"no arena" * 1000)
    else:
        path.unlink()
        if damage == "folder":
            path.mkdir()
        elif damage == "fifo":
            os.mkfifo(path, 0o600)
    result = shell(*spell(command, path), code=2)
    assert result.stderr.startswith("shmaccum: ")
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1


@each_command
def test_inspection_needs_no_entry_and_takes_none(shell: Shell, arena_name: str, command: list[str]) -> None:
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", process_count=1) as arena:
        shell(*spell(command, arena_name))
        assert len(arena.native.processes()) == 1


# --- stat and top


def test_stat_reports_what_waits(shell: Shell, filled: str) -> None:
    document = shell.json("stat", filled)
    assert document["queued_record_count"] == RECORD_COUNT + 1
    assert document["topics"] == {"done": 0, "flights": 2, "cargo": 0}
    queues = {(queue["topic"], queue["partition"]): queue["record_count"] for queue in document["partitions"]}
    assert queues == {("done", 0): 0, ("flights", 0): 20, ("flights", 1): 20, ("cargo", 0): 1}
    assert sum(document["slots"].values()) == document["slot_count"]
    assert document["oldest_batch"]["topic"] == "flights"
    assert document["sender"]["is_alive"] is False
    assert document["errors"][0]["text"] == "the log is full: No space left on device"
    assert set(document["rates"]) >= {"records", "bytes", "batches", "records_completed", "wait_share"}


@pytest.mark.parametrize("columns", [80, 120])
def test_stat_reports_it_in_words_within_the_width(shell: Shell, filled: str, columns: int) -> None:
    output = shell("stat", filled, columns=columns).stdout
    for words in (
        "fill",
        "41 records in 3 batches",
        "oldest",
        "flights-0",
        "not running: start one",
    ):
        assert words in output
    assert max(map(len, output.splitlines())) <= columns


def test_stat_is_repeated_as_often_as_asked(shell: Shell, filled: str) -> None:
    lines = shell("stat", filled, "--json", "-n", "0.05", "-c", "3").stdout.splitlines()
    assert len([json.loads(line) for line in lines]) == 3


def test_top_names_this_process(shell: Shell, filled: str) -> None:
    assert str(os.getpid()) in shell("top", filled).stdout


# --- inspect


def test_counts_that_claim_thousands_of_rows_fill_no_screen(make_file: Callable[[], Path], shell: Shell) -> None:
    path = make_file()
    with Arena.open_read_only(path) as arena:
        globals_ref, row_count = arena.native.layout["globals"], arena.geometry["partition_count"]
    with open(path, "r+b") as stream:
        os.pwrite(stream.fileno(), b"\xff" * 600, globals_ref)
    output = shell("inspect", str(path)).stdout
    assert len(output.splitlines()) < 100 + 3 * ROW_COUNT_MAX
    assert f"… and {row_count - ROW_COUNT_MAX:,} rows more (--json shows all)" in output
    assert len(shell.json("inspect", str(path))["partitions"]) == row_count


def test_a_slot_is_shown_with_its_records_and_bytes(shell: Shell, filled: str) -> None:
    (slot,) = [slot for slot in shell.json("inspect", filled, "--topic", "flights") if slot["partition"] == 1]
    assert (slot["state"], slot["record_count"], slot["is_checksum_right"]) == ("OPEN", 20, True)
    document = shell.json("inspect", filled, "--slot", str(slot["slot_index"]))
    assert document["records"][0] == {
        "index": 0,
        "timestamp_ms": 1_700_000_000_001,
        "key": "key-1",
        "value": "value",
        "headers": [["h", "x"]],
    }
    output = shell("inspect", filled, "--slot", str(slot["slot_index"])).stdout
    assert "key-39" in output
    assert "000040  " in output


def test_an_oversized_batch_is_shown_whole(shell: Shell, filled: str) -> None:
    (slot,) = shell.json("inspect", filled, "--topic", "cargo")
    assert len(slot["chain"]) == 2
    assert slot["is_checksum_right"] is True
    continued = shell.json("inspect", filled, "--state", "cont")
    assert [(cont["slot_index"], cont["holder"]) for cont in continued] == [
        (index, slot["slot_index"]) for index in sorted(slot["chain"])
    ]
    assert len(shell.json("inspect", filled, "--slot", str(slot["slot_index"]))["records"][0]["value"]) == 10_000


def test_results_are_listed_newest_first(shell: Shell, filled: str) -> None:
    (result,) = shell.json("inspect", filled, "--completions", "5")
    assert (result["topic"], result["result"], result["base_offset"], result["record_count"]) == (
        "done",
        "succeeded",
        500,
        40,
    )


def test_brackets_in_a_key_are_no_style(arena: Arena, shell: Shell) -> None:
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        accumulator.append("t", 0, 0, b"[/key]", b"[bold]value[/]")
        arena.native.record_error("[/error]")
        assert re.search(r"\[/key\] +\[bold\]value\[/\]", shell("inspect", arena.name, "--slot", "0").stdout)
        assert "[/error]" in shell("inspect", arena.name).stdout
        deliver_all(accumulator)


def test_elsewhere_than_on_a_terminal_no_line_ends_in_blanks(shell: Shell, filled: str) -> None:
    for command in (["stat"], ["top"], ["inspect"], ["inspect", "--slots"], ["inspect", "--completions", "5"]):
        lines = shell(*command, filled).stdout.splitlines()
        assert lines == [line.rstrip() for line in lines]


def test_a_slot_that_is_not_there_is_a_sentence(shell: Shell, filled: str) -> None:
    assert "there is no slot 16: the arena has slots 0 to 15" in shell("inspect", filled, "--slot", "16", code=2).stderr
    assert "the states are FREE" in shell("inspect", filled, "--state", "nix", code=2).stderr


def test_a_batch_is_put_together_as_the_sender_would(arena: Arena) -> None:
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        accumulator.set_producer_id(4711, 2)
        for number in range(10):
            accumulator.append("t", 0, 1000 + number, b"k%d" % number, b"v")
        inspector = Inspector(arena)
        (facts,) = inspector.slots(frozenset({"OPEN"}))
        assert [record[2] for record in inspector.records(facts) or []] == [b"k%d" % number for number in range(10)]
        (batch,) = drain(accumulator)
        (facts,) = inspector.slots(frozenset({"READY"}))
        assert inspector.batch_bytes(facts) == batch.tobytes()
        accumulator.complete(batch, 1)
        del inspector


def test_bytes_are_shown_readably() -> None:
    assert shown(None) == "-"
    assert shown(b"a\nb\xff") == "a\\nb\\xff"
    assert shown(b"x" * 50).endswith("x… (50 bytes)")
    assert list(hex_lines(b"0123456789abcdef\x00", 17))[1].endswith("00" + " " * 47 + ".")
    assert "1 more bytes" in list(hex_lines(bytes(17), 16))[-1]


# --- check


@pytest.mark.parametrize("depth", ["quick", "normal", "deep"])
def test_a_sound_arena_is_reported_as_sound(shell: Shell, filled: str, depth: str) -> None:
    assert shell("check", filled, "--depth", depth).stdout == f"{filled} is sound ({depth})\n"
    assert shell.json("check", filled, "--depth", depth)["is_sound"] is True


def test_an_overwritten_batch_is_found_by_the_deep_check(shell: Shell, make_file: Callable[[], Path]) -> None:
    path = make_file()
    (slot, *_) = shell.json("inspect", str(path), "--topic", "flights")
    scribble(path, slot["slot_index"])
    assert "slot" in shell("check", str(path), "--depth", "deep", code=1).stdout
    assert shell.json("inspect", str(path), "--topic", "flights")[0]["is_checksum_right"] is False


def scribble(path: Path, slot_index: int) -> None:
    """Change bytes in the middle of a slot's records."""
    with Arena.open_read_only(path) as arena:
        start = arena.native.layout["slot_data"] + slot_index * arena.geometry["slot_stride"]
    with open(path, "r+b") as stream:
        stream.seek(start + 100)
        stream.write(b"scribble")


# --- recover --export


def test_exported_batches_are_segments_with_an_index(
    shell: Shell, make_file: Callable[[], Path], tmp_path: Path
) -> None:
    path, folder = make_file(), tmp_path / "export"
    before = path.read_bytes()
    document = shell.json("recover", str(path), "--export", str(folder))
    assert (document["batch_count"], document["damaged_count"], document["record_count"]) == (3, 0, RECORD_COUNT + 1)
    index = msgpack.unpackb((folder / "index.msgpack").read_bytes())
    keys: list[bytes | None] = []
    for batch in index:
        segment = (folder / batch["file"]).read_bytes()
        found = _native.decode_batch(segment[batch["position"] : batch["position"] + batch["size"]])
        assert len(found) == batch["record_count"]
        keys += [record[2] for record in found if batch["topic"] == "flights"]
    assert sorted(filter(None, keys)) == sorted(b"key-%d" % number for number in range(RECORD_COUNT))
    lines = shell("log", "cat", str(folder), "-t", "flights", "-f", r"%p %o %k=%s %h\n").stdout.splitlines()
    assert lines[0] == "0 0 key-0=value h=x"
    assert len(lines) == RECORD_COUNT
    assert path.read_bytes() == before


@pytest.mark.parametrize("is_delivered_once", [False, True])
def test_readers_of_committed_records_see_none_of_a_transaction_that_was_exported(
    shell: Shell, arena_name: str, tmp_path: Path, is_delivered_once: bool
) -> None:
    sizes: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "process_count": 16, "waiter_count": 16}
    with Arena.create(arena_name, topics={"parts": 1}, transactional_id="orders-1", **sizes) as arena:
        arena.native.begin_transaction()
        with Accumulator(arena) as accumulator:
            accumulator.become_sender()
            accumulator.append("parts", 0, 1, None, b"1")
            if is_delivered_once:
                accumulator.set_producer_id(4711, 2)
                drain(accumulator)
            accumulator.append("parts", 0, 1, None, b"2")
        folder = str(tmp_path / "export")
        document = shell.json("recover", arena_name, "--export", folder)
        assert (document["record_count"], document["damaged_count"]) == (2, 0)
        assert (document["transaction"]["number"], document["transaction"]["state"]) == (1, "open")
        again = shell("recover", arena_name, "--export", str(tmp_path / "again")).stdout
        assert "they belong to transaction 1, which is open: readers with isolation_level=read_committed" in again
        arena.native.abort_transaction(1)
    reader = LogReader(folder)
    assert [record.value for record in reader.partition("parts", 0).records()] == [b"1", b"2"]
    committed = LogReader(folder, isolation_level="read_committed")
    assert list(committed.partition("parts", 0).records()) == []
    headers = [batch.header for batch in reader.partition("parts", 0).batches()]
    assert all(header.attributes & TRANSACTIONAL and header.producer_id >= 0 for header in headers)


def test_damaged_batches_are_exported_as_they_are(shell: Shell, make_file: Callable[[], Path], tmp_path: Path) -> None:
    path, folder = make_file(), tmp_path / "export"
    (slot, *_) = shell.json("inspect", str(path), "--topic", "flights")
    scribble(path, slot["slot_index"])
    document = shell.json("recover", str(path), "--export", str(folder), code=1)
    assert (document["batch_count"], document["damaged_count"]) == (3, 1)
    damaged = folder / "damaged" / f"slot-{slot['slot_index']:06}.bin"
    assert b"scribble" in damaged.read_bytes()
    assert damaged.stat().st_size == slot["size"]


def test_an_export_never_writes_into_something_that_is_there(
    shell: Shell, make_file: Callable[[], Path], tmp_path: Path
) -> None:
    refused = shell("recover", str(make_file()), "--export", str(tmp_path), code=2).stderr
    assert "already exists: name a new folder" in refused
    assert (
        "--dry-run cannot be combined" in shell("recover", "x", "--export", str(tmp_path), "--dry-run", code=2).stderr
    )


def test_metrics_are_reported_in_prometheus_own_format(shell: Shell, arena: Arena) -> None:
    text = shell("metrics", arena.name).stdout
    assert f'shmaccum_buffer_bytes{{arena="{arena.name}"}}' in text
    assert text.endswith("\n")


SHOWING = (["inspect"], ["inspect", "--slots"], ["stat", "--once"], ["top", "--once"])


@pytest.mark.parametrize("arguments", SHOWING, ids=" ".join)
def test_the_exit_code_reports_a_reader_that_exited(arena: Arena, arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as stdout:
        command = [sys.executable, "-m", "shmaccum", *arguments, arena.name]
        result = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (EXIT_READER_GONE, b"")


@pytest.mark.parametrize("arguments", SHOWING, ids=" ".join)
def test_a_locale_without_unicode_ends_no_command(arena: Arena, arguments: list[str]) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "shmaccum", *arguments, arena.name]
    result = subprocess.run(command, env=environment, capture_output=True)
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.isascii()


def test_a_value_that_is_wider_than_the_screen_is_folded_and_not_cut(shell: Shell, filled: str) -> None:
    output = shell("inspect", filled, columns=40).stdout
    assert "the log is full: No space left on device" in " ".join(output.split())


def test_options_that_cannot_be_read_are_shown_as_the_reason(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgpack, "unpackb", lambda _content: [])
    assert superblock(arena)["options"] == f"the options in {arena.name} are of type list, not a mapping"
