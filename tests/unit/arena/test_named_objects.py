# SPDX-License-Identifier: Apache-2.0
"""Named objects behave in one way, whether posix_ipc opens them or, where it has no wheel, this package itself."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from shmaccum.arena import Arena, named_objects
from shmaccum.arena.semaphores import make_semaphore
from shmaccum.exceptions import ArenaNotFoundError, NotAnArenaError
from tests.support.arenas import SHARED_MEMORY, each_semaphore

pytestmark = pytest.mark.parametrize("library", ["posix_ipc", "libc"])


@pytest.fixture(autouse=True)
def _library(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if library == "posix_ipc":
        pytest.importorskip("posix_ipc")
    else:
        monkeypatch.setattr(named_objects, "posix_ipc", None)


@pytest.fixture
def semaphore(arena_name: str) -> Iterator[str]:
    """The name of a semaphore that does not exist yet."""
    yield f"/{arena_name}.w0"
    (SHARED_MEMORY / f"sem.{arena_name}.w0").unlink(missing_ok=True)


def test_a_semaphore_is_created_once_with_its_mode_and_removed(semaphore: str) -> None:
    path = SHARED_MEMORY / f"sem.{semaphore[1:]}"
    named_objects.create_semaphore(semaphore, 0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        named_objects.create_semaphore(semaphore, 0o600)
    named_objects.unlink_semaphore(semaphore)
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        named_objects.unlink_semaphore(semaphore)


def test_a_semaphore_has_the_bytes_that_the_c_library_gives_it(semaphore: str) -> None:
    """Processes with and without posix_ipc share semaphores."""
    posix_ipc = pytest.importorskip("posix_ipc")
    path = SHARED_MEMORY / f"sem.{semaphore[1:]}"
    posix_ipc.Semaphore(semaphore, posix_ipc.O_CREX).close()
    expected = path.read_bytes()
    path.unlink()
    named_objects.create_semaphore(semaphore, 0o600)
    assert path.read_bytes() == expected


def test_the_name_of_a_semaphore_may_be_taken_by_another_kind_of_file(semaphore: str) -> None:
    (SHARED_MEMORY / f"sem.{semaphore[1:]}").touch()
    with pytest.raises(FileExistsError):
        named_objects.create_semaphore(semaphore, 0o600)


def test_an_object_is_opened_for_reading_or_writing_and_is_not_inherited(arena_name: str) -> None:
    path = SHARED_MEMORY / arena_name
    path.write_bytes(b"bytes")
    for is_read_only, access in ((True, os.O_RDONLY), (False, os.O_RDWR)):
        descriptor = named_objects.open_shared_memory(f"/{arena_name}", 0, read_only=is_read_only)
        assert os.read(descriptor, 5) == b"bytes"
        assert os.get_inheritable(descriptor) is False
        assert int(Path(f"/proc/self/fdinfo/{descriptor}").read_text().split()[3], 8) & os.O_ACCMODE == access
        os.close(descriptor)
    named_objects.unlink_shared_memory(f"/{arena_name}")
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        named_objects.unlink_shared_memory(f"/{arena_name}")
    with pytest.raises(FileNotFoundError):
        named_objects.open_shared_memory(f"/{arena_name}", 0, read_only=True)


def test_what_is_no_arena_is_named_as_such(arena_name: str, tmp_path: Path) -> None:
    path = SHARED_MEMORY / arena_name
    path.mkdir()
    try:
        with pytest.raises(NotAnArenaError, match="is a folder"):
            Arena.attach(arena_name)
    finally:
        path.rmdir()
    path.symlink_to(tmp_path)
    try:
        with pytest.raises(NotAnArenaError, match="is a symbolic link"):
            Arena.attach(arena_name)
    finally:
        path.unlink()


def test_an_arena_and_its_semaphores_are_made_and_removed(arena_name: str) -> None:
    with Arena.create(arena_name, buffer_memory="4KiB", batch_size="4KiB") as arena:
        make_semaphore(arena, 0)
        make_semaphore(arena, 0)
        assert arena.native.errors() == []
        assert len(list(each_semaphore(arena.uuid))) == 1
        Arena.remove(arena_name)
        assert list(each_semaphore(arena.uuid)) == []
    with pytest.raises(ArenaNotFoundError):
        Arena.attach(arena_name)


def test_pythons_without_a_wheel_of_posix_ipc_do_not_require_it() -> None:
    (needed,) = (one for one in map(Requirement, requires("shmaccum") or []) if one.name == "posix_ipc")
    assert needed.marker is not None
    for version, is_required in (("3.10", True), ("3.13", True), ("3.14", False)):
        environment = {"python_version": version, "sys_platform": "linux"}
        assert needed.marker.evaluate(environment) is is_required, version
