# SPDX-License-Identifier: Apache-2.0
"""The arena: its file, its tables, the wake FIFO of its sender, and the thread that forces it to disk.

Producers and the sender share the arena. This package imports neither of them.

::

    arena            creates, attaches, removes and describes an arena
    file             the place of an arena's file, and its two descriptors
    creation         the file is made under a private name, and renamed when it is complete
    removal          the removal of an arena, from the view of its processes
    trust            the users whose files a process trusts
    tables           the tables as numpy arrays                       ─ slot_word   the fields of a slot word
    places           the topic and partition of an index
    wake_fifo        wakes a sleeping sender                          ─ fifo   a FIFO beside the arena
    results_fifo     wakes event loops, which cannot sleep on a futex
    presence         shows standbys at once that the sender is gone   ─ stalled   kills a sender with an old heartbeat
    dead_companions  removes the sockets and FIFOs that killed processes left
    sender_state     sentences about the sender, for errors and views
    stuck            the reasons why a partition is stuck
    semaphores       the semaphores of processes that wait for a buffer       ─ named_objects   objects with POSIX names
    flusher          the thread that forces an arena with durability=interval to disk
    results          how a batch or a transaction ended
    reports          the reports in the arena's error log
    delivery_span    the part of delivery_timeout_ms that a batch has left
"""

from shmaccum.arena.arena import (
    DEFAULT_MODE,
    SIZES,
    WAITER_WAIT,
    Arena,
    ArenaStatistics,
    VerifyDepth,
    semaphore_name,
)

__all__ = [
    "DEFAULT_MODE",
    "SIZES",
    "WAITER_WAIT",
    "Arena",
    "ArenaStatistics",
    "VerifyDepth",
    "semaphore_name",
]
