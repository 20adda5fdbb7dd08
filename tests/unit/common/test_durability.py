# SPDX-License-Identifier: Apache-2.0
"""All names on the way to a file are synced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shmaccum.common import durability


def test_each_folder_up_to_the_mount_point_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "unreadable" / "inner"
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder)
    synced: list[str] = []

    def sync_folder(path: str) -> None:
        synced.append(path)
        if path.endswith("unreadable"):
            raise PermissionError

    monkeypatch.setattr(durability, "sync_folder", sync_folder)
    durability.sync_path(str(tmp_path / "link" / "file"))
    parents = [str(parent) for parent in (folder / "file").resolve().parents]
    assert synced == parents[: len(synced)]
    assert [os.path.ismount(path) for path in synced] == [False] * (len(synced) - 1) + [True]


def test_a_folder_that_cannot_be_synced_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        durability.sync_path(str(tmp_path / "absent" / "file"))
