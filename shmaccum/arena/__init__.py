# SPDX-License-Identifier: Apache-2.0
"""The arena: its file, its tables, the doorbell of its sender, and the thread that forces it to disk.

Producers and the sender meet here; nothing in this package knows either of them.

::

    arena            create, attach, remove, and the facts of an arena
    file             where an arena lives, and the two opens of its file
    creation         the file is made under a private name, and renamed when it is complete
    removal          the removal of an arena, as its processes see it
    trust            the users whose files a process believes
    tables           the tables as numpy arrays                       ─ slot_word   one word of a slot taken apart
    places           the topic and partition of an index
    doorbell         wakes a sleeping sender                          ─ fifo   the file of a bell
    results_bell     wakes event loops, which cannot sleep on a futex
    presence         tells standbys at once that the sender is gone   ─ stalled   kills a sender without a sign of life
    sender_state     sentences about the sender, for errors and views
    stuck            why nothing can be delivered to a partition, in words
    semaphores       of processes that wait for a buffer
    flusher          the thread that forces an arena with durability=interval to disk
    results          how a batch or a transaction ended
    reports          sentences that processes leave in the arena's error log
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
