# SPDX-License-Identifier: Apache-2.0
"""The versions that a server serves, its address, and files that it reads again."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum.log.server import LogServer
from shmaccum.log.server.users import changed_users

VERSIONS = {
    0: (0, 13), 1: (4, 17), 2: (1, 10), 3: (0, 13), 8: (2, 9), 9: (1, 9),
    10: (0, 6), 11: (0, 9), 12: (0, 4), 13: (0, 5), 14: (0, 5), 15: (0, 6),
    16: (0, 5), 17: (0, 1), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2),
    22: (0, 5), 23: (2, 4), 24: (0, 3), 25: (0, 4), 26: (0, 4), 28: (0, 4),
    32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 4), 36: (0, 2), 37: (0, 3),
    42: (0, 2), 43: (1, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0),
    60: (0, 2), 61: (0, 0), 65: (0, 0), 66: (0, 1), 68: (0, 1), 69: (0, 1),
    74: (0, 1), 75: (0, 0),
}  # fmt: skip
"""API key -> the lowest and the highest version."""
LOGIN, TRANSACTIONS = {17, 36}, {24, 25, 26, 28, 61, 65, 66}


def versions_of(server: LogServer) -> dict[int, tuple[int, int]]:
    return {key: (row.version_min, row.version_max) for key, row in server._dispatcher.table.items()}


def test_a_server_serves_these_versions(tmp_path: Path) -> None:
    """A client that uses a version keeps working with the next release."""
    with LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True) as server:
        assert server._coordinator.address == f"127.0.0.1:{server.address.port}"
        assert versions_of(server) == {key: row for key, row in VERSIONS.items() if key not in LOGIN}
    with LogServer(tmp_path / "log", "127.0.0.1:0") as server:
        assert versions_of(server) == {key: row for key, row in VERSIONS.items() if key not in LOGIN | TRANSACTIONS}


def test_logins_have_their_versions(tmp_path: Path) -> None:
    with changed_users(str(tmp_path / "users")):
        pass
    with LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True, users_file=str(tmp_path / "users")) as server:
        assert versions_of(server) == VERSIONS


@pytest.mark.parametrize("is_changed", [False, True])
def test_files_that_changed_are_reported_and_take_effect(caplog: pytest.LogCaptureFixture, is_changed: bool) -> None:
    applied: list[bool] = []
    server: Any = SimpleNamespace(
        _tls=SimpleNamespace(refresh=lambda: is_changed),
        _users=SimpleNamespace(refresh=lambda: is_changed, path="/users"),
        _apply_rights=lambda: applied.append(True),
        options=SimpleNamespace(ssl_certfile="/certificate"),
    )
    with caplog.at_level(logging.INFO):
        LogServer._read_changed_files(server)
    reports = ["reloaded the certificate from /certificate for new connections", "reloaded the users from /users"]
    assert caplog.messages == (reports if is_changed else [])
    assert applied == [True] * is_changed
