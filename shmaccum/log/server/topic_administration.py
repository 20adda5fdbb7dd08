# SPDX-License-Identifier: Apache-2.0
"""Administration of the topics of a log: create, grow and delete them.

A log that no process writes is changed in its directory. A log that a server writes is changed by a request to that
server, whose address is in the lock file of the log. A log that a sender writes is not changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from shmaccum.exceptions import InvalidArgumentError, LogBusyError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.file_names import LOCK_FILE
from shmaccum.log.files.lock_file import server_of_holder
from shmaccum.log.server.client_connection import ClientConnection
from shmaccum.log.server.client_settings import PLAIN_CONNECTION, ClientSettings

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 19, 20, 37
TIMEOUT_MS = 10_000


def create_topic(
    directory: str,
    topic: str,
    count: int,
    topic_settings: Mapping[str, str],
    settings: ClientSettings = PLAIN_CONNECTION,
) -> None:
    """Create a topic with its own settings. If the directory is new or empty, it becomes a log.

    Raises:
        InvalidArgumentError: the topic exists or is invalid.
        LogBusyError: a process that is not a server writes the log.
    """

    def change(log: LogDirectory) -> None:
        if log.partition_count(topic):
            raise InvalidArgumentError(
                f"{log.path} already has the topic {topic}: to add partitions, use shmaccum topics partitions"
            )
        log.create_topic(topic, count)
        log.change_settings(topic, topic_settings)

    def ask(server: ClientConnection) -> Any:
        configs = [{"name": name, "value": value} for name, value in topic_settings.items()]
        wanted = {
            "name": topic,
            "num_partitions": count,
            "replication_factor": 1,
            "assignments": [],
            "configs": configs,
        }
        request = {"topics": [wanted], "timeout_ms": TIMEOUT_MS, "validate_only": False}
        return server.ask(CREATE_TOPICS, 5, request).topics[0]

    _change(directory, topic, change, ask, settings)


def delete_topic(directory: str, topic: str, settings: ClientSettings = PLAIN_CONNECTION) -> None:
    """Delete a topic and all its records.

    Raises:
        InvalidArgumentError: the server rejects the request.
        LogBusyError: a process that is not a server writes the log.
    """

    def ask(server: ClientConnection) -> Any:
        return server.ask(DELETE_TOPICS, 5, {"topic_names": [topic], "timeout_ms": TIMEOUT_MS}).responses[0]

    _change(directory, topic, lambda log: log.delete_topic(topic), ask, settings)


def grow_topic(directory: str, topic: str, count: int, settings: ClientSettings = PLAIN_CONNECTION) -> None:
    """Increase the number of partitions of a topic to `count`.

    Raises:
        InvalidArgumentError: the server rejects the request.
        LogBusyError: a process that is not a server writes the log.
    """

    def ask(server: ClientConnection) -> Any:
        wanted = {"name": topic, "count": count, "assignments": None}
        request = {"topics": [wanted], "timeout_ms": TIMEOUT_MS, "validate_only": False}
        return server.ask(CREATE_PARTITIONS, 1, request).results[0]

    _change(directory, topic, lambda log: log.create_topic(topic, count), ask, settings)


def _change(
    directory: str,
    topic: str,
    change: Callable[[LogDirectory], object],
    ask: Callable[[ClientConnection], Any],
    settings: ClientSettings,
) -> None:
    """Change the log itself, or send a request to the server that writes it.

    Args:
        change: changes a log that no process writes.
        ask: sends the request, and returns a response with an error code and message.
        settings: TLS and login for the server.
    """
    try:
        log = LogDirectory(directory)
    except LogBusyError:
        address = server_of_holder(os.path.join(directory, LOCK_FILE))
        if address is None:
            raise
    else:
        with log:
            change(log)
        return
    with ClientConnection(address, settings) as server:
        answer = ask(server)
    if answer.error_code:
        sentence = answer.error_message or f"error {answer.error_code}"
        raise InvalidArgumentError(f"the server at {address} did not change the topic {topic}: {sentence}")
