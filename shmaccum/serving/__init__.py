# SPDX-License-Identifier: Apache-2.0
"""A log directory, served to any Kafka client: one host's log, without replication, election or compaction.

::

    server        sockets, order, limits              ─ connection   one client's frames
    transport     plain TCP, or TLS                   ─ secret_files
    login         SASL, step by step                  ─ users        the users file, with their rights
    access        the rights that each request needs
    requests      which request is answered by whom   ─ messages     frames <-> requests, by kafka-python's classes
    fetching      Fetch through C, records by sendfile ─ sessions, log_heads
    cluster       metadata, offsets, settings         ─ topics
    coordinator   consumer groups                     ─ group        the state machine, without sockets and clocks
    writing       Produce, topics made and deleted
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shmaccum.serving.server import LogServer

__all__ = ["LogServer"]


def __getattr__(name: str) -> Any:
    """The server, imported when it is asked for: the modules beside it need no kafka-python."""
    if name != "LogServer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shmaccum.serving.server import LogServer

    return LogServer
