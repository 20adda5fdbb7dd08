# SPDX-License-Identifier: Apache-2.0
"""An arena publishes its sender's sink, and a process that asks for another sink is rejected."""

from __future__ import annotations

import mmap
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.sender_state import readable_name
from shmaccum.exceptions import ArenaInUseError, InvalidArgumentError, OtherSinkError, SenderNotStartedError
from shmaccum.observe.observation import Observer
from shmaccum.observe.prometheus import ArenaCollector, exposition
from shmaccum.sender import Sender
from shmaccum.sender.sinks import open_sink
from shmaccum.sender.sinks.kafka.sink import KafkaSink
from shmaccum.sender.sinks.log import LogSink
from shmaccum.sender.sinks.memory import MemorySink
from shmaccum.sender.sinks.names import NAME_SIZE_MAX, expect_sink, name_in_arena, one_spelling
from shmaccum.supervisor import ensure_sender
from tests.support.accumulator import Accumulator
from tests.support.sender import ScriptedSink
from tests.unit.cli.conftest import Shell

HERE = os.path.realpath(".")


@pytest.fixture
def shell() -> Shell:
    return Shell()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("log:/a", "log:/a"),
        ("log:/a/", "log:/a"),
        ("log:/a/b/..", "log:/a"),
        ("log:./a/", f"log:{HERE}/a"),
        ("log:a", f"log:{HERE}/a"),
        ("log:", "log:"),
        ("kafka:b:9092,a:9092", "kafka:a:9092,b:9092"),
        ("kafka: A:9092 ,b:9092,a:9092,", "kafka:a:9092,b:9092"),
        ("kafka:somebody:secret@a:9092", "kafka:a:9092"),
        ("own://somebody:secret@place/path", "own://place/path"),
        ("own:somebody:secret@place", "own:place"),
        ("own:place?token=secret", "own:place"),
        ("log:/a@b?c", "log:/a@b?c"),
        ("null:", "null:"),
    ],
)
def test_equal_places_have_equal_names(url: str, name: str) -> None:
    assert one_spelling(url) == name
    assert one_spelling(one_spelling(url)) == name


def test_names_that_are_too_long_for_the_arena_still_differ() -> None:
    whole = "log:/" + "ä" * 125
    assert name_in_arena(whole) == whole.encode()
    assert len(whole.encode()) == NAME_SIZE_MAX
    longer = [name_in_arena(f"{whole}/{tail}") for tail in ("a", "b", "a/b")]
    assert len({*longer}) == 3
    assert all(len(name) <= NAME_SIZE_MAX and name.startswith("log:/ää".encode()) for name in longer)
    assert all(readable_name(name).isprintable() and "\\" not in readable_name(name) for name in longer)


def test_the_name_of_a_sink_has_no_secret() -> None:
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}
    login |= {"sasl_plain_username": "somebody", "sasl_plain_password": "secret"}
    assert open_sink("kafka:b:9092,a:9092", **login).name == "kafka:a:9092,b:9092"
    assert KafkaSink("b:9092,a:9092").name == "kafka:a:9092,b:9092"
    assert open_sink("log:/a/b/").name == LogSink("/a/b").name == "log:/a/b"
    assert open_sink("memory:").name == MemorySink().name == "memory:"
    assert ScriptedSink().name == ""


def test_an_arena_reports_where_its_sender_delivers_as_long_as_it_has_one(arena: Arena, shell: Shell) -> None:
    assert arena.native.sender()["sink_name"] is None
    with Sender(arena.name, ScriptedSink()) as sender:
        sender.open()
        assert arena.native.sender()["sink_name"] == b"ScriptedSink"
        assert Observer(arena).observe().sender.sink == "ScriptedSink"
        for command in ("stat", "top"):
            assert re.search(r"^sink +ScriptedSink$", shell(command, arena.name).stdout, re.MULTILINE)
        assert "delivers to" in shell("inspect", arena.name).stdout
        assert shell.json("stat", arena.name, "--json")["sender"]["sink"] == "ScriptedSink"
        assert f'shmaccum_sender_info{{arena="{arena.name}",sink="ScriptedSink"}} 1.0' in exposition(
            ArenaCollector(arena)
        )
    assert arena.native.sender()["sink_name"] is None
    assert "\nsink " not in shell("stat", arena.name).stdout
    assert "sender_info{" not in exposition(ArenaCollector(arena))


def test_a_name_is_published_before_the_role_and_fits(arena: Arena) -> None:
    with Accumulator(arena) as accumulator:
        for name in (b"a" * 256, b"a\0b"):
            with pytest.raises(InvalidArgumentError, match="at most 255 bytes, and no NUL"):
                accumulator.set_sink_name(name)
        with pytest.raises(TypeError):
            accumulator.set_sink_name("log:/a")  # type: ignore[arg-type]
        accumulator.set_sink_name(b"a" * 255)
        accumulator.become_sender()
        with pytest.raises(ArenaInUseError, match="call this before"):
            accumulator.set_sink_name(b"b")
        assert arena.native.sender()["sink_name"] == b"a" * 255


def test_a_process_that_names_no_sink_accepts_every_sender(arena: Arena) -> None:
    assert not expect_sink(arena, b"log:/a")
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        assert arena.native.sender()["sink_name"] == b""
        assert expect_sink(arena, b"log:/a")
        assert not ensure_sender(arena, "log:/a")
        assert Observer(arena).observe().sender.sink is None


# --- requests for the sink's name


@pytest.fixture
def delivering(arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The log of a living sender. Its parent folder is the working folder of this process."""
    monkeypatch.chdir(tmp_path)
    with Sender(arena.name, f"log:{tmp_path}/log") as sender:
        sender.open()
        yield tmp_path / "log"


def test_two_spellings_of_a_place_are_the_same(arena: Arena, delivering: Path) -> None:
    for words in (f"log:{delivering}", f"log:{delivering}/", "log:log", "log:./log/../log//"):
        assert not ensure_sender(arena, words)
        assert not ensure_sender(arena.name, words)


def test_another_place_is_an_error_with_a_remedy(arena: Arena, delivering: Path, shell: Shell) -> None:
    sentence = f"the sender of {arena.name} delivers to log:{delivering}, and log:{delivering}2 was asked for"
    with pytest.raises(OtherSinkError, match="stop that sender and start one with the other sink") as caught:
        ensure_sender(arena, f"log:{delivering}2")
    assert str(caught.value).startswith(sentence)
    with pytest.raises(OtherSinkError, match="kafka:a:9092,b:9092 was asked for"):
        ensure_sender(arena.name, "kafka:b:9092,a:9092")
    assert sentence in shell("sender", arena.name, "--sink", f"log:{delivering}2", "--detach", code=2).stderr
    assert not (delivering.parent / "log2").exists()
    with pytest.raises(InvalidArgumentError, match="names no sink"):
        ensure_sender(arena, "nonsense")


def test_a_standby_of_another_place_is_refused(arena: Arena, delivering: Path, shell: Shell) -> None:
    with Sender(arena.name, "memory:", standby=True) as standby, pytest.raises(OtherSinkError, match="and memory: was"):
        standby.run()
    told = shell("sender", arena.name, "--sink", "memory:", "--standby", code=2).stderr
    assert f"delivers to log:{delivering}, and memory: was asked for" in told


def test_a_sink_that_is_not_published_in_time_is_an_error(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        """A sender that was stopped after it took the role and before it published its sink."""

        sender_is_alive = True
        has_lost_its_name = False
        file_id = arena.native.file_id

        def sender(self) -> dict[str, object]:
            return {"sink_name": None}

    monkeypatch.setattr(arena, "native", Silent())
    with pytest.raises(SenderNotStartedError, match="did not publish its sink in time"):
        ensure_sender(arena, "null:", timeout_s=0.05)
    monkeypatch.undo()


# --- hostile bytes


def overwrite(arena: Arena, old: bytes, new: bytes) -> None:
    """Overwrite the only occurrence of the old bytes in the arena's file."""
    with Path(f"/dev/shm/{arena.name}").open("r+b") as file, mmap.mmap(file.fileno(), 8192) as memory:
        at = memory.find(old)
        assert at >= 4096
        memory[at : at + len(new)] = new


@pytest.mark.parametrize("hostile", [b"\xff" * 256, b"\x1b[2J\r\n" * 40, b"a" * 256, b"\xed\xa0\x80" * 80])
def test_hostile_bytes_are_shown_as_escapes_and_equal_no_place(arena: Arena, shell: Shell, hostile: bytes) -> None:
    with Sender(arena.name, "null:") as sender:
        sender.open()
        overwrite(arena, b"null:", hostile)
        sink = Observer(arena).observe().sender.sink
        assert sink is not None
        assert sink.isprintable()
        for command in ("stat", "inspect"):
            shown = shell(command, arena.name).stdout
            assert "\x1b[2J" not in shown
            assert "\r" not in shown
        assert shell.json("stat", arena.name, "--json")["sender"]["sink"] == sink
        exposition(ArenaCollector(arena))
        with pytest.raises(OtherSinkError) as caught:
            ensure_sender(arena, "null:")
        assert str(caught.value).isprintable()
        overwrite(arena, hostile[:255], bytes(256))


def test_any_bytes_are_readable(seeded: Callable[[], random.Random]) -> None:
    chance = seeded()
    for _ in range(2000):
        name = chance.randbytes(chance.randrange(256))
        assert readable_name(name).isprintable()
