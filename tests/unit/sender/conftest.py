# SPDX-License-Identifier: Apache-2.0
"""The senders of a test, one after another, with an overflow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum.arena import Arena
from tests.support.overflow import FAST, AwaySink, Open
from tests.support.sender import Sending


@pytest.fixture
def open_sending(arena: Arena, tmp_path: Path) -> Iterator[Open]:
    opened: list[Sending] = []
    sink = AwaySink()

    def open_one(*, is_away: bool = False, **options: Any) -> Sending:
        """Open the next sender, with a sink that has the records of the previous one."""
        next_sink = AwaySink()
        next_sink.broker = sink.broker
        next_sink.is_away = is_away
        if opened:
            opened[-1].producer.close()
        sending = Sending(arena, next_sink, **{**FAST, "overflow": f"log:{tmp_path}/overflow", **options})
        sending.scripted = next_sink
        opened.append(sending)
        return sending

    yield open_one
    opened[-1].close()
