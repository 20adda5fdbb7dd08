# SPDX-License-Identifier: Apache-2.0
"""File systems whose locks do not prove that a process lives."""

from __future__ import annotations

import ctypes
import os

from shmaccum.exceptions import InvalidArgumentError

STATFS_SIZE = 512
FAR = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB",
    0x01021997: "9p",
    0x65735546: "FUSE",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
}
"""File systems whose locks are leases, or local to a host."""

_libc = ctypes.CDLL(None, use_errno=True)


def kind_of(path: str) -> int:
    """The magic number of the file system of a path (statfs)."""
    found = ctypes.create_string_buffer(STATFS_SIZE)
    if _libc.statfs(os.fsencode(path), found):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
    return ctypes.c_ulong.from_buffer(found).value & 0xFFFFFFFF


def check_locks_of(path: str) -> None:
    """Reject a path on a file system that releases a lock after a time, or does not release it with its holder.

    Raises:
        InvalidArgumentError: if it is on such a file system.
    """
    name = FAR.get(kind_of(path))
    if name is not None:
        raise InvalidArgumentError(
            f"{path} is on {name}, whose locks are not released at once when a consumer dies: put the log on a disk of "
            "this host, or consume through shmaccum serve"
        )
