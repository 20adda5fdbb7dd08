# SPDX-License-Identifier: Apache-2.0
"""A disk whose power is cut: ext4 on a loop device. After each cut, the processes get another boot id.

A cut is the ioctl by which xfstests shuts a file system down (EXT4_IOC_SHUTDOWN with NOLOGFLUSH). Bytes and names of
files that were not forced to the disk before are lost. ext4 writes its journal only every five minutes, so only changes
survive that a program has forced.

If another namespace has a copy of the mount, the dead file system stays alive, and the next mount would mount it again.
So the process that cuts has its own mount namespace (`leave_namespace`), and its processes end before the next mount.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from typing_extensions import Self

from tests.support.processes import WATCHDOG_S

SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN."""
NO_LOG_FLUSH = (2).to_bytes(4, "little")
CLONE_NEWNS = 0x20000
SIZE = 2 << 30
MEMORY = Path("/dev/shm")
BOOT_ID = "/proc/sys/kernel/random/boot_id"
NEEDED = ("mkfs.ext4", "losetup", "mount", "umount", "unshare")
ROOT = Path(__file__).parents[2]


def leave_namespace() -> None:
    """Give this process its own mount namespace, in which mounts in memory belong to no other program."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "this process may have no mount namespace")
    _run("mount", "--make-rprivate", "/")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if (place := line.split()[1]).startswith(f"{MEMORY}/"):
            subprocess.run(["umount", "-l", place], capture_output=True, check=False)


def why_not() -> str | None:
    """Return the reason why this process cannot cut the power. If it can, leave its namespace and return None."""
    if os.geteuid() != 0:
        return "only root can mount a disk and cut it off"
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    try:
        leave_namespace()
        with Disk() as disk:
            disk.cut()
            disk.boot()
            subprocess.run(disk.command("true"), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"this host gives no loop device with ext4, or no mount namespace: {error}"
    return None


class Disk:
    """A new disk, mounted until its end.

    Attributes:
        path: the folder at which it is mounted.
        memory: a folder that survives the cuts, for ledgers.
        boots_ns: CLOCK_MONOTONIC of each boot.
        cuts_ns: CLOCK_MONOTONIC of each cut, read before it.
    """

    def __init__(self) -> None:
        self.memory = MEMORY / f"power-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.path = self.memory / "disk"
        self.boots_ns: list[int] = []
        self.cuts_ns: list[int] = []
        self._image = self.memory / "image"
        self._device = ""
        self._boot = self.memory / "boot"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True)
        try:
            with open(self._image, "wb") as image:
                image.truncate(SIZE)
            _run("mkfs.ext4", "-q", "-F", str(self._image))
            self._device = _run("losetup", "-f", "--show", str(self._image)).strip()
            self.boot()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        subprocess.run(["umount", "-l", str(self.path)], capture_output=True, check=False)
        if self._device:
            subprocess.run(["losetup", "-d", self._device], capture_output=True, check=False)
        shutil.rmtree(self.memory, ignore_errors=True)

    def boot(self) -> None:
        """Mount the disk. Processes that are started from now on belong to another boot."""
        self._boot.write_text(f"{uuid.uuid4()}\n")
        _run("mount", "-o", "commit=300", self._device, str(self.path))
        self.boots_ns.append(time.monotonic_ns())

    def command(self, *command: str) -> list[str]:
        """Return a command that runs as a process of this boot."""
        script = f'mount --bind {self._boot} {BOOT_ID} && exec "$@"'
        return ["unshare", "-m", "sh", "-c", script, "sh", *command]

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a process, which is killed when the power is cut. Its output is appended to `log`."""
        with self.log() as log:
            process = subprocess.Popen(self.command(*command), stdout=log, stderr=log, cwd=ROOT)
        self._processes.append(process)
        return process

    def run(self, *command: str) -> int:
        """Run a process until it ends, and return its exit code."""
        process = self.start(*command)
        try:
            return process.wait(WATCHDOG_S)
        finally:
            process.kill()
            process.wait()
            self._processes.remove(process)

    @contextlib.contextmanager
    def log(self) -> Iterator[IO[bytes]]:
        """Return the output of all processes."""
        with open(self.memory / "log", "ab") as log:
            yield log

    def told(self) -> str:
        """Return the last lines that the processes have printed."""
        path = self.memory / "log"
        return path.read_text(errors="replace")[-2000:] if path.exists() else ""

    def check(self) -> None:
        """Check that every started process is alive.

        Raises:
            AssertionError: a process has ended.
        """
        for process in self._processes:
            assert process.poll() is None, f"{process.args!r} ended with {process.returncode}: {self.told()}"

    def cut(self) -> None:
        """Cut the power: kill the processes, and discard the changes that they did not force to the disk."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            self.cuts_ns.append(time.monotonic_ns())
            fcntl.ioctl(descriptor, SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(descriptor)
        self.kill()
        deadline_s = time.monotonic() + WATCHDOG_S
        while subprocess.run(["umount", str(self.path)], capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline_s, "the disk cannot be unmounted: a process uses it"
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill every process."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()
        self._processes.clear()


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def worker(role: str, *arguments: object) -> Sequence[str]:
    """Return the command of a worker (`tests.power.worker`)."""
    return sys.executable, "-m", "tests.power.worker", role, *map(str, arguments)


SHMACCUM = (sys.executable, "-m", "shmaccum")
