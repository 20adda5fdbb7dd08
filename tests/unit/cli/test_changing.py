# SPDX-License-Identifier: Apache-2.0
"""create, remove and recover: their work, and the requests that they reject with an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import shmaccum
from shmaccum._native import SenderHalf
from shmaccum.arena import Arena
from shmaccum.arena.reports import read_reports
from shmaccum.cli.group import COMMANDS, sentence_of
from shmaccum.config import ArenaOptions
from shmaccum.sender import giving_up
from tests.unit.cli.conftest import Shell

# --- create

LAYOUT_VERSION_POSITION = 8


def test_create_takes_every_option_of_the_table(shell: Shell, arena_name: str) -> None:
    text = shell("create", "--help").stdout
    for name in ArenaOptions.table():
        assert f"--{name.replace('_', '-')}" in text
    shell(
        "create", arena_name, "--buffer-memory", "1MiB", "--batch-size=8KiB", "--process-count", "7", "--mode", "0640"
    )
    with Arena.attach(arena_name, mode=0o640) as arena:
        assert (arena.geometry["slot_count"], arena.geometry["process_count"]) == (128, 7)


def test_create_knows_topics(shell: Shell, arena_name: str) -> None:
    facts = shell.json("create", arena_name, "--topic", "flights:12", "--topic", "a.b:3")
    assert facts["topics"] == {"flights": 12, "a.b": 3}
    with Arena.attach(arena_name) as arena:
        assert arena.native.topic_partition_count("flights") == 12
        assert arena.native.topic_partition_count("a.b") == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--buffer-memory", "1 banana"], "buffer_memory: '1 banana' is not a size: write it like 32MiB"),
        (["--batch-size", "1"], "batch_size is 1, but must be at least 62"),
        (["--buffer-memory", "1KiB"], "smaller than batch_size"),
        (["--topic", "flights"], "'flights' is not NAME:PARTITIONS: write it like flights:12"),
        (["--topic", "good:1", "--topic", "a/b:1"], "'a/b' is not a topic name"),
        (["--topic", "flights:0"], "write it like flights:12"),
        (["--topic", "flights:1", "--topic", "flights:2"], "topic 'flights' is named twice"),
    ],
)
def test_create_refuses_with_a_sentence(shell: Shell, arena_name: str, arguments: list[str], sentence: str) -> None:
    assert sentence in shell("create", arena_name, *arguments, code=2).stderr
    assert not Arena.exists(arena_name)


def test_an_arena_that_is_there_is_left_alone(shell: Shell, filled: str) -> None:
    assert "already exists" in shell("create", filled, code=2).stderr
    assert shell("create", filled, "--exist-ok").stderr == ""
    told = shell("create", filled, "--exist-ok", "--batch-size=8KiB", "--topic=flights:3", "--topic=new:1").stderr
    assert "its batch_size is 4 KiB, not 8 KiB" in told
    assert "it has 2 partitions of topic 'flights', not 3" in told
    assert "it has 0 partitions of topic 'new', not 1" in told
    assert shell.json("stat", filled)["queued_batch_count"] == 3


def test_exist_ok_fails_where_no_usable_arena_is(shell: Shell, tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear reader, I am no arena.")
    assert "is not an arena: choose another name" in shell("create", str(letter), code=2).stderr
    assert "not a shmaccum arena" in shell("create", str(letter), "--exist-ok", code=2).stderr
    damaged = tmp_path / "other.arena"
    with Arena.create(damaged, buffer_memory="64KiB", batch_size="4KiB"):
        pass
    with damaged.open("r+b") as file:
        file.seek(LAYOUT_VERSION_POSITION)
        file.write(b"\xff\xff")
    assert "layout" in shell("create", str(damaged), "--exist-ok", code=2).stderr
    assert "attach to it, or remove it first" in shell("create", str(damaged), code=2).stderr


def test_a_name_is_printed_as_the_help_writes_it(shell: Shell, arena_name: str) -> None:
    bare = arena_name.removeprefix("/")
    assert shell("create", "/" + bare).stdout.startswith(f"created {bare}: ")
    assert shell("create", bare, code=2).stderr.startswith(f"shmaccum: {bare} already exists")


# --- remove


def test_an_arena_in_use_or_with_records_is_not_removed_unless_it_is_meant(shell: Shell, filled: str) -> None:
    refused = shell("remove", filled, code=2).stderr
    assert "1 process is attached, 41 records wait to be delivered. To remove it anyway, use --force" in refused
    shell("remove", "--force", filled)
    assert not Arena.exists(filled)


def test_an_idle_arena_is_removed(shell: Shell, arena_name: str) -> None:
    shell("create", arena_name)
    shell("remove", arena_name)
    assert not Arena.exists(arena_name)
    assert "there is no arena" in shell("remove", arena_name, code=2).stderr
    shell("remove", "--missing-ok", arena_name)


def test_what_cannot_be_read_is_removed_by_force_only(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "broken.arena"
    with Arena.create(path, buffer_memory="64KiB", batch_size="4KiB"):
        pass
    path.write_bytes(path.read_bytes()[:5000])
    assert "it cannot be read" in shell("remove", str(path), code=2).stderr
    shell("remove", "-f", str(path))
    assert not path.exists()


def test_what_never_was_an_arena_is_not_removed_even_by_force(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("dear all, " * 1000)
    assert "is not an arena and was not removed" in shell("remove", "-f", str(path), code=2).stderr
    assert path.exists()


def test_of_many_arenas_the_removable_ones_are_removed(shell: Shell, arena_name: str) -> None:
    shell("create", arena_name)
    refused = shell("remove", "shmaccum-test-nobody", arena_name, code=2).stderr
    assert refused == "shmaccum: there is no arena shmaccum-test-nobody: list arenas with shmaccum ls\n"
    assert not Arena.exists(arena_name)


# --- recover


def test_recovery_seals_what_the_dead_left_open(shell: Shell, make_file: Callable[[], Path]) -> None:
    path = make_file()
    assert "2 open batches to seal" in shell("recover", str(path), "--dry-run").stdout
    document = shell.json("recover", str(path))
    assert (document["sealed_count"], document["record_count"], document["findings"]) == (2, 41, [])
    assert shell.json("stat", str(path))["slots"]["READY"] == 3
    assert "0 open batches to seal" in shell("recover", str(path)).stdout


def test_an_overflow_is_given_up_by_a_command(shell: Shell, arena_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving_up, "ROLE_TIMEOUT_S", 0.0)
    with Arena.create(arena_name, topics={"flights": 1}) as arena:
        half = SenderHalf(arena.native)
        half.become_sender()
        half.set_spilled(half.partition_index("flights", 0), 3, 5)
        half.publish_spilled(2, 7, 100, 1)
        assert "stop it first" in shell("recover", arena_name, "--give-up-overflow", code=2).stderr
        half.resign()
        half.close()
        assert "use it alone" in shell("recover", arena_name, "--give-up-overflow", "--dry-run", code=2).stderr
        sentence = f"7 records of {arena_name} in its overflow (flights-0) were given up: they are lost"
        assert shell.json("recover", arena_name, "--give-up-overflow") == {"given_up": sentence}
        assert sentence in [report.sentence for report in read_reports(arena.native)]
        assert arena.native.spilled()["partitions"] == []
    assert "nothing was given up" in shell("recover", arena_name, "--give-up-overflow").stdout


def test_an_arena_in_use_is_not_recovered(shell: Shell, filled: str) -> None:
    assert f"is in use by process {os.getpid()}" in shell("recover", filled, code=2).stderr
    assert "no recovery runs while" in shell("recover", filled, "--dry-run").stdout


# --- the command as a whole


def test_every_command_has_a_help_text_with_its_options(shell: Shell) -> None:
    overview = shell("--help").stdout
    for name in COMMANDS:
        assert name in overview
    groups = {
        "groups": ("delete", "describe", "export", "list", "reset"),
        "log": ("cat", "info", "offsets", "verify"),
        "topics": ("create", "delete", "describe", "list", "partitions"),
        "users": ("add", "allow", "list", "remove", "revoke"),
    }
    names = [[name] for name in COMMANDS if name not in groups]
    for command in [*names, *([group, name] for group, subcommands in groups.items() for name in subcommands)]:
        text = shell(*command, "--help").stdout
        assert text.startswith(f"Usage: main {' '.join(command)}")
        assert "--debug" in text
    assert "Exit codes: 0 success" in " ".join(overview.split())


def test_a_typing_error_is_answered_with_the_nearest_command(shell: Shell) -> None:
    for arguments in (["inspekt"], ["inspekt", "arena"]):
        assert "did you mean 'inspect'?" in shell(*arguments, code=2).stderr


def test_the_version_is_the_package_s(shell: Shell) -> None:
    assert shmaccum.__version__ in shell("--version").stdout


def test_debug_shows_where_an_error_came_from() -> None:
    command = [sys.executable, "-m", "shmaccum", "check", "shmaccum-test-nobody", "--debug"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("shmaccum: there is no arena shmaccum-test-nobody: create it first\n")


def test_only_the_command_that_is_called_is_imported() -> None:
    program = "import sys, shmaccum.cli; print(any(name in sys.modules for name in ('numpy', 'rich', 'psutil')))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_a_reader_that_goes_away_ends_the_command_quietly(filled: str) -> None:
    command = [sys.executable, "-m", "shmaccum", "stat", filled, "--json", "-n", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("{")
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == ""


def test_an_interrupted_command_leaves_with_130(filled: str) -> None:
    command = [sys.executable, "-m", "shmaccum", "stat", filled, "--json", "-n", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.stdout.close()
        assert process.wait(60) in {130, 141}
        assert process.stderr.read() == ""


def test_errors_of_the_system_are_sentences() -> None:
    assert sentence_of(OSError(28, "No space left on device", "/x")) == "/x: No space left on device"
    assert sentence_of(OSError(5, "Input/output error")) == "Input/output error"
    assert sentence_of(shmaccum.exceptions.NotSenderError()).startswith("The operation requires the sender role")
