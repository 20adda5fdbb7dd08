# SPDX-License-Identifier: Apache-2.0
"""Settings for the producers of other libraries, for an arena and a log of one test."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum import Sender
from shmaccum.arena import Arena
from shmaccum.producer.producer import _producers
from shmaccum.supervisor import supervisor
from tests.support.arenas import end_senders
from tests.support.processes import wait_until

TOPIC = "flights"


@pytest.fixture
def own(arena_name: str, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Common options of each compat producer. At the end, the arena has no sender and no records."""
    yield {
        "shmaccum_arena": arena_name,
        "shmaccum_sink": f"log:{tmp_path / 'log'}",
        "shmaccum_buffer_memory": "128KiB",
        "shmaccum_batch_size": "4KiB",
        "shmaccum_process_count": 64,
    }
    gc.collect()  # an unclosed producer detaches from its arena
    for producer in list(_producers):  # the traceback of a failed test refers to its producers
        if producer.arena.name == arena_name:
            producer.close(0)
    if not Arena.exists(arena_name):
        return
    with Arena.attach(arena_name) as arena:
        wait_until(
            lambda: all(kept.uuid != arena.uuid for kept in list(supervisor._supervisors)), "the supervisor ends"
        )
        end_senders(arena)
        with Sender(arena, "null:") as sender:
            sender.stop()
            sender.run()


@pytest.fixture
def unkept(own: dict[str, Any]) -> dict[str, Any]:
    """The same for an arena with an external sender, or none."""
    return {**own, "shmaccum_external_sender": True}


@pytest.fixture
def unsent(unkept: dict[str, Any]) -> Iterator[Arena]:
    """That arena, with a topic of one partition."""
    with Arena.create(
        unkept["shmaccum_arena"],
        buffer_memory="128KiB",
        batch_size="4KiB",
        process_count=64,
        external_sender=True,
        topics={TOPIC: 1},
    ) as arena:
        yield arena
