# SPDX-License-Identifier: Apache-2.0
"""Functions that record system calls of a test, make them fail, or kill a process before one of them.

- `SOME_OR_EACH` chooses the calls of a test that tries many: some in ``make test``, each in ``make test-rest``.
- `dies_at_system_call` runs a function in a child that its parent traces and kills before one of its calls.
- `Interruption` acts at one call of the ``os`` module, for example with an error.
- `Forced` records what Python forces to disk, renames and removes, in order.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum.log.files.file_names import TEMPORARY
from tests.support.seeds import new_seed

PTRACE_TRACEME, PTRACE_SYSCALL, PTRACE_SETOPTIONS = 0, 24, 0x4200
PTRACE_O_TRACESYSGOOD, PTRACE_O_EXITKILL = 1, 1 << 20
SYSCALL_STOP = signal.SIGTRAP | 0x80
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


SOME_OR_EACH = pytest.mark.parametrize(
    "stride", [pytest.param(8, id="some"), pytest.param(1, id="each", marks=pytest.mark.slow)]
)


def some_of_all(stride: int) -> Iterator[int]:
    """Numbers of system calls: one in every *stride*, from a random first one, which the printed seed repeats."""
    return itertools.count(1 + random.Random(new_seed()).randrange(stride), stride)


def dies_at_system_call(prepare: Callable[[], Callable[[], object]], number: int) -> bool:
    """Run a function in a child that is killed before the given system call. If it makes fewer, return False.

    Args:
        prepare: called in the child, untraced; returns the function.
        number: the number of the call, from 1.
    """
    pid = os.fork()
    if pid == 0:
        _be_traced(prepare)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSTOPPED(status):
        pytest.skip("this machine does not let a process trace its child")
    _libc.ptrace(PTRACE_SETOPTIONS, pid, None, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)
    stops = 0
    while stops < 2 * number - 1:  # the child stops before and after each call
        _libc.ptrace(PTRACE_SYSCALL, pid, None, None)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            return False
        stops += os.WSTOPSIG(status) == SYSCALL_STOP
    left = temporary_semaphores(pid)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for path in left:
        path.unlink(missing_ok=True)
    return True


def temporary_semaphores(pid: int) -> list[Path]:
    """Return the files of a stopped process that sem_open would rename. After its death, no process could find them."""
    targets = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    return [Path(target) for target in targets if re.fullmatch(r"/dev/shm/sem\.\w{6}", target)]


def _be_traced(prepare: Callable[[], Callable[[], object]]) -> None:
    try:
        function = prepare()
        if _libc.ptrace(PTRACE_TRACEME, 0, None, None) < 0:
            os._exit(77)
        os.kill(os.getpid(), signal.SIGSTOP)
        function()
    finally:
        os._exit(0)


SYSTEM_CALLS = (
    "open",
    "pwritev",
    "write",
    "ftruncate",
    "replace",
    "rename",
    "link",
    "unlink",
    "rmdir",
    "mkdir",
    "makedirs",
    "fsync",
    "fdatasync",
    "close",
)


class Interruption:
    """Counts system calls of the os module, and acts at the one with this number."""

    def __init__(self, number: int, act: Callable[[], None]) -> None:
        self.number = number
        self.count = 0
        self._act = act

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in SYSTEM_CALLS:
            patch.setattr(os, name, self._wrap(getattr(os, name)))

    def _wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def interrupted(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count != self.number:
                return call(*arguments, **options)
            if call.__name__ == "close":  # the call fails, but has closed the descriptor
                call(*arguments)
            self._act()
            return None

        return interrupted

    @property
    def has_acted(self) -> bool:
        return self.count >= self.number


CHECKED = (".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint", "partition.metadata")
"""The suffixes of files that a log checks when it reads them, so that it need not force them to disk."""


class Forced:
    """The calls so far, as ("sync", path), ("replace", path) and ("unlink", path).

    Args:
        is_real: True to make the syncs. If it is False, they are only recorded.

    Attributes:
        named_unsynced: the paths that a temporary file got before it was forced to disk, without files that are checked
            when they are read.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_real: bool = True) -> None:
        self.calls: list[tuple[str, str]] = []
        self.named_unsynced: list[str] = []
        self.is_failing = False
        self._is_real = is_real
        self._synced_inodes: set[int] = set()
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._sync(getattr(os, name)))
        for name in ("replace", "rename", "link"):
            monkeypatch.setattr(os, name, self._give_name(getattr(os, name)))
        monkeypatch.setattr(os, "unlink", self._unlink(os.unlink))

    def _sync(self, really: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            self.calls.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
            if self.is_failing:
                raise OSError(5, os.strerror(5))
            if self._is_real:
                really(descriptor)
            self._synced_inodes.add(os.fstat(descriptor).st_ino)

        return sync

    def _give_name(self, really: Callable[..., None]) -> Callable[..., None]:
        def give_name(source: Any, target: Any, **more: Any) -> None:
            is_temporary = os.fspath(source).endswith(TEMPORARY) and os.path.isfile(source)
            if is_temporary and os.stat(source).st_ino not in self._synced_inodes and not target.endswith(CHECKED):
                self.named_unsynced.append(os.fspath(target))
            self.calls.append(("replace", os.fspath(target)))
            really(source, target, **more)

        return give_name

    def _unlink(self, really: Callable[..., None]) -> Callable[..., None]:
        def unlink(path: Any, **more: Any) -> None:
            self.calls.append(("unlink", os.fspath(path)))
            really(path, **more)

        return unlink

    @property
    def synced(self) -> list[str]:
        """Return the paths that were forced to disk."""
        return [path for call, path in self.calls if call == "sync"]

    def has(self, *paths: Path) -> bool:
        """Return True if each of the paths was forced to disk."""
        return {os.path.realpath(path) for path in paths} <= set(self.synced)

    def clear(self) -> None:
        """Forget the recorded calls."""
        self.calls.clear()
