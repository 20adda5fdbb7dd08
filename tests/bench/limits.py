# SPDX-License-Identifier: Apache-2.0
"""Limits of planted questions, on machines that start a process slowly."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import wait_until


def limit_counts_from(sign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the limit of a question when its process has created this file, or has ended."""

    class SlowStarter(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None:
                wait_until(lambda: os.path.lexists(sign) or self.poll() is not None, "it has begun")
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", SlowStarter)
