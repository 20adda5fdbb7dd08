# SPDX-License-Identifier: Apache-2.0
"""The option ``listen``: a sender serves the log of its sink to Kafka clients, in a thread (docs/decisions/0052)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmaccum.exceptions import InvalidArgumentError
from shmaccum.sender.sinks.sink import Sink, logs_of

if TYPE_CHECKING:
    from shmaccum.log.server.server_thread import ServerThread


def serve_log(sink: Sink, listen: str) -> ServerThread:
    """Serve the log of an open sink until the thread is closed, which has to happen before the sink is closed.

    Args:
        sink: open.
        listen: HOST:PORT.

    Raises:
        InvalidArgumentError: the sink has no log, or the address is invalid or in use.
    """
    logs = logs_of(sink)
    served = None if logs is None else logs.log
    if served is None:
        raise InvalidArgumentError(
            f"listen={listen} needs a log, and the sink {sink.name or type(sink).__name__} has none: leave listen out, "
            "or deliver to log:DIR"
        )
    from shmaccum.log.server.server_thread import ServerThread  # imports kafka-python, which other senders do not need

    directory, options = served
    return ServerThread(directory, listen, options)
