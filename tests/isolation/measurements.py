# SPDX-License-Identifier: Apache-2.0
"""The latencies, failures and sent records of a producing process, in a file that others may read at any time.

::

    words     content
    1         the phase and round that the producer works in, set by the director in `Control` alone
    PLACES    the number of the next record of each place
    PHASES x  failed sends of each reason
    PHASES    the longest send in ns
    PHASES x ROUNDS x BUCKETS   number of sends of each latency

A bucket of latencies has 1/32 of the width of its power of two, so a quantile is at most 3 % too large. All words exist
before the first send. One process writes them.
"""

from __future__ import annotations

import mmap
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shmaccum.exceptions import ShmaccumError

WARM_UP, UNDISTURBED, DISTURBED, RECOVERY = range(4)
PHASES = ("warm-up", "undisturbed", "disturbed", "recovery")
ROUNDS = 20
PLACES = 512
REASONS = 8
SUB_BITS = 5
BUCKETS = 1056
"""The number of buckets. They reach to 2^37 ns, about two minutes."""
RESAMPLES = 1000
WORD_SIZE = 8
_PLACES_AT, _FAILURES_AT = 0, PLACES
_LONGEST_AT = _FAILURES_AT + len(PHASES) * REASONS
_BUCKETS_AT = _LONGEST_AT + len(PHASES)
WORDS = _BUCKETS_AT + len(PHASES) * ROUNDS * BUCKETS

Counts = npt.NDArray[np.uint64]


def bucket_of(ns: int) -> int:
    """Return the bucket of a latency."""
    shift = max(ns.bit_length() - SUB_BITS - 1, 0)
    return min((shift << SUB_BITS) + (ns >> shift), BUCKETS - 1)


def upper_ns(bucket: int) -> int:
    """Return the largest latency of a bucket."""
    shift = max((bucket >> SUB_BITS) - 1, 0)
    return ((bucket - (shift << SUB_BITS) + 1) << shift) - 1


def _mapped(path: Path, words: int) -> memoryview:
    """Map the words of a file. Each process that opens it sets its size, which is always the same."""
    with open(path, "ab") as file:
        file.truncate(words * WORD_SIZE)
    with open(path, "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), words * WORD_SIZE)).cast("Q")


class Control:
    """The words with which the director controls all producers.

    Attributes:
        words: phase and round as one number, then the pause in ns between two sends for each group.
    """

    OVER = 2**32

    def __init__(self, path: Path) -> None:
        self.words = _mapped(path, 1 + REASONS)

    def set_round(self, phase: int, number: int = 0) -> None:
        """Let all sends that begin from now on count for this phase and round."""
        self.words[0] = phase * ROUNDS + number

    def end(self) -> None:
        """Let all producers leave."""
        self.words[0] = self.OVER

    def set_rate(self, group: int, rate: float) -> None:
        """Set the records a second of each producer of a group. If the rate is 0, they do not pause."""
        self.words[1 + group] = round(1e9 / rate) if rate else 0


class Measurements:
    """The file of one producer."""

    def __init__(self, path: Path) -> None:
        self._words = _mapped(path, WORDS)
        self._reasons_path = path.with_suffix(".reasons")
        self._reasons: list[str] = []

    # --- written by the producer

    def next_number(self, place: int) -> int:
        """Return the number of the next record of a place, which is the number of its sent records."""
        return self._words[_PLACES_AT + place]

    def add_sent(self, place: int) -> None:
        """Count a record of the place as sent."""
        self._words[_PLACES_AT + place] += 1

    def add_failure(self, cell: int, error: ShmaccumError) -> None:
        """Count a failed send, and store the first message of each kind of error."""
        name = type(error).__name__
        if name not in self._reasons and len(self._reasons) < REASONS:
            self._reasons.append(name)
            with open(self._reasons_path, "a", encoding="utf-8") as file:
                file.write(f"{name}\t{str(error).splitlines()[0]}\n")
        reason = self._reasons.index(name) if name in self._reasons else REASONS - 1
        self._words[_FAILURES_AT + cell // ROUNDS * REASONS + reason] += 1

    def add_latency(self, cell: int, ns: int) -> None:
        """Count a send that returned or failed after this time."""
        self._words[_BUCKETS_AT + cell * BUCKETS + bucket_of(ns)] += 1
        at = _LONGEST_AT + cell // ROUNDS
        if ns > self._words[at]:
            self._words[at] = ns

    # --- read by the director

    def sent_counts(self, count: int) -> list[int]:
        """Return the numbers of records that were sent to the first places."""
        return self._words[_PLACES_AT : _PLACES_AT + count].tolist()

    def failures(self, phase: int) -> Counter[str]:
        """Return a map: reason -> number of failed sends."""
        at = _FAILURES_AT + phase * REASONS
        names = [name for name, _ in self.reasons()]
        return Counter(dict(zip(names, self._words[at : at + REASONS].tolist(), strict=False)))

    def reasons(self) -> list[tuple[str, str]]:
        """Return a map: kind of error -> its first message."""
        if not self._reasons_path.exists():
            return []
        lines = self._reasons_path.read_text(encoding="utf-8").splitlines()
        return [(name, sentence) for name, _, sentence in (line.partition("\t") for line in lines)]

    def longest_ns(self, phase: int) -> int:
        """Return the longest send."""
        return self._words[_LONGEST_AT + phase]

    def histograms(self, phase: int) -> Counts:
        """Return the number of sends of each latency, with a row for each round."""
        at = _BUCKETS_AT + phase * ROUNDS * BUCKETS
        words = np.frombuffer(self._words[at : at + ROUNDS * BUCKETS], dtype=np.uint64)
        found: Counts = words.reshape(ROUNDS, BUCKETS).copy()
        return found


def quantile_ns(counts: Counts, share: float) -> int:
    """Return the latency that this share of the sends does not exceed, or 0 without sends."""
    ends = np.cumsum(counts)
    if not ends[-1]:
        return 0
    return upper_ns(int(np.searchsorted(ends, share * float(ends[-1]))))


def ratio_interval(before: Counts, after: Counts, share: float, seed: int) -> tuple[float, float, float] | None:
    """Return the ratio of a quantile of two phases with its 95 % interval, which is a bootstrap over whole rounds.
    Return None if one of the phases has no sends.
    """
    before, after = (phase[phase.sum(axis=1) > 0] for phase in (before, after))
    if not (len(before) and len(after)):
        return None
    chance = random.Random(seed)
    drawn = [_ratio(_drawn(before, chance), _drawn(after, chance), share) for _ in range(RESAMPLES)]
    return _ratio(before, after, share), float(np.quantile(drawn, 0.025)), float(np.quantile(drawn, 0.975))


def _drawn(rounds: Counts, chance: random.Random) -> Counts:
    """Return the same number of rounds, each drawn from all."""
    found: Counts = rounds[chance.choices(range(len(rounds)), k=len(rounds))]
    return found


def _ratio(before: Counts, after: Counts, share: float) -> float:
    return quantile_ns(after.sum(axis=0), share) / max(quantile_ns(before.sum(axis=0), share), 1)


def histograms_of(files: Sequence[Measurements], phase: int) -> Counts:
    """Return the number of sends of each latency of several producers, with a row for each round."""
    total: Counts = np.sum([file.histograms(phase) for file in files], axis=0)
    return total


def longest_ns(files: Sequence[Measurements], phase: int) -> int:
    """Return the longest send of several producers."""
    return max(file.longest_ns(phase) for file in files)
