# SPDX-License-Identifier: Apache-2.0
"""Hostile frames for the whole dispatcher of a server (`frame_fuzzing`).

Each frame gets a response, or its connection is closed. No frame raises in the server's code, takes seconds, or leaks
memory. The test runs for a second; ``make fuzz ARGS="--seconds 600 frames"`` runs for longer.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shmaccum.log.server.connection import Connection
from shmaccum.log.server.dispatch import Dispatcher
from tests.fuzz.frame_fuzzing import SERVERS, fuzz
from tests.support.seeds import new_seed

SHORT_SECONDS = 0.4
ROOM_S = 600


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.timeout(SHORT_SECONDS + ROOM_S)
def test_some_hostile_frames_do_no_harm(kind: str, tmp_path: Path) -> None:
    seed = new_seed()
    with SERVERS[kind](tmp_path) as target:
        is_c_asked = kind == "everybody fetches"  # C serves what the server finds in one iteration
        outcome = fuzz(target, SHORT_SECONDS, seed, round_count_min=3 if is_c_asked else 1)
        assert outcome.frame_count > 0
        assert outcome.ordinary_count > 0 or not is_c_asked


def test_one_leaked_descriptor_of_a_client_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaked: list[int] = []
    close = Dispatcher.close

    def close_and_leak(dispatcher: Dispatcher, connection: Connection) -> None:
        if not leaked and connection.descriptor >= 0:
            leaked.append(os.dup(connection.descriptor))
        close(dispatcher, connection)

    with SERVERS["everybody fetches"](tmp_path) as target:
        monkeypatch.setattr(Dispatcher, "close", close_and_leak)
        try:
            with pytest.raises(AssertionError, match="left these descriptors"):
                fuzz(target, 0, seed=1)
        finally:
            for descriptor in leaked:
                os.close(descriptor)
