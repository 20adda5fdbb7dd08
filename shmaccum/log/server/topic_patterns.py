# SPDX-License-Identifier: Apache-2.0
"""Topic subscriptions of KIP-848 members by regular expression, matched by RE2 as in Kafka.

A pattern comes from a client, and all clients of a server share one thread. So the cost of a pattern is bounded:

* For every pattern, RE2 takes time proportional to the length of a name and the size of the compiled pattern.
* A pattern has at most `PATTERN_SIZE_MAX` characters, and `PROGRAM_MEMORY_MAX` bytes when compiled.
* A pattern that needs more than `MATCHING_CPU_S` for all topics is rejected.
* The matches of a pattern are cached until topics are created or deleted. A heartbeat has at most one pattern.

The engine is the package google-re2 of ``shmaccum[serve]``. A server without it rejects patterns.
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
"""Enough for an alternation of about a hundred topic names."""
MATCHING_CPU_S = 0.1
"""A typical pattern needs 5 µs for a name, the worst one 2 ms for the longest name."""
NAMES_PER_CHECK = 50
"""The number of names between two reads of the CPU clock."""
COMPILED_KEPT, FOUND_KEPT = 128, 1024
"""The most compiled patterns, and the most patterns with matches, in the cache."""
SHOWN_SIZE_MAX = 100


@functools.lru_cache(COMPILED_KEPT)
def compiled(pattern: str) -> Any:
    """Compile a pattern.

    Raises:
        InvalidArgumentError: the pattern is invalid for RE2 or too large, or the engine is missing.
    """
    if len(pattern) > PATTERN_SIZE_MAX:
        raise InvalidArgumentError(f"a pattern has {len(pattern)} characters, more than {PATTERN_SIZE_MAX}")
    engine = _engine()
    options = engine.Options()
    options.max_mem = PROGRAM_MEMORY_MAX
    options.log_errors = False
    try:
        return engine.compile(pattern, options=options)
    except (engine.error, UnicodeError) as error:
        reason = error.args[0].decode() if isinstance(error, engine.error) else str(error)
        raise InvalidArgumentError(f"{_shown(pattern)} is not a valid RE2 pattern: {reason[:SHOWN_SIZE_MAX]}") from None


def _engine() -> Any:
    try:
        return importlib.import_module("re2")
    except ImportError:
        raise PackageMissingError(
            f"this server lacks the engine for regular expressions (google-re2): {install('serve')} on its host, or "
            "subscribe to names"
        ) from None


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= SHOWN_SIZE_MAX else pattern[:SHOWN_SIZE_MAX] + "...")


@final
class TopicPatterns:
    """The topics that match patterns. While the list of topics is unchanged, each pattern is resolved once."""

    def __init__(self) -> None:
        self._names: Collection[str] = ()
        self._found: dict[str, frozenset[str]] = {}

    def matching(self, pattern: str, names: Collection[str]) -> frozenset[str]:
        """Returns the names that match a pattern completely.

        Args:
            pattern: a regular expression of RE2.
            names: all topics. The same object means that no topic was created or deleted.

        Raises:
            InvalidArgumentError: as `compiled`, or matching takes too long.
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
    for number, name in enumerate(names):
        if matches(name):
            found.add(name)
        if number % NAMES_PER_CHECK == 0 and time.thread_time() > end_s:
            raise InvalidArgumentError(
                f"{_shown(pattern)} takes too long for {len(names)} topics: simplify it, or subscribe to names"
            )
    return frozenset(found)
