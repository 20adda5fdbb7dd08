# SPDX-License-Identifier: Apache-2.0
"""A recorder of what Python forces to disk, renames and removes, in order; the real calls are made."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class Forced:
    """The calls so far, as ("sync", path), ("replace", path) and ("unlink", path)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        self.is_failing = False
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._sync(getattr(os, name)))
        for name, place in (("replace", 1), ("rename", 1), ("unlink", 0)):
            monkeypatch.setattr(os, name, self._noted(getattr(os, name), name, place))

    def _sync(self, really: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            self.calls.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
            if self.is_failing:
                raise OSError(5, os.strerror(5))
            really(descriptor)

        return sync

    def _noted(self, really: Callable[..., None], name: str, place: int) -> Callable[..., None]:
        def call(*arguments: Any, **more: Any) -> None:
            self.calls.append(("unlink" if name == "unlink" else "replace", os.fspath(arguments[place])))
            really(*arguments, **more)

        return call

    @property
    def synced(self) -> list[str]:
        """The paths that were forced to disk."""
        return [path for call, path in self.calls if call == "sync"]

    def has(self, *paths: Path) -> bool:
        """True if each of the paths was forced to disk."""
        return {os.path.realpath(path) for path in paths} <= set(self.synced)

    def clear(self) -> None:
        """Forgets the calls so far."""
        self.calls.clear()
