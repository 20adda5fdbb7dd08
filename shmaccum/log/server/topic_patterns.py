# SPDX-License-Identifier: Apache-2.0
"""Regular expressions by which members of KIP-848 subscribe to topics, matched by RE2, as Kafka matches them.

A pattern comes from a client, and all clients of a server share one thread. So the cost of a pattern is bounded:

* RE2 takes time in proportion to the length of a name and to the size of the compiled pattern, for every pattern.
* A pattern has at most `PATTERN_SIZE_MAX` characters, and `PROGRAM_MEMORY_MAX` bytes when it is compiled.
* A pattern that needs more than `MATCHING_CPU_S` for the topics of the log is refused.
* The topics that a pattern matches are kept until topics come or go. A heartbeat looks for those of one pattern.

The engine is the package google-re2, which ``shmaccum[serve]`` brings. A server without it refuses patterns.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Collection
from typing import Any, final

from shmaccum.common.packages import install
from shmaccum.exceptions import InvalidArgumentError, PackageMissingError

PATTERN_SIZE_MAX = 2048
PROGRAM_MEMORY_MAX = 64 << 10
"""Bytes: enough for a choice of about a hundred names of topics."""
MATCHING_CPU_S = 0.1
"""A usual pattern needs 5 µs for a name, the worst one 2 ms for the longest name."""
NAMES_PER_LOOK = 50
"""Names between two looks at the clock of the CPU."""
COMPILED_KEPT, FOUND_KEPT = 128, 1024
"""How many compiled patterns are kept, and of how many patterns the topics."""
SHOWN_SIZE_MAX = 100


@functools.lru_cache(COMPILED_KEPT)
def compiled(pattern: str) -> Any:
    """The pattern, ready to be matched.

    Raises:
        InvalidArgumentError: the pattern is no regular expression of RE2 or is too large, or there is no engine.
    """
    if len(pattern) > PATTERN_SIZE_MAX:
        raise InvalidArgumentError(f"a pattern has at most {PATTERN_SIZE_MAX} characters, and this one {len(pattern)}")
    engine = _engine()
    options = engine.Options()
    options.max_mem = PROGRAM_MEMORY_MAX
    options.log_errors = False
    try:
        return engine.compile(pattern, options=options)
    except (engine.error, UnicodeError) as error:
        reason = error.args[0].decode() if isinstance(error, engine.error) else str(error)
        raise InvalidArgumentError(f"{_shown(pattern)} is no pattern of RE2: {reason[:SHOWN_SIZE_MAX]}") from None


def _engine() -> Any:
    try:
        return importlib.import_module("re2")
    except ImportError:
        raise PackageMissingError(
            f"this server lacks the engine for regular expressions (google-re2): {install('serve')} where it runs, or "
            "subscribe to names"
        ) from None


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= SHOWN_SIZE_MAX else pattern[:SHOWN_SIZE_MAX] + "...")


@final
class TopicPatterns:
    """The topics that patterns match. Each pattern is resolved once while the topics stay what they are."""

    def __init__(self) -> None:
        self._names: Collection[str] = ()
        self._found: dict[str, frozenset[str]] = {}

    def matching(self, pattern: str, names: Collection[str]) -> frozenset[str]:
        """The names that a pattern matches as a whole.

        Args:
            pattern: a regular expression of RE2.
            names: of every topic; the same object as before while no topic came or went.

        Raises:
            InvalidArgumentError: as `compiled`, or the pattern takes too long.
        """
        if names is not self._names:
            self._names, self._found = names, {}
        found = self._found.get(pattern)
        if found is None:
            if len(self._found) >= FOUND_KEPT:
                self._found.clear()
            found = self._found[pattern] = _matched(pattern, names)
        return found


def _matched(pattern: str, names: Collection[str]) -> frozenset[str]:
    matches, found = compiled(pattern).fullmatch, set()
    end_s = time.thread_time() + MATCHING_CPU_S
    for number, name in enumerate(names, 1):
        if matches(name):
            found.add(name)
        if number % NAMES_PER_LOOK == 0 and time.thread_time() > end_s:
            raise InvalidArgumentError(
                f"{_shown(pattern)} takes too long for {len(names)} topics: repeat less in it, or subscribe to names"
            )
    return frozenset(found)
