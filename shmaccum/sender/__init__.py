# SPDX-License-Identifier: Apache-2.0
"""The sender: it drains the batches of all processes of a host, and a sink delivers them. Begin with `rounds`.

::

    service          a process with a sender: its signals, its report to the starter
    daemon           the program that a supervisor starts                    ─ __main__          its arguments
    sender           takes the role, works, leaves
    rounds           one round: duties, wait, acks                           ─ duties            its steps, in order
    round_wait       the wait between two rounds                             ─ short_waits       its length
    sink_batches     batches that the sink has                               ─ backoff, record_errors, batch_splitter
    delivery_clock   the clock of the age of batches
    pump             ordinary rounds to brokers, in one native call
    host             the sender as its sink sees it
    identity         the producer id of the arena
    overflow         a log that takes batches while the sink does not work
                     ─ spill_need  when, and of which partitions  ─ backlog   one partition of it, sent
                     ─ spill_file  the batches in it         ─ giving_up   an overflow that is lost
    send_window      sends the batches of a partition of a log: an overflow, or a log that is shipped
                     ─ batch_loop  ordinary ones, in one native call
    arena_closer     ends the work on a removed arena
    log_server       serves the sink's log to Kafka clients (``listen``)
    metrics          metrics by Kafka's names
    systemd          reports the sender's state to systemd

    sinks            the places that a sender delivers to
    shipping         sends a log directory to a sink, without an arena
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shmaccum.sender.sender import Sender

__all__ = ["Sender"]


def __getattr__(name: str) -> Any:
    """Import the sender on first access. A program that starts one in another process does not need it."""
    if name != "Sender":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shmaccum.sender.sender import Sender

    return Sender
