# SPDX-License-Identifier: Apache-2.0
"""The document for the page in the browser: one observation of an arena, with a cell for each buffer.

If an arena is large, a cell stands for several adjacent buffers, and shows the first one that is not free. So the
document has a bounded size. docs/how-to/inspect.rst shows the page.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from shmaccum.arena import Arena, tables
from shmaccum.arena.slot_word import SLOT_STATES, STATE_OF
from shmaccum.observe.health import troubles
from shmaccum.observe.inspection import FILLED_STATES
from shmaccum.observe.observation import Observation, Observer, partition_name
from shmaccum.observe.resources import Resources

CELL_COUNT_MAX = 16_384
ROW_COUNT_MAX = 50
"""The most rows of each list on the page: processes, queues, topics at a limit, errors."""
LATENCIES: Final[Mapping[str, str]] = {
    "request-latency-avg": "request_latency_ms",
    "record-queue-time-avg": "queue_time_ms",
}
"""The document key of each Kafka metric of the sender's latency."""


class PageObserver:
    """Makes the documents of one arena for the page. Thread-safe.

    Args:
        arena: opened in any mode, including read-only.
        read_sender: returns Kafka's producer metrics (`SenderCollector.numbers`) if the sender is in this process. None
            if it is not.
    """

    def __init__(self, arena: Arena, read_sender: Callable[[], Mapping[str, float]] | None = None) -> None:
        self._arena = arena
        self._observer = Observer(arena, Resources())
        self._read_sender = read_sender
        self._lock = threading.Lock()

    def observe(self) -> Observation:
        """Returns an observation."""
        with self._lock:
            return self._observer.observe()

    def picture(self) -> dict[str, Any]:
        """Returns the document, with stable keys."""
        seen = self.observe()
        numbers = {} if self._read_sender is None else self._read_sender()
        latencies = {key: numbers[name] for name, key in LATENCIES.items() if name in numbers}
        return {
            "name": seen.name,
            "time_ns": seen.time_ns,
            "buffer_memory": seen.buffer_memory,
            "batch_size": seen.batch_size,
            "slot_count": seen.slot_count,
            "fill": seen.fill,
            "slots": seen.slots,
            "record_count": seen.record_count,
            "record_bytes": seen.record_bytes,
            "completed_count": seen.counters["records completed"],
            "queued_record_count": seen.queued_record_count,
            "queued_size": seen.queued_size,
            "oldest_age_ms": 0 if seen.oldest_batch is None else seen.oldest_batch.age_ns / 1e6,
            "waiting_count": seen.waiting_count,
            "overflow": seen.overflow._asdict(),
            "transaction": None if seen.transaction is None else seen.transaction._asdict(),
            "sender": seen.sender._asdict(),
            "latencies": latencies,
            "troubles": [trouble.as_json() for trouble in troubles(seen)],
            "cells": self._cells(),
            **_lists(seen),
        }

    def _cells(self) -> dict[str, Any]:
        """Returns the state of each cell as a digit, and the topic-partitions of the cells with a batch."""
        slots = self._arena.slot_table()
        states = tables.slot_state(slots["word"]).astype(np.uint8)
        span = -(-len(states) // CELL_COUNT_MAX)
        chosen = _first_used_slots(states, span)
        shown = states[chosen]
        filled = np.flatnonzero(np.isin(shown, [STATE_OF[state] for state in FILLED_STATES]))
        indices = slots["partition_index"][chosen[filled]]
        used, label_of = np.unique(indices, return_inverse=True)
        names = self._arena.native.partitions()
        return {
            "span": span,
            "state_names": SLOT_STATES,
            "states": (shown + ord("0")).tobytes().decode("latin-1"),
            "labels": [partition_name(names, int(index)) for index in used],
            "filled": np.stack([filled, label_of.reshape(-1)], axis=1).tolist(),
        }


def _first_used_slots(states: tables.Table, span: int) -> tables.Table:
    """Return for each cell the index of its first slot that is not free, or of its first slot if all are free."""
    padded = np.full(-(-len(states) // span) * span, STATE_OF["FREE"], dtype=np.uint8)
    padded[: len(states)] = states
    groups = padded.reshape(-1, span)
    found: tables.Table = np.arange(len(groups)) * span + (groups != STATE_OF["FREE"]).argmax(axis=1)
    return found


def _lists(seen: Observation) -> dict[str, Any]:
    """Return the live processes, the queues with batches, the topics at a limit and the errors, each list cut to the
    most important rows."""
    alive = sorted((each for each in seen.processes if each.is_alive), key=lambda each: -each.record_count)
    queues = sorted((each for each in seen.partitions if each.batch_count), key=lambda each: -(each.oldest_age_ns or 0))
    topics, errors = seen.limited_topics, sorted(seen.errors, key=lambda each: each.age_ns)
    return {
        "processes": [each._asdict() for each in alive[:ROW_COUNT_MAX]],
        "queues": [each._asdict() for each in queues[:ROW_COUNT_MAX]],
        "limited_topics": [each._asdict() for each in topics[:ROW_COUNT_MAX]],
        "errors": [asdict(each) for each in errors[:ROW_COUNT_MAX]],
        "list_counts": {
            "processes": len(alive),
            "queues": len(queues),
            "limited_topics": len(topics),
            "errors": len(errors),
        },
    }
