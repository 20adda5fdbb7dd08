# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.strangers`` checks each listener with strangers, and prints a line of figures for each.

    python -m tests.strangers              every listener
    python -m tests.strangers metrics      listeners with this word in their name python -m tests.strangers requests
    requests of the maximum size

``SHMACCUM_SEED=NUMBER`` repeats a run. The exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import functools
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.strangers.check import check
from tests.strangers.heavy import check_requests
from tests.strangers.listeners import LISTENERS
from tests.strangers.local import LOCAL
from tests.support.seeds import new_seed


def checks(words: list[str]) -> Iterator[tuple[str, Callable[[Path, str, random.Random], object]]]:
    """Return the names and checks that the words select. Without words, return all."""
    for listener in LISTENERS:
        if not words or any(word in listener.name for word in words):
            yield listener.name, functools.partial(check, listener)
    for word, one in LOCAL.items():
        if not words or word in words:
            yield word, one
    if not words or "requests" in words:
        yield "requests", _check_requests


def _check_requests(folder: Path, name: str, dice: random.Random) -> str:
    broken = []
    for figures in check_requests(folder, name, dice):
        print(f"  {'' if figures.is_kept else 'BROKEN: '}{figures}", flush=True)
        broken += [] if figures.is_kept else [figures.name]
    assert not broken, f"other clients waited for {', '.join(broken)}"
    return "requests: each was answered beside others"


def main(words: list[str]) -> int:
    seed = new_seed()
    broken = 0
    for number, (name, one) in enumerate(checks(words)):
        with tempfile.TemporaryDirectory(prefix="strangers-") as folder:
            try:
                print(one(Path(folder), f"strangers-{os.getpid()}-{number}", random.Random(seed)), flush=True)
            except Exception as error:  # noqa: BLE001 - the next one is still checked
                broken += 1
                print(f"{name}: BROKEN: {type(error).__name__}: {error}", flush=True)
    print(f"{broken} promises were broken" if broken else "every promise was kept")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
