# SPDX-License-Identifier: Apache-2.0
"""A process that has imported everything and forks the others, so that a start costs milliseconds.

The zygote attaches to no arena. The director sends it orders over a socket, as lines of JSON: to start, signal and wait
for processes, by the process ids that the zygote uses. So the zygote may live in a PID namespace of its own, where a
process has another id than outside.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from setup import ROOT
from tests.chaos.ledger import Places
from tests.chaos.roles import ROLES, Life, note_failure

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child=SIGKILL")

_libc = ctypes.CDLL(None, use_errno=True)


def can_unshare() -> bool:
    """Return whether this user may create a PID namespace."""
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True, timeout=10).returncode == 0
    except FileNotFoundError:
        return False


# --- the side of the director


class Zygote:
    """The director's end of the socket.

    Args:
        name: the suffix to the role in the name of a process.
        has_namespace: whether it runs in its own PID namespace.
        python: the interpreter, which has the package ``shmaccum`` to test.
        folder: the working folder, from which it imports the tests.
    """

    def __init__(
        self,
        places: Places,
        seed: int,
        *,
        name: str = "",
        has_namespace: bool = False,
        python: str = sys.executable,
        folder: Path = ROOT,
    ) -> None:
        mine, theirs = socket.socketpair()
        command = [python, "-m", "tests.chaos.zygote", str(theirs.fileno()), str(seed)]
        command += [places.arena_name, str(places.folder)]
        self.name = name
        self._process = subprocess.Popen(
            [*NAMESPACE, *command] if has_namespace else command,
            pass_fds=[theirs.fileno()],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
        )
        theirs.close()
        self._socket = mine
        self._stream = mine.makefile("rw", encoding="utf-8")

    def _ask(self, **order: Any) -> int:
        self._stream.write(json.dumps(order) + "\n")
        self._stream.flush()
        answer = self._stream.readline()
        assert answer, "the zygote has died"
        return int(answer)

    def start(self, role: str, seat: int, author: int) -> int:
        """Start a process and return its process id."""
        return self._ask(do="start", role=role, seat=seat, author=author)

    def signal(self, pid: int, number: signal.Signals, *, with_children: bool = False) -> None:
        self._ask(do="signal", pid=-pid if with_children else pid, number=int(number))

    def wait(self, pid: int) -> int:
        """Return the exit code, or the negative number of the signal that ended it."""
        return self._ask(do="wait", pid=pid)

    def has_ended(self, pid: int) -> bool:
        return bool(self._ask(do="poll", pid=pid))

    def orphan_count(self) -> int:
        """Return the number of living forked children of ended parents."""
        return self._ask(do="orphans")

    def close(self) -> None:
        """End it and all processes that it started."""
        self._stream.close()
        self._socket.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# --- the process


class Forker:
    """The zygote's end of the socket."""

    def __init__(self, stream_socket: socket.socket, places: Places, seed: int) -> None:
        self._socket = stream_socket
        self._places = places
        self._seed = seed
        self._alive: set[int] = set()
        self._ended: dict[int, int] = {}

    def run(self) -> None:
        """Carry out orders until the director closes the connection."""
        stream = self._socket.makefile("rw", encoding="utf-8")
        try:
            for line in stream:
                order = json.loads(line)
                stream.write(f"{getattr(self, '_' + order.pop('do'))(**order)}\n")
                stream.flush()
        finally:
            for pid in self._alive:
                os.kill(pid, signal.SIGKILL)

    def _start(self, role: str, seat: int, author: int) -> int:
        pid = os.fork()
        if pid == 0:
            self._live(role, Life(self._places, seat, author, self._seed))
        self._alive.add(pid)
        return pid

    def _live(self, role: str, life: Life) -> None:
        code = 1
        try:
            os.setpgid(0, 0)
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            self._socket.close()
            ROLES[role](life)
            code = 0
        except BaseException as error:  # noqa: BLE001 - whatever it was, the director is to read it
            note_failure(life.places, f"{role} of seat {life.seat}, author {life.author}", error)
        finally:
            os._exit(code)

    def _signal(self, pid: int, number: int) -> int:
        self._reap(os.WNOHANG)
        is_group = pid < 0
        if abs(pid) in self._alive:
            try:
                os.kill(pid, number)
            except ProcessLookupError:  # it has not created its group yet
                assert is_group
                os.kill(-pid, number)
        return 0

    def _wait(self, pid: int) -> int:
        while pid not in self._ended:
            self._reap(0)
        return self._ended.pop(pid)

    def _poll(self, pid: int) -> int:
        self._reap(os.WNOHANG)
        return int(pid in self._ended)

    def _orphans(self) -> int:
        self._reap(os.WNOHANG)
        children = Path(f"/proc/self/task/{_own_outer_pid()}/children").read_text(encoding="utf-8")
        return len(children.split()) - len(self._alive)

    def _reap(self, options: int) -> None:
        """Collect ended processes: its own children and adopted orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, options)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._alive:
                self._alive.remove(pid)
                self._ended[pid] = os.waitstatus_to_exitcode(status)
            options = os.WNOHANG


def _own_outer_pid() -> str:
    """Return this process's id in the namespace of /proc."""
    return os.readlink("/proc/self")


def main() -> None:
    """zygote DESCRIPTOR SEED ARENA FOLDER"""
    descriptor, seed, arena_name, folder = sys.argv[1:]
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # a child may get it at once
    logging.getLogger("shmaccum").addHandler(logging.NullHandler())  # it would warn each time that no sender runs
    gc.freeze()
    Forker(socket.socket(fileno=int(descriptor)), Places(arena_name, Path(folder)), int(seed)).run()


if __name__ == "__main__":
    main()
