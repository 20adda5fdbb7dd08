# SPDX-License-Identifier: Apache-2.0
"""After a failed close, the descriptor is closed, and another file may get its number. It is not closed again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shmaccum.log.files.lock_file import LockFile
from shmaccum.log.files.log_watch import LogWatch
from shmaccum.log.groups.member_locks import MemberLocks
from shmaccum.log.groups.offsets_file import GroupLock, OffsetsFile
from tests.support.processes import run_in_child

HOLDERS: dict[str, Callable[[str], Callable[[], None]]] = {
    "log": lambda folder: LockFile(os.path.join(folder, ".lock")).release,
    "member": lambda folder: MemberLocks(folder, "group").close,
    "group": lambda folder: GroupLock(folder, "group").release,
    "offsets": lambda folder: OffsetsFile(folder, "group", is_writer=True, is_synced=False).close,
    "watch": lambda _: LogWatch().close,
}


def closes_and_fails(descriptor: int, close: Callable[[int], None] = os.close) -> None:
    close(descriptor)
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_a_failed_close_is_not_repeated(
    hold: Callable[[str], Callable[[], None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".groups").mkdir()
    let_go = hold(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", closes_and_fails)
        with pytest.raises(OSError, match="Input/output"):
            let_go()
    with (tmp_path / "bystander").open("wb") as bystander:  # gets the lowest free number
        let_go()
        os.fstat(bystander.fileno())
        assert run_in_child(os.fstat, bystander.fileno()).startswith("os.stat_result")
