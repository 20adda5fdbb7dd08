# SPDX-License-Identifier: Apache-2.0
"""Starts a sender in a process of its own, for a process that needs one, if the arena has none.

Several processes may try at once; exactly one of them starts a sender. The process that gets a lock on the arena's file
(flock, which has no other use there) is elected. The elected process holds the lock until the sender has the role or
has died. The kernel releases the lock of a dead process. A forked child releases it at once, because both share it.

The sender's process is a daemon (`shmaccum.sender.daemon`): it has its own session, is no child of the starter, and its
standard streams are /dev/null or a log file. The caller's paths are made absolute, because a daemon works in ``/``. A
pipe reports the start: its other end is the sender's standard output, which is closed after the start, or by the
sender's death.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from shmaccum.arena import DEFAULT_MODE, Arena
from shmaccum.arena.file import ArenaFile
from shmaccum.arena.removal import has_lost_its_name, report_removal
from shmaccum.arena.sender_state import sender_state
from shmaccum.arena.wake_fifo import wait_readable
from shmaccum.common import clock
from shmaccum.config import SenderOptions, command_line_value
from shmaccum.config.secret import Secret
from shmaccum.exceptions import SenderNotStartedError
from shmaccum.sender.sinks.names import expect_sink, name_in_arena, one_spelling, split_url
from shmaccum.supervisor.inheritance import daemon_path, daemon_umask, package_root

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from shmaccum.config.dicts import SenderOptionsDict

ELECTION_SLICE_S = 0.005
START_TIMEOUT_S = 30.0
SPAWN_TIMEOUT_MIN_S = 1.0
IDLE_EXIT_DEFAULT = "60s"
REASON_SIZE_MAX = 4096
DAEMON = os.path.join("shmaccum", "sender", "daemon.py")
PLACES = ("log:", "file:")
"""The beginnings of option values that continue with a path."""


@dataclass(frozen=True)
class Recipe:
    """The sink and the options for starting a sender.

    Attributes:
        sink: as `open_sink` takes it, independent of the folder of the starting process.
        options: those of `SenderOptions`, as they were given.
        sink_options: those of the sink.
        log_path: the file to which the sender appends its log. If None, only the arena's error log has its reports.
        secrets: options of the sink that must not be on a command line or in an environment. The sender reads them from
            its standard input.

    Raises:
        InvalidArgumentError: an option is wrong, or a password is neither ``env:NAME`` nor ``file:PATH``: the sender's
            command line would show it.
    """

    sink: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sink_options: Mapping[str, Any] = field(default_factory=dict)
    log_path: str | os.PathLike[str] | None = None
    secrets: Mapping[str, Secret] = field(default_factory=dict)

    def __post_init__(self) -> None:
        SenderOptions.parse(self.options)
        split_url(self.sink)
        object.__setattr__(self, "sink", _absolute("", self.sink))
        for name in ("options", "sink_options"):
            given = getattr(self, name).items()
            object.__setattr__(self, name, {key: _absolute(key, value) for key, value in given if value is not None})

    @property
    def sink_name(self) -> bytes:
        """The name of this sink in the arena."""
        return name_in_arena(one_spelling(self.sink))

    @property
    def replace_stalled_ms(self) -> int | None:
        """The age of the heartbeat at which the supervisor kills a sender. If None, it does not."""
        return SenderOptions.parse(self.options).replace_stalled_ms

    def command(self, arena: Arena) -> list[str]:
        """Return the command line of the sender's process."""
        return [
            _interpreter(),
            "-I",
            os.path.join(package_root(), DAEMON),
            arena.name,
            f"--sink={self.sink}",
            f"--mode={arena.mode:o}",
            *([] if arena.group is None else [f"--group={arena.group}"]),
            *(f"--set={name}={value}" for name, value in self.options.items()),
            *(f"--sink-set={name}={command_line_value(name, value)}" for name, value in self.sink_options.items()),
            *([] if self.log_path else ["--no-log"]),
        ]


def _absolute(name: str, value: Any) -> Any:
    """Return the value of an option for the daemon, with an absolute path in place of a relative one.

    Raises:
        InvalidArgumentError: the option is a secret, and the value is the secret itself.
    """
    text = command_line_value(name, value)
    for kind in PLACES:
        if text.startswith(kind) and text != kind:
            return kind + os.path.abspath(text[len(kind) :])
    is_path = name.replace(".", "_").endswith("file") and text not in {"", "none"}
    return os.path.abspath(text) if is_path else value


def ensure_sender(
    arena: Arena | str | os.PathLike[str],
    sink: str,
    *,
    mode: int = DEFAULT_MODE,
    idle_exit: str | int | None = IDLE_EXIT_DEFAULT,
    log_path: str | os.PathLike[str] | None = None,
    timeout_s: float = START_TIMEOUT_S,
    sink_options: Mapping[str, Any] | None = None,
    **options: Unpack[SenderOptionsDict],
) -> bool:
    """Return after the arena has a sender. The result is True if this call has started it.

    An arena has one sender and one sink. A living sender with another sink is an error. The sender is not restarted
    after it dies; ``Producer(arena, sink=...)`` does that.

    Args:
        arena: attached, or a name or path to attach to during this call.
        sink: as `open_sink` takes it; a relative path is relative to this process's folder.
        mode: as `Arena.attach` takes it, for an arena that is given by name.
        idle_exit: the sender exits after this time without batches and attached processes. If None, it does not.
        log_path: the file to which the sender appends its log. If None, only the arena's error log has its reports.
        timeout_s: how long to wait.
        sink_options: those of the sink.
        options: those of `SenderOptions`; its ``idle_exit_ms`` takes precedence over `idle_exit`.

    Raises:
        SenderNotStartedError: it could not start, with its reason; or it took too long; or the arena has an external
            sender according to its creator, and that sender does not run.
        InvalidArgumentError: an option is wrong, or a password is neither ``env:NAME`` nor ``file:PATH``: the sender's
            command line would show it.
        OtherSinkError: the living sender delivers to another sink.
        ArenaRemovedError: the arena was removed since the caller attached to it.
        ArenaError: the arena cannot be attached to.
    """
    has_idle_exit = idle_exit is None or "idle_exit_ms" in {name.replace(".", "_") for name in options}
    given = {**options} if has_idle_exit else {**options, "idle_exit_ms": idle_exit}
    recipe = Recipe(sink, given, sink_options or {}, log_path)
    deadline_s = clock.monotonic() + timeout_s
    with _attached(arena, mode) as attached:
        return ensure(attached, recipe, deadline_s)


def ensure(arena: Arena, recipe: Recipe, deadline_s: float) -> bool:
    """As `ensure_sender`, with the same exceptions. The deadline is on the clock of time.monotonic()."""
    if has_lost_its_name(arena):
        raise report_removal(arena)  # a sender that is started by that name would serve another arena
    with _election(arena) as descriptor:
        is_elected = _wait_for_election(arena, descriptor, deadline_s)
        if is_elected:
            _refuse_external(arena)
            start(arena, recipe, deadline_s)
    _wait_for_sink(arena, recipe, deadline_s)
    return is_elected


def _refuse_external(arena: Arena) -> None:
    if arena.has_external_sender:
        raise SenderNotStartedError(
            f"the arena {arena.name} has no sender, and its creator has reserved it for an external one "
            "(external_sender): start that sender, for example by its systemd unit"
        )


@contextlib.contextmanager
def _attached(arena: Arena | str | os.PathLike[str], mode: int) -> Iterator[Arena]:
    """Yield the arena. One that is given by name is closed at the end."""
    if isinstance(arena, Arena):
        yield arena
        return
    with Arena.attach(arena, mode=mode) as attached:
        yield attached


# --- election

_elections: set[int] = set()
"""Descriptors of the elections in which this process takes part."""


@contextlib.contextmanager
def elected_at_once(arena: Arena) -> Iterator[bool]:
    """Yield True if this process has to start a sender; False if there is one, or another process starts one."""
    with _election(arena) as descriptor:
        yield _try_lock(descriptor) and not arena.native.sender_is_alive


@contextlib.contextmanager
def _election(arena: Arena) -> Iterator[int]:
    descriptor = _open_to_lock(arena)
    _elections.add(descriptor)
    try:
        yield descriptor
    finally:
        if descriptor in _elections:  # false in the child of a fork
            _elections.remove(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # releases the lock even if a child still has the descriptor
            os.close(descriptor)


def _open_to_lock(arena: Arena) -> int:
    """Return a descriptor of the arena's file that is independent of the arena's own."""
    with ArenaFile.parse(arena.name).open(read_only=True, mode_max=arena.mode) as descriptors:
        try:
            return os.dup(descriptors.lock)
        finally:
            descriptors.close()


def _wait_for_election(arena: Arena, descriptor: int, deadline_s: float) -> bool:
    while not arena.native.sender_is_alive:
        if _try_lock(descriptor):
            return not arena.native.sender_is_alive
        if clock.monotonic() >= deadline_s:
            raise SenderNotStartedError(
                f"another process is starting a sender of {arena.name} and does not finish. {sender_state(arena)}"
            )
        time.sleep(ELECTION_SLICE_S)
    return False


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _close_elections() -> None:
    """Close the descriptors in a child. Otherwise, the lock of a killed parent would live on in its children."""
    while _elections:
        os.close(_elections.pop())


os.register_at_fork(after_in_child=_close_elections)


# --- its sink


def _wait_for_sink(arena: Arena, recipe: Recipe, deadline_s: float) -> None:
    """Wait until the present sender has named its sink. The started sender may not have got the role."""
    while not expect_sink(arena, recipe.sink_name) and arena.native.sender_is_alive:
        if clock.monotonic() >= deadline_s:
            raise SenderNotStartedError(f"the sender of {arena.name} did not publish its sink in time")
        time.sleep(ELECTION_SLICE_S)


# --- start


def start(arena: Arena, recipe: Recipe, deadline_s: float) -> None:
    """Start a sender, and wait until it has the role and its sink is open. The elected process calls it.

    Raises:
        SenderNotStartedError: it could not start, with its reason; or it took too long.
    """
    with _log_file(recipe.log_path) as log:
        begins_at = log.seek(0, os.SEEK_END)
        reader = _spawn(arena, recipe, log, deadline_s)
        try:
            is_closed = bool(wait_readable([reader], max(deadline_s - clock.monotonic(), 0)))
        finally:
            os.close(reader)
        if arena.native.sender_is_alive:
            return
        if not is_closed:
            raise SenderNotStartedError(f"the sender of {arena.name} did not start in time")
        raise SenderNotStartedError(f"the sender of {arena.name} could not start: {_reason(log, begins_at)}")


def _interpreter() -> str:
    """Return the Python program. In a server that embeds Python, such as uWSGI, ``sys.executable`` is the server."""
    program = sys.executable or ""  # a program that embeds Python may have none
    if Path(program).name.startswith("py"):
        return program
    names = (f"python{sys.version_info.major}.{sys.version_info.minor}", "python3", "python")
    places = (Path(sys.exec_prefix, "bin", name) for name in names)
    return next((str(place) for place in places if place.is_file()), program or "python3")


@contextlib.contextmanager
def _log_file(log_path: str | os.PathLike[str] | None) -> Iterator[IO[bytes]]:
    """Open the daemon's log. Without a path, it is a temporary file without a name, which ends with the daemon."""
    if log_path is None:
        with tempfile.TemporaryFile() as log:
            yield log
    else:
        with Path(log_path).open("ab+") as log:
            yield log


def _spawn(arena: Arena, recipe: Recipe, log: IO[bytes], deadline_s: float) -> int:
    """Start the daemon, and return the pipe to wait on.

    The process that is started here ends at once: it forks the daemon, which no process has to wait for.

    Raises:
        SenderNotStartedError: no process could be started.
    """
    given = {
        "root": package_root(),
        "path": daemon_path(),
        "umask": daemon_umask(arena.mode),
        "secrets": {name: secret.reveal() for name, secret in recipe.secrets.items()},
    }
    reader, writer = os.pipe()
    try:
        subprocess.run(
            recipe.command(arena),
            input=json.dumps(given).encode(),
            stdout=writer,
            stderr=log,
            cwd="/",
            start_new_session=True,
            timeout=max(deadline_s - clock.monotonic(), SPAWN_TIMEOUT_MIN_S),
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        os.close(reader)
        reason = getattr(error, "strerror", None) or str(error)
        raise SenderNotStartedError(
            f"no process could be started for the sender of {arena.name}: {reason}. Check the limits of processes and "
            "memory (ulimit -u, pids.max, free)"
        ) from error
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return reader


def _reason(log: IO[bytes], begins_at: int) -> str:
    """Return the last line that the sender wrote."""
    end = log.seek(0, os.SEEK_END)
    log.seek(max(begins_at, end - REASON_SIZE_MAX))
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it ended without a message"
