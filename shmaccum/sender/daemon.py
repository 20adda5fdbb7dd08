# SPDX-License-Identifier: Apache-2.0
"""The first program of a sender's daemon: it resets what the process inherited, then runs `shmaccum.sender`.

The supervisor starts it as ``python -I shmaccum/sender/daemon.py``. Standard input has one JSON object:

``root``     the folder from which the parent imported ``shmaccum``; the daemon imports the same one
``path``     the parent's folders with the dependencies (`shmaccum.supervisor.inheritance` chooses them)
``umask``    of the files that the sender creates: no wider than the arena
``secrets``  options of the sink that must be neither on a command line nor in an environment

Reset
    the signal mask and ignored signals; the working folder (``/``); the umask; niceness, scheduling policy and CPU
    affinity; oom_score_adj, to that of process 1; soft resource limits, to the hard ones; descriptors other than 0, 1
    and 2; the session; ``sys.path``, which has neither the working folder nor a folder that other users may write.
    Python's environment variables (``PYTHONPATH``, ``PYTHONSTARTUP`` ...) have no effect.

    A reset that the kernel refuses, such as a lower niceness without the privilege, is logged.

Inherited on purpose
    user, groups and capabilities; cgroup, namespaces and root folder; hard resource limits and the limits of core files
    and stacks; the rest of the environment, for secrets (``env:NAME``), proxies, time zone, Kerberos and the dynamic
    linker (``LD_LIBRARY_PATH``, ``LD_PRELOAD``); I/O priority.

The process forks once, so that the daemon is not a child of its starter and leads no session. Before `import_root`,
this file imports only the standard library.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

LIMITS = ("RLIMIT_CPU", "RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_DATA", "RLIMIT_AS", "RLIMIT_NPROC", "RLIMIT_RSS")
OOM_SCORE = "/proc/{}/oom_score_adj"
ADVICE = (
    "A sender imports from the folders of its starter's sys.path, without the working folder, the program's folder "
    "and folders that other users may write: install shmaccum and its dependencies elsewhere"
)
FORK_FAILED = 75
"""EX_TEMPFAIL: the system cannot create another process now."""


def reset(umask: int) -> list[str]:
    """Reset what a daemon must not inherit. Return a sentence for each part that the kernel refused."""
    _reset_signals()
    os.chdir("/")
    os.umask(umask)
    return list(_refusals())


def _reset_signals() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:  # Python itself ignores the last two
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _refusals() -> Iterator[str]:
    parts: dict[str, Callable[[], object]] = {
        "the scheduling policy": lambda: os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0)),
        "the niceness": lambda: os.setpriority(os.PRIO_PROCESS, 0, 0),
        "the CPU affinity": lambda: os.sched_setaffinity(0, range(os.cpu_count() or 1)),
        "oom_score_adj": _reset_oom_score,
        **{name: lambda name=name: _raise_limit(name) for name in LIMITS},  # type: ignore[misc]
    }
    for part, reset_part in parts.items():
        try:
            reset_part()
        except (OSError, ValueError) as error:  # noqa: PERF203 - each part is tried
            yield f"{part} of the starting process is unchanged, because the kernel refuses to reset it: {error}"


def _reset_oom_score() -> None:
    """Set the score of process 1, which a container sets; on a host it is 0."""
    try:
        wanted = _read(OOM_SCORE.format(1))
    except OSError:
        wanted = "0"
    if _read(OOM_SCORE.format("self")) != wanted:
        with open(OOM_SCORE.format("self"), "w", encoding="ascii") as file:
            file.write(wanted)


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def _raise_limit(name: str) -> None:
    limit = getattr(resource, name)
    soft, hard = resource.getrlimit(limit)
    if soft != hard:
        resource.setrlimit(limit, (hard, hard))


def import_root(root: str, path: list[str]) -> None:
    """Import the parent's ``shmaccum``, whatever package of this name the interpreter has; see above."""
    sys.path[:] = [entry for entry in sys.path if entry and os.path.isabs(entry)]
    own = [entry for entry in sys.path if not _is_of_packages(entry)]
    rest = [entry for entry in sys.path if _is_of_packages(entry)]
    sys.path[:] = list(dict.fromkeys([*own, *path, *rest]))
    spec = importlib.machinery.PathFinder.find_spec("shmaccum", [root])
    if spec is None or spec.loader is None:
        raise ImportError(f"{root} has no package shmaccum any more")
    package = importlib.util.module_from_spec(spec)
    sys.modules["shmaccum"] = package
    spec.loader.exec_module(package)


def _is_of_packages(entry: str) -> bool:
    """False for the folders of the standard library, which precede those of the parent."""
    return os.path.basename(entry) in {"site-packages", "dist-packages"}


def begin() -> dict[str, Any]:
    """Read the supervisor's input, and continue in a child that no process has to wait for."""
    given: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    try:
        is_parent = os.fork() > 0
    except OSError as error:
        print(f"OSError: no process could be forked: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(FORK_FAILED)
    if is_parent:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return given


def run() -> int:
    """Return the exit code of the sender."""
    given = begin()
    refusals = reset(given["umask"])
    try:
        import_root(given["root"], given["path"])
        from shmaccum.sender import __main__ as program  # only now is the path set
        from shmaccum.sender.service import name_process
    except ImportError as error:
        print(f"ImportError: {error}. {ADVICE}", file=sys.stderr)
        return 1

    name_process()
    return program.main(refusals=refusals, secrets=given["secrets"])


if __name__ == "__main__":
    sys.exit(run())
