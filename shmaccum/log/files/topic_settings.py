# SPDX-License-Identifier: Apache-2.0
"""The settings of single topics, which take the place of the writer's options, by Kafka's names.

::

    topic-settings.json    {"flights": {"retention.ms": "3600000", "segment.bytes": "1048576"}}

Rules: the file is replaced as a whole, and is on disk before a change is answered. The one writer of the directory
changes it. A damaged file is refused: with other settings, retention could delete what somebody wanted to keep.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar, final

from shmaccum.config import LogSinkOptions, ServerOptions
from shmaccum.config.option import LONG_MAX
from shmaccum.exceptions import InvalidArgumentError, LogError
from shmaccum.log.files.regular_files import open_regular
from shmaccum.log.files.small_files import replace_file_synced

SETTINGS: Final[Mapping[str, str]] = {
    "max.message.bytes": "max_message_bytes",
    "message.timestamp.after.max.ms": "message_timestamp_after_max_ms",
    "message.timestamp.type": "message_timestamp_type",
    "retention.bytes": "retention_bytes",
    "retention.ms": "retention_ms",
    "segment.bytes": "segment_bytes",
    "segment.ms": "segment_ms",
}
"""Kafka's name of each setting that a topic may have, and the option whose place it takes."""
TEXTS: Final = frozenset({"message.timestamp.type"})
"""The settings that are no numbers."""
NUMBER: Final = re.compile(r"(-?[0-9]{1,19})(\.[0-9]+)? *[A-Za-z]*")
"""A number, with or without a unit."""

SomeOptions = TypeVar("SomeOptions", bound=LogSinkOptions)


def checked(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings as they are written down: numbers in bytes and milliseconds, and words.

    Raises:
        InvalidArgumentError: a topic has no such setting, or its value is out of bounds.
    """
    for name, value in settings.items():
        if name not in SETTINGS:
            raise InvalidArgumentError(f"a topic has no setting {name} here: it has {', '.join(SETTINGS)}")
        if name not in TEXTS:
            _check_number(name, str(value))
    options = ServerOptions.parse({SETTINGS[name]: value for name, value in settings.items()})
    return {name: str(getattr(options, SETTINGS[name])) for name in settings}


def _check_number(name: str, value: str) -> None:
    """Refuses what a program may give an option and Kafka refuses, as infinity.

    Raises:
        InvalidArgumentError: the value is no number that Kafka has, with or without a unit.
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
        path: of the file.

    Raises:
        LogError: the file is damaged.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._settings = _read(path)

    def of(self, topic: str) -> Mapping[str, str]:
        """The settings that a topic has of its own."""
        return self._settings.get(topic, {})

    def applied(self, topic: str, options: SomeOptions) -> SomeOptions:
        """The options with the settings of a topic in their places."""
        known: dict[str, Any] = {
            SETTINGS[name]: value if name in TEXTS else int(value) for name, value in self.of(topic).items()
        }
        return dataclasses.replace(options, **{name: value for name, value in known.items() if hasattr(options, name)})

    def replace(self, topic: str, settings: Mapping[str, str]) -> None:
        """Gives a topic these settings and no others; they are on disk when this comes back.

        Raises:
            InvalidArgumentError: a topic has no such setting, or its value is out of bounds.
            OSError: the former settings still hold.
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
            f"{path} holds no settings of topics ({error}): mend the file, or remove it where the writer's options may "
            "hold for all topics"
        ) from None
