# SPDX-License-Identifier: Apache-2.0
"""Only users of the arena can open its log, overflow and dead letter log, whatever the umask is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum import Consumer, Producer, Sender
from shmaccum.arena import Arena
from shmaccum.exceptions import LogForbiddenError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.permissions import folder_mode
from shmaccum.log.files.regular_files import open_regular
from shmaccum.sender.shipping import Shipper
from shmaccum.sender.sinks.log import LogSink
from shmaccum.sender.sinks.memory import MemorySink
from tests.support.other_users import needs_root
from tests.support.processes import wait_until

GROUP = 23491
PLACES = ("log", "overflow", "letters")


@pytest.fixture(params=[0, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    former = os.umask(request.param)
    yield
    os.umask(former)


def deliver(arena: Arena, folder: Path, **options: Any) -> None:
    """Run a sender that writes all its logs, and a local consumer of a group. Copy the log."""
    with (
        Producer(arena) as producer,
        Sender(
            arena,
            LogSink(str(folder / "log"), segment_bytes="1KiB"),
            overflow=f"log:{folder / 'overflow'}",
            dead_letter=f"log:{folder / 'letters'}",
            **options,
        ) as sender,
    ):
        sender.open()
        futures = [producer.send("flights", b"x" * 200, partition=number % 2) for number in range(40)]
        while not all(future.is_done for future in futures):
            sender.run_once()
    with Consumer(folder / "log", "flights", group_id="g", auto_offset_reset="earliest") as consumer:
        wait_until(lambda: bool(consumer.poll(1000)), "a record is read")
        consumer.commit()


def found_in(place: Path) -> dict[str, tuple[int, int]]:
    """Mode and group of each file and folder."""
    found = {str(path.relative_to(place.parent)): path.lstat() for path in (place, *place.rglob("*"))}
    return {name: (stat.S_IMODE(each.st_mode), each.st_gid) for name, each in found.items()}


def expected_in(place: Path, mode: int, group: int) -> dict[str, tuple[int, int]]:
    paths = [place, *place.rglob("*")]
    return {
        str(path.relative_to(place.parent)): (folder_mode(mode) if path.is_dir() else mode, group) for path in paths
    }


@pytest.mark.usefixtures("umask")
def test_the_logs_of_an_arena_of_one_user_are_its_own(arena_name: str, tmp_path: Path) -> None:
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", topics={"flights": 2}) as arena:
        deliver(arena, tmp_path)
    for place in PLACES:
        assert found_in(tmp_path / place) == expected_in(tmp_path / place, 0o600, os.getegid())
    assert any("flights-1" in name and name.endswith(".log") for name in found_in(tmp_path / "log"))
    assert any(".groups" in name for name in found_in(tmp_path / "log"))


@needs_root
@pytest.mark.usefixtures("umask")
def test_the_logs_of_an_arena_that_a_group_shares_are_the_groups(arena_name: str, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "topics": {"flights": 2}}
    with Arena.create(arena_name, mode=0o660, group=GROUP, **sizes) as arena:
        deliver(arena, tmp_path)
    for place in PLACES:
        assert found_in(tmp_path / place) == expected_in(tmp_path / place, 0o660, GROUP)


@needs_root
@pytest.mark.parametrize(("above", "is_accepted"), [(0o1777, False), (0o755, True)])
def test_a_folder_that_another_user_may_have_made_is_refused(
    arena_name: str, tmp_path: Path, above: int, is_accepted: bool
) -> None:
    """A log in /tmp is an example. Only root creates folders in root's folders."""
    tmp_path.chmod(above)
    for place in PLACES:
        (tmp_path / place).mkdir(mode=0o755)
        os.chown(tmp_path / place, GROUP, GROUP)
    options: dict[str, dict[str, Any]] = {
        "log": {},
        "overflow": {"overflow": f"log:{tmp_path / 'overflow'}"},
        "letters": {"dead_letter": f"log:{tmp_path / 'letters'}"},
    }
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", topics={"flights": 2}) as arena:
        for place in PLACES:
            sink = LogSink(str(tmp_path / "log")) if place == "log" else MemorySink()
            sender = Sender(arena, sink, **options[place])
            if is_accepted:
                sender.open()
            else:
                with pytest.raises(LogForbiddenError, match=f"belongs to user {GROUP}, who may have created it"):
                    sender.open()
            sender.close()


def test_a_wider_folder_stays_and_is_reported_once(
    arena_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log").chmod(0o755)
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", topics={"flights": 2}) as arena:
        deliver(arena, tmp_path)
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o755
    told = [record.getMessage() for record in caplog.records if "admits only users with" in record.getMessage()]
    assert len(told) == 1
    assert f"Run chmod 0700 {tmp_path / 'log'}" in told[0]


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(("folder", "file"), [(0o700, 0o600), (0o770, 0o660), (0o775, 0o664)])
def test_what_a_log_makes_follows_its_folder(tmp_path: Path, folder: int, file: int) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log").chmod(folder)
    with LogDirectory(tmp_path / "log") as log:
        log.create_topic("flights", 2)
    found = {mode for mode, _ in found_in(tmp_path / "log").values()}
    assert found == {folder, file}


@pytest.mark.usefixtures("umask")
def test_a_folder_that_all_users_may_write_is_followed_by_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with LogDirectory(tmp_path / "log") as log:
        log.create_topic("flights", 1)
    assert not any(mode & 0o022 for mode, _ in found_in(tmp_path / "log").values())


def test_a_copy_that_is_shipped_can_be_read_by_those_who_may_read_the_log(arena_name: str, tmp_path: Path) -> None:
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", topics={"flights": 2}) as arena:
        deliver(arena, tmp_path)
    with Shipper(tmp_path / "log", f"log:{tmp_path / 'copy'}") as shipper:
        shipper.run(follow=False)
    assert found_in(tmp_path / "copy") == expected_in(tmp_path / "copy", 0o600, os.getegid())


def test_a_file_that_is_opened_without_being_created_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(mode=0o600)
    tmp_path.chmod(0o2770)
    os.close(open_regular(str(path), os.O_RDWR))
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_another_process_creates_meanwhile_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"there")
    descriptor = open_regular(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    assert os.read(descriptor, 9) == b"there"
    os.close(descriptor)
    (tmp_path / "link").symlink_to("missing")
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(str(tmp_path / "link"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    with pytest.raises(FileExistsError):
        open_regular(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT | os.O_EXCL)
