# SPDX-License-Identifier: Apache-2.0
"""The settings of individual topics, by Kafka's names. Most override the writer's options.

::

    topic-settings.json    {"flights": {"retention.ms": "3600000", "segment.bytes": "1048576"}}

Rules: the file is replaced as a whole, and is on disk before a change is acknowledged. Only the writer of the directory
changes it. A damaged file is rejected, because retention with other settings could delete records that must be kept.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar, final

from shmaccum.config import LogSinkOptions, ServerOptions, parse_together
from shmaccum.config.option import LONG_MAX
from shmaccum.config.topic import DELETE, TopicOptions
from shmaccum.exceptions import InvalidArgumentError, LogError
from shmaccum.log.files.regular_files import open_regular
from shmaccum.log.files.small_files import replace_file_synced

OF_THE_LOG: Final[Mapping[str, str]] = {
    "index.interval.bytes": "index_interval_bytes",
    "max.message.bytes": "max_message_bytes",
    "message.timestamp.after.max.ms": "message_timestamp_after_max_ms",
    "message.timestamp.type": "message_timestamp_type",
    "retention.bytes": "retention_bytes",
    "retention.ms": "retention_ms",
    "segment.bytes": "segment_bytes",
    "segment.ms": "segment_ms",
}
"""Kafka's name of each setting that overrides an option of the log, and that option."""
CLEANUP_POLICY: Final = "cleanup.policy"
SETTINGS: Final[Mapping[str, str]] = {**OF_THE_LOG, **{name.replace("_", "."): name for name in TopicOptions.table()}}
"""Kafka's name of each setting that a topic may have, and its attribute in `ServerOptions` or `TopicOptions`."""
TEXTS: Final = frozenset({CLEANUP_POLICY, "message.timestamp.type", "preallocate", "unclean.leader.election.enable"})
"""The settings that are not numbers."""
NUMBER: Final = re.compile(r"(-?[0-9]{1,19})(\.[0-9]+)? *[A-Za-z]*")
"""A number, with or without a unit."""

SomeOptions = TypeVar("SomeOptions", bound=LogSinkOptions)


def checked(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings in the form in which they are stored: numbers in bytes and milliseconds, and words.

    Raises:
        InvalidArgumentError: if a setting does not exist, or its value is out of bounds.
    """
    for name, value in settings.items():
        if name not in SETTINGS:
            raise InvalidArgumentError(f"a topic has no setting {name} here: it has {', '.join(SETTINGS)}")
        if name not in TEXTS:
            _check_number(name, str(value))
    tables = parse_together({SETTINGS[name]: value for name, value in settings.items()}, ServerOptions, TopicOptions)
    return {name: value for options in tables for name, value in texts_of(options).items() if name in settings}


def texts_of(options: object) -> dict[str, str]:
    """The options that are settings of topics, as they are stored. If the writer is not a server, it has no options for
    batches of clients.
    """
    found = {name: getattr(options, field) for name, field in SETTINGS.items() if hasattr(options, field)}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in found.items()}


def _check_number(name: str, value: str) -> None:
    """Reject a value that an option accepts and Kafka does not, such as infinity.

    Raises:
        InvalidArgumentError: if Kafka has no such number, with or without a unit.
    """
    match = NUMBER.fullmatch(value.strip())
    if match is None or int(match[1]) > LONG_MAX:
        raise InvalidArgumentError(
            f"{name} is {value[:40]!r}: give a number up to {LONG_MAX}, or one with a unit, such as 7d or 1GiB"
        )


@final
class TopicSettings:
    """The settings of all topics of a directory.

    Args:
        path: the path of the file.

    Raises:
        LogError: if the file is damaged.
        OSError: if the file cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._settings = _read(path)

    def of(self, topic: str) -> Mapping[str, str]:
        """The settings of a topic."""
        return self._settings.get(topic, {})

    def applied(self, topic: str, options: SomeOptions) -> SomeOptions:
        """The options, overridden by the settings of a topic."""
        known: dict[str, Any] = {
            OF_THE_LOG[name]: value if name in TEXTS else int(value)
            for name, value in self.of(topic).items()
            if name in OF_THE_LOG
        }
        return dataclasses.replace(options, **{name: value for name, value in known.items() if hasattr(options, name)})

    def has_policy(self, topic: str, policy: str) -> bool:
        """True if the cleanup policy of a topic is this one, or both."""
        return policy in self.of(topic).get(CLEANUP_POLICY, DELETE).split(",")

    def replace(self, topic: str, settings: Mapping[str, str]) -> None:
        """Replace the settings of a topic. They are on disk when this returns.

        Raises:
            InvalidArgumentError: if a setting does not exist, or its value is out of bounds.
            OSError: if the settings were not stored. The former settings remain.
        """
        changed = {**self._settings, topic: checked(settings)}
        changed = {name: values for name, values in sorted(changed.items()) if values}
        if changed != self._settings:
            replace_file_synced(self._path, (json.dumps(changed, indent=2) + "\n").encode())
            self._settings = changed


def _read(path: str) -> dict[str, dict[str, str]]:
    try:
        with open(path, encoding="utf-8", opener=open_regular) as file:
            found: Any = json.load(file)
        return {str(topic): checked(dict(settings)) for topic, settings in found.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, TypeError, InvalidArgumentError) as error:
        raise LogError(
            f"{path} is not a valid file of topic settings ({error}): repair the file, or remove it to use the "
            "writer's options for all topics"
        ) from None
