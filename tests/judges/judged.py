# SPDX-License-Identifier: Apache-2.0
"""The judged servers, each started like a user's."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from shmaccum.log.server.users import User, Verifier, changed_users
from tests.judges.guard import guarded
from tests.support.processes import wait_until

LISTENING = re.compile(r" at (\S+:\d+), ")
"""The server's first message, which may be split and follow warnings."""
OPTIONS = ("--writable", "-Xgroup_initial_rebalance_delay_ms=50")
LOGIN = ("judge", "secret of the judge")
"""Name and password of a user without rights."""


@contextlib.contextmanager
def server(folder: Path, told: Path, *more: str) -> Iterator[str]:
    """Start a server process and return its address. The file gets its output.

    Args:
        folder: the folder of the log, which is removed at the end.
        told: the output file.
        more: more options of the command.
    """
    command = [sys.executable, "-m", "shmaccum", "serve", str(folder), "--listen=127.0.0.1:0", *OPTIONS, *more]
    with open(told, "w") as errors, guarded(command, stderr=errors):
        wait_until(lambda: LISTENING.search(told.read_text()) is not None, "the server listens")
        yield LISTENING.findall(told.read_text())[0]
    shutil.rmtree(folder)


@contextlib.contextmanager
def server_with_login(place: Path) -> Iterator[str]:
    """Start a server that requires a SCRAM login, and return its address.

    Args:
        place: the folder of its files.
    """
    name, password = LOGIN
    users_file = place / "login-users"
    with changed_users(str(users_file)) as users:
        users[name] = User(name, {"SCRAM-SHA-256": Verifier.of(password, "SCRAM-SHA-256")}, ())
    with server(place / "login-log", place / "login-server.log", f"-Xusers_file={users_file}") as address:
        yield address
