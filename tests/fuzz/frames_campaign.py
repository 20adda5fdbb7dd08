# SPDX-License-Identifier: Apache-2.0
"""Run `frame_fuzzing` for long, in pieces. Each piece has its own seed and server, and the kinds of servers alternate.

    python -m tests.fuzz.campaign --seconds 3600 frames        each kind, 300 s a piece
    SHMACCUM_SEED=7 python -m tests.fuzz.campaign frames       the first piece has this seed

A piece prints its seed, the number of frames, and the growth of the server's memory. A frame that makes the server fail
ends the campaign, which prints its bytes. clang is not needed.
"""

from __future__ import annotations

import itertools
import tempfile
import time
import traceback
from pathlib import Path

from tests.fuzz.frame_fuzzing import SERVERS, Outcome, fuzz
from tests.support.seeds import new_seed

NAME = "frames"
PIECE_SECONDS = 300.0


def explore(seconds: float) -> bool:
    """Send frames for `seconds`. Return True if no frame made a server fail."""
    seed = new_seed()
    end_s, total = time.monotonic() + seconds, 0
    for number, kind in zip(itertools.count(), itertools.cycle(SERVERS)):
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            break
        try:
            outcome = _piece(kind, min(PIECE_SECONDS, left_s, seconds / len(SERVERS)), seed + number)
        except Exception:  # noqa: BLE001 - a frame may end our code in any way
            print(f"{traceback.format_exc()}not survived: SHMACCUM_SEED={seed + number}, a server that {kind}")
            return False
        total += outcome.frame_count
        print(f"SHMACCUM_SEED={seed + number}: {kind}: {_told(outcome)}; {total:,} in all", flush=True)
    return True


def _piece(kind: str, seconds: float, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="shmaccum-frames-") as folder, SERVERS[kind](Path(folder)) as target:
        return fuzz(target, seconds, seed)


def _told(outcome: Outcome) -> str:
    least = min(outcome.answers, key=outcome.answers.__getitem__)
    return (
        f"{outcome.frame_count:,} frames in {outcome.cpu_s:.0f} s of CPU, {sum(outcome.answers.values()):,} answers of "
        f"{len(outcome.answers)} APIs (the fewest {outcome.answers[least]:,}, {least}), of which C gave "
        f"{outcome.ordinary_count:,}; "
        f"{outcome.memory_growth >> 10:+} KiB"
    )
