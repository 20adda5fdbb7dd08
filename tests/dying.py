# SPDX-License-Identifier: Apache-2.0
"""Deaths at system calls: a function runs in a child that its parent traces, and kills before one of its calls."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

import pytest

PTRACE_TRACEME, PTRACE_SYSCALL, PTRACE_SETOPTIONS = 0, 24, 0x4200
PTRACE_O_TRACESYSGOOD, PTRACE_O_EXITKILL = 1, 1 << 20
SYSCALL_STOP = signal.SIGTRAP | 0x80
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def dies_at_system_call(prepare: Callable[[], Callable[[], object]], number: int) -> bool:
    """Runs a function in a child that is killed before its system call of that number. False: it made fewer.

    Args:
        prepare: called in the child, untraced; answers the function.
        number: from 1.
    """
    pid = os.fork()
    if pid == 0:
        _be_traced(prepare)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSTOPPED(status):
        pytest.skip("this machine does not let a process trace its child")
    _libc.ptrace(PTRACE_SETOPTIONS, pid, None, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)
    stops = 0
    while stops < 2 * number - 1:  # one before and one behind each call
        _libc.ptrace(PTRACE_SYSCALL, pid, None, None)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            return False
        stops += os.WSTOPSIG(status) == SYSCALL_STOP
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def _be_traced(prepare: Callable[[], Callable[[], object]]) -> None:
    try:
        function = prepare()
        if _libc.ptrace(PTRACE_TRACEME, 0, None, None) < 0:
            os._exit(77)
        os.kill(os.getpid(), signal.SIGSTOP)
        function()
    finally:
        os._exit(0)
