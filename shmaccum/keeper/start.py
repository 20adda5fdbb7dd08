# SPDX-License-Identifier: Apache-2.0
"""A sender for whoever needs one: starts one in a process of its own when the arena has none.

Any number of processes may ask at once; exactly one of them starts a sender. They elect it by a lock on the arena's
file (flock, which nobody else uses there). Whoever is elected holds it until the sender has the role or has died, and
lets go of it by dying.

The sender's process is a daemon: a session of its own, no child of ours, its standard streams null or a log file. A
pipe tells when it has begun: its other end is the sender's standard output, which is closed then, or with its death.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from shmaccum.arena import DEFAULT_MODE, Arena
from shmaccum.arena.doorbell import wait_readable
from shmaccum.arena.file import ArenaFile
from shmaccum.arena.removal import has_lost_its_name, tell_removal
from shmaccum.config import SenderOptions, command_line_value
from shmaccum.exceptions import SenderNotStartedError
from shmaccum.sinks.names import expect_sink, name_in_arena, one_spelling

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from shmaccum.config.dicts import SenderOptionsDict

ELECTION_SLICE_S = 0.005
START_TIMEOUT_S = 30.0
REASON_SIZE_MAX = 4096
DAEMON = '"$@" &'


def ensure_sender(
    arena: Arena | str | os.PathLike[str],
    sink: str,
    *,
    mode: int = DEFAULT_MODE,
    idle_exit: str | int | None = "60s",
    log_path: str | os.PathLike[str] | None = None,
    timeout_s: float = START_TIMEOUT_S,
    sink_options: Mapping[str, Any] | None = None,
    **options: Unpack[SenderOptionsDict],
) -> bool:
    """Comes back when the arena has a sender. True when this call has started it.

    An arena has one sender and one sink: one that lives and delivers elsewhere is an error.

    Args:
        arena: attached, or a name or path to attach to for the time of this call.
        sink: as `open_sink` takes it; a relative path is relative to this process's folder.
        mode: as `Arena.attach` takes it, for an arena that is given by name.
        idle_exit: the sender leaves when for so long there was nothing to send and nobody attached; None: never.
        log_path: the sender's log is appended here; None: only the arena's error log has what it reports.
        timeout_s: how long to wait.
        sink_options: those of the sink.
        options: those of `SenderOptions`.

    Raises:
        SenderNotStartedError: it could not begin, with its reason; or it took too long.
        InvalidArgumentError: an option is wrong, or a password is neither ``env:NAME`` nor ``file:PATH``: the sender's
            command line would show it.
        OtherSinkError: the sender that lives delivers to another sink.
        ArenaRemovedError: the arena was removed since the caller attached to it.
        ArenaError: the arena cannot be attached to.
    """
    given = {**options, **({} if idle_exit is None else {"idle_exit_ms": idle_exit})}
    SenderOptions.parse(given)
    deadline_s = time.monotonic() + timeout_s
    with _attached(arena, mode) as attached:
        if has_lost_its_name(attached):
            raise tell_removal(attached)  # whoever is started by that name would serve another arena
        command = _command(attached, sink, given, sink_options or {}) + ([] if log_path else ["--no-log"])
        with _elected(attached, deadline_s) as is_elected:
            if is_elected:
                _start(attached, command, log_path, deadline_s)
        _wait_for_sink(attached, sink, deadline_s)
        return is_elected


@contextlib.contextmanager
def _attached(arena: Arena | str | os.PathLike[str], mode: int) -> Iterator[Arena]:
    """Somebody's arena stays open; one that is given by name is let go of at the end."""
    if isinstance(arena, Arena):
        yield arena
        return
    with Arena.attach(arena, mode=mode) as attached:
        yield attached


# --- election


@contextlib.contextmanager
def _elected(arena: Arena, deadline_s: float) -> Iterator[bool]:
    """True for the one who is to start a sender; False when there is one."""
    descriptor = _open_to_lock(arena)
    try:
        yield _wait_for_election(arena, descriptor, deadline_s)
    finally:
        os.close(descriptor)


def _open_to_lock(arena: Arena) -> int:
    """A descriptor of the arena's file that has nothing to do with the arena's own."""
    with ArenaFile.parse(arena.name).open(read_only=True, mode_max=arena.mode) as descriptors:
        try:
            return os.dup(descriptors.lock)
        finally:
            descriptors.close()


def _wait_for_election(arena: Arena, descriptor: int, deadline_s: float) -> bool:
    while not arena.native.sender_is_alive:
        if _try_lock(descriptor):
            return not arena.native.sender_is_alive
        if time.monotonic() >= deadline_s:
            raise SenderNotStartedError(f"another process is starting a sender of {arena.name} and does not finish")
        time.sleep(ELECTION_SLICE_S)
    return False


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- its sink


def _wait_for_sink(arena: Arena, sink: str, deadline_s: float) -> None:
    """Of whoever has the role now: the sender that was started, too, may have come second."""
    name = name_in_arena(one_spelling(sink))
    while not expect_sink(arena, name) and arena.native.sender_is_alive:
        if time.monotonic() >= deadline_s:
            raise SenderNotStartedError(f"the sender of {arena.name} does not begin: nobody knows where it delivers")
        time.sleep(ELECTION_SLICE_S)


# --- start


def _command(arena: Arena, sink: str, options: Mapping[str, Any], sink_options: Mapping[str, Any]) -> list[str]:
    return [
        sys.executable,
        "-m",
        "shmaccum.sender",
        arena.name,
        f"--sink={sink}",
        f"--mode={arena.mode:o}",
        *(f"--set={name}={value}" for name, value in options.items()),
        *(f"--sink-set={name}={command_line_value(name, value)}" for name, value in sink_options.items()),
    ]


def _start(arena: Arena, command: list[str], log_path: str | os.PathLike[str] | None, deadline_s: float) -> None:
    with _log_file(log_path) as log:
        begins_at = log.seek(0, os.SEEK_END)
        reader = _spawn(command, log)
        try:
            is_closed = _wait_for_end(reader, deadline_s)
        finally:
            os.close(reader)
        if not is_closed:
            raise SenderNotStartedError(f"the sender of {arena.name} did not begin in time")
        if not arena.native.sender_is_alive:
            raise SenderNotStartedError(f"the sender of {arena.name} could not begin: {_reason(log, begins_at)}")


@contextlib.contextmanager
def _log_file(log_path: str | os.PathLike[str] | None) -> Iterator[IO[bytes]]:
    """Where the daemon writes. Without a path it is a file without a name, which goes with the daemon."""
    if log_path is None:
        with tempfile.TemporaryFile() as log:
            yield log
    else:
        with Path(log_path).open("ab+") as log:
            yield log


def _spawn(command: list[str], log: IO[bytes]) -> int:
    """Starts the daemon by a shell that ends at once, so that it is nobody's zombie. Answers the pipe to wait on."""
    reader, writer = os.pipe()
    try:
        subprocess.run(
            ["/bin/sh", "-c", DAEMON, "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=log,
            start_new_session=True,
            check=True,
        )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return reader


def _wait_for_end(reader: int, deadline_s: float) -> bool:
    """True when the other end was closed."""
    return bool(wait_readable([reader], max(deadline_s - time.monotonic(), 0)))


def _reason(log: IO[bytes], begins_at: int) -> str:
    """The last line it wrote."""
    end = log.seek(0, os.SEEK_END)
    log.seek(max(begins_at, end - REASON_SIZE_MAX))
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it ended without a word"
