# SPDX-License-Identifier: Apache-2.0
"""Shared-memory objects and semaphores, which have POSIX names.

`posix_ipc` opens them. It has no wheels for Python 3.14 and newer, so it is no requirement there, and an installation
needs no compiler. Without it, the same files below /dev/shm are opened by their paths, and the C library makes a
semaphore. Errors are those of the operating system either way.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

try:
    import posix_ipc
except ModuleNotFoundError:
    posix_ipc = None

SHARED_MEMORY = "/dev/shm"


@contextlib.contextmanager
def _system_errors(existence: type[OSError]) -> Iterator[None]:
    """Raises the OSError that corresponds to an error of `posix_ipc`."""
    try:
        yield
    except posix_ipc.ExistentialError as error:
        raise existence(str(error)) from None
    except posix_ipc.PermissionsError as error:
        raise PermissionError(str(error)) from None
    except ValueError as error:  # raised for a folder
        raise IsADirectoryError(str(error)) from None
    except posix_ipc.Error as error:
        raise OSError(str(error)) from error


def open_shared_memory(name: str, flags: int, *, read_only: bool) -> int:
    """Returns a descriptor of an existing object."""
    if posix_ipc is None:
        access = os.O_RDONLY if read_only else os.O_RDWR
        return os.open(f"{SHARED_MEMORY}/{name[1:]}", access | os.O_NOFOLLOW | os.O_CLOEXEC | flags)
    with _system_errors(FileNotFoundError):
        return int(posix_ipc.SharedMemory(name, flags, read_only=read_only).fd)


def unlink_shared_memory(name: str) -> None:
    """Removes the name of an object."""
    if posix_ipc is None:
        os.unlink(f"{SHARED_MEMORY}/{name[1:]}")
        return
    with _system_errors(FileNotFoundError):
        posix_ipc.unlink_shared_memory(name)


def create_semaphore(name: str, mode: int) -> None:
    """Creates a semaphore of value 0.

    Raises:
        FileExistsError: there is a semaphore of this name.
    """
    if posix_ipc is None:
        _create_in_c(name, mode)
        return
    with _system_errors(FileExistsError):
        posix_ipc.Semaphore(name, posix_ipc.O_CREX, mode=mode).close()


def _create_in_c(name: str, mode: int) -> None:
    import ctypes  # slow to import, and only the first wait for a buffer needs it

    library = ctypes.CDLL(None, use_errno=True)
    library.sem_open.restype = ctypes.c_void_p
    library.sem_close.argtypes = [ctypes.c_void_p]
    made = library.sem_open(name.encode(), os.O_CREAT | os.O_EXCL, ctypes.c_uint(mode), ctypes.c_uint(0))
    if made is None:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    library.sem_close(made)


def unlink_semaphore(name: str) -> None:
    """Removes the name of a semaphore. Processes that have it open can still use it."""
    if posix_ipc is None:
        os.unlink(f"{SHARED_MEMORY}/sem.{name[1:]}")
        return
    with _system_errors(FileNotFoundError):
        posix_ipc.unlink_semaphore(name)
