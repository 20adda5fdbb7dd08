# SPDX-License-Identifier: Apache-2.0
"""``shmaccum users add`` at a terminal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from shmaccum.cli import main, users
from shmaccum.log.server.login import Login
from shmaccum.log.server.users import UsersFile
from tests.unit.cli.conftest import Shell


def can_log_in(path: str, name: str, password: str) -> bool:
    login = Login(UsersFile(path))
    login.begin("PLAIN")
    proof = login.step(f"\0{name}\0{password}".encode())
    return not isinstance(proof, bytes) and proof()


def test_the_password_is_prompted_for_and_a_new_one_leaves_the_rights(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "users")
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(users, "sys", SimpleNamespace(stdin=terminal))

    def add(password: str) -> str:
        done = CliRunner().invoke(main, ["users", "add", path, "alice"], input=f"{password}\n{password}\n")
        assert done.exit_code == 0, done.output
        assert password not in done.output
        return done.stdout.splitlines()[-1]

    assert add("pencil") == "alice was added, without rights"
    shell("users", "allow", path, "alice", "read", "topic:flights")
    assert can_log_in(path, "alice", "pencil")
    assert add("crayon") == "alice has a new password"
    assert can_log_in(path, "alice", "crayon")
    assert not can_log_in(path, "alice", "pencil")
    assert "topic:flights" in shell("users", "list", path).stdout
