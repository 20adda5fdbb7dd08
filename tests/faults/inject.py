# SPDX-License-Identifier: Apache-2.0
"""Let the k-th system call of an operation fail, for k = 1, 2, ... until the operation makes fewer calls.
This runs in a separate process with failing_calls.c loaded first.

    LD_PRELOAD=failing_calls.so python -m tests.faults.inject OPERATION ERROR[,ERROR...] [--some SEED]

By default, every k gets all of the errors. With ``--some``, about every twelfth k gets one of them. The program prints
a line of JSON. A wrong result ends the process with a traceback that names operation, k, error and call.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import gc
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shmaccum.exceptions import ShmaccumError
from tests.faults.operations import OPERATIONS, Operation

SHORT_WRITE = -1
NAMES = ("ENOSPC", "EINTR", "EIO", "EAGAIN", "ENOMEM")
ERRORS = {"SHORT": SHORT_WRITE, **{name: getattr(errno, name) for name in NAMES}}
CALLS_MAX = 2000
SOME_STEP_MAX = 23

_library = ctypes.CDLL(None)
_library.faults_hit.restype = ctypes.c_char_p


@dataclass
class Tally:
    """The results of one operation's faults."""

    fault_count: int = 0
    call_count: int = 0
    raised: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)


def open_files() -> list[str]:
    """Return the open files of the process. Sockets and pipes have only their kind, because their numbers differ."""
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sorted(os.readlink(link) for link in links if os.path.lexists(link))


def shared_memory() -> list[str]:
    """Return this test's names in shared memory."""
    own = f"shmaccum-test-{os.getpid()}-"
    return sorted(name for name in os.listdir("/dev/shm") if own in name)


@contextmanager
def named(operation: str, number: int, error: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        hit = _library.faults_hit()
        print(f"{operation}: call {number} ({hit.decode() if hit else 'none'}) failed with {error}", file=sys.stderr)
        raise


def is_clear(problem: BaseException) -> bool:
    """Return True if a user can act on the error. It must be one of shmaccum or of the system, with a sentence."""
    return isinstance(problem, (OSError, MemoryError, ShmaccumError)) and len(str(problem)) > 10


def run_once(operation: Operation, number: int, error: int) -> tuple[BaseException | None, int]:
    """Run the operation with one failing call. Return the exception and the number of calls."""
    raised: BaseException | None = None
    _library.faults_arm(number, error)
    try:
        operation.run()
    except Exception as problem:  # noqa: BLE001 - judged by the caller, outside of the faults
        raised = problem
    finally:
        count = _library.faults_disarm()
    return raised, count


def inject(name: str, number: int, error_name: str, tally: Tally) -> bool:
    """Inject one fault. Return False if the operation made fewer calls."""
    with tempfile.TemporaryDirectory() as folder, named(name, number, error_name):
        before = open_files(), shared_memory()
        operation = OPERATIONS[name](Path(folder))
        operation.prepare()
        prepared = open_files()
        raised, count = run_once(operation, number, ERRORS[error_name])
        hit = _library.faults_hit()
        if raised is not None:
            assert hit is not None, f"nothing failed, and yet it raised {raised!r}"
            if not is_clear(raised):
                raise raised
            tally.raised[type(raised).__name__] += 1
            raised.__traceback__ = None
            operation.check_failed()
            gc.collect()
            left = [each for each in Counter(open_files()) - Counter(prepared) if not each.endswith(operation.keeps)]
            assert not left, f"{left} stay open after {raised!r}"
        operation.settle()
        del operation
        gc.collect()
        assert (open_files(), shared_memory()) == before, "something is left after the end"
    if hit is not None:
        tally.fault_count += 1
        tally.calls[hit.decode()] += 1
    tally.call_count = max(tally.call_count, count)
    return number <= count


def inject_all(name: str, errors: list[str], seed: int | None) -> Tally:
    tally = Tally()
    inject(name, CALLS_MAX, errors[0], Tally())  # imports modules and fills caches
    gc.freeze()  # each fault collects garbage twice, which need not traverse the modules
    chance = random.Random(seed)
    number = 1 if seed is None else chance.randint(1, 3)
    while number < CALLS_MAX:
        chosen = errors if seed is None else [chance.choice(errors)]
        is_over = [not inject(name, number, error, tally) for error in chosen]
        if all(is_over):
            return tally
        number += 1 if seed is None else chance.randint(1, SOME_STEP_MAX)
    raise AssertionError(f"{name} makes more than {CALLS_MAX} calls")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("operation", choices=list(OPERATIONS))
    parser.add_argument("errors", type=lambda text: text.split(","))
    parser.add_argument("--some", type=int, metavar="SEED")
    given = parser.parse_args()
    os.environ.pop("LD_PRELOAD", None)
    OPERATIONS[given.operation].begin()
    tally = inject_all(given.operation, given.errors, given.some)
    OPERATIONS[given.operation].end()
    facts = {"calls": tally.call_count, "faults": tally.fault_count, "raised": tally.raised, "hit": tally.calls}
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
