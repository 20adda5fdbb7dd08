# SPDX-License-Identifier: Apache-2.0
"""The settings that clients read and change: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.

A topic has its own settings (`topic_settings`). For other settings, it has the values of the log's writer, the defaults
of `TopicOptions`, and a few fixed values that are the same for every log. The settings of the node cannot be changed.

Each setting has a source (KIP-226): the topic, an option of the node, or the default. Each setting has one synonym,
which is returned on request.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, final

from shmaccum.config import LONG_MAX, ServerOptions
from shmaccum.config.topic import TopicOptions
from shmaccum.exceptions import InvalidArgumentError, LogError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.file_names import TOPIC_SETTINGS_FILE
from shmaccum.log.files.topic_settings import CLEANUP_POLICY, TopicSettings, checked, texts_of
from shmaccum.log.server.call import REPEATED, Call, Values, split_repeated
from shmaccum.log.server.steps import Stepwise, answer_each
from shmaccum.log.server.topics import LogTopics

NODE_ID = 1
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
OF_THE_TOPIC, OF_THE_NODE, DEFAULT = 1, 4, 5
"""The sources of a setting (KIP-226)."""
ALL_NODES = ""
"""The resource name for the settings of all nodes."""
STRING, INT, LONG, DOUBLE, LIST, BOOLEAN = 2, 3, 5, 6, 7, 1
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
"""The operations of an incremental change (KIP-339)."""
FIXED: Final[Mapping[str, str]] = {
    "compression.type": "producer",
    "message.timestamp.before.max.ms": str(LONG_MAX),
    "min.insync.replicas": "1",
    "remote.storage.enable": "false",
}
"""The settings that are fixed for every topic."""
TYPES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("index.interval.bytes", "max.message.bytes", "min.insync.replicas"), INT),
    **dict.fromkeys(("segment.bytes", "segment.index.bytes"), INT),
    "delete.retention.ms": LONG,
    "file.delete.delay.ms": LONG,
    "max.compaction.lag.ms": LONG,
    "min.compaction.lag.ms": LONG,
    "message.timestamp.before.max.ms": LONG,
    "segment.jitter.ms": LONG,
    "min.cleanable.dirty.ratio": DOUBLE,
    "preallocate": BOOLEAN,
    "remote.storage.enable": BOOLEAN,
    "unclean.leader.election.enable": BOOLEAN,
    "message.timestamp.after.max.ms": LONG,
    "retention.bytes": LONG,
    "retention.ms": LONG,
    "segment.ms": LONG,
    "cleanup.policy": LIST,
    "auto.create.topics.enable": BOOLEAN,
    "broker.id": INT,
    "advertised.listeners": LIST,
}

OwnOf = Callable[[str], Mapping[str, str]]
"""Returns the settings of a topic that differ from those of the log."""


@final
class ServerSettings:
    """The settings of a served log.

    Args:
        topics: the topics that the server serves.
        log: the log as opened by the writer of this process. None if another process writes it.
        advertised: the listener advertised to clients, as in ``PLAINTEXT://127.0.0.1:9092``.
        is_writable: whether clients may change the settings of topics.
    """

    def __init__(self, topics: LogTopics, log: LogDirectory | None, *, advertised: str, is_writable: bool) -> None:
        self._topics = topics
        self._log = log
        self._advertised = advertised
        self._is_writable = is_writable

    # --- describe

    def describe(self, call: Call) -> Stepwise[Values]:
        """DescribeConfigs of topics and of the node. Describes a resource once, even if it is named repeatedly."""
        resources = {_identity(resource): resource for resource in call.message.resources}.values()
        own_of = self._own()
        settings_of = self._settings_cache(has_synonyms=bool(call.message.include_synonyms))
        results = yield from answer_each(resources, functools.partial(self._described, own_of, settings_of))
        return {"results": results}

    def _described(self, own_of: OwnOf, settings_of: Callable[..., list[Values]], resource: Any) -> Values:
        error, sentence = self._problem(resource)
        found: list[Values] = []
        if error is BrokerError.NONE:
            is_topic = resource.resource_type == TOPIC_RESOURCE
            own = tuple(own_of(resource.resource_name).items()) if is_topic else None
            found = settings_of(own, tuple(resource.configuration_keys or ()))
        return {
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "error_code": error,
            "error_message": sentence,
            "configs": found,
        }

    def _settings_cache(self, *, has_synonyms: bool) -> Callable[..., list[Values]]:
        """Return a function for one request. Topics with equal settings share a list, which is encoded faster."""

        @functools.cache
        def settings_of(own: tuple[tuple[str, str], ...] | None, asked: tuple[str, ...]) -> list[Values]:
            found = self._of_node() if own is None else self._of_topic(dict(own))
            return [
                setting if has_synonyms else {**setting, "synonyms": []}
                for setting in found
                if not asked or setting["name"] in asked
            ]

        return settings_of

    def list_resources(self, call: Call) -> Values:
        """ListConfigResources (KIP-1142). Version 0 lists resources of client metrics, which do not exist here."""
        kinds = set(call.message.resource_types or (TOPIC_RESOURCE, BROKER_RESOURCE)) if call.version >= 1 else set()
        found = [(BROKER_RESOURCE, str(NODE_ID))] if BROKER_RESOURCE in kinds else []
        if TOPIC_RESOURCE in kinds:
            found += [(TOPIC_RESOURCE, topic) for topic in self._topics.names()]
        resources = [{"resource_name": name, "resource_type": kind} for kind, name in found]
        return {"error_code": BrokerError.NONE, "config_resources": resources}

    def _problem(self, resource: Any) -> tuple[BrokerError, str | None]:
        if resource.resource_type not in (TOPIC_RESOURCE, BROKER_RESOURCE):
            return BrokerError.INVALID_REQUEST, "only topics and the node have settings"
        if resource.resource_type == TOPIC_RESOURCE and not self._topics.partition_count(resource.resource_name):
            return BrokerError.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {resource.resource_name}"
        if resource.resource_type == BROKER_RESOURCE and resource.resource_name not in {str(NODE_ID), ALL_NODES}:
            return BrokerError.INVALID_REQUEST, f"the only node is {NODE_ID}, not {resource.resource_name}"
        return BrokerError.NONE, None

    def _of_node(self) -> list[Values]:
        settings = {
            "broker.id": str(NODE_ID),
            "advertised.listeners": self._advertised,
            "auto.create.topics.enable": str(self._is_writable).lower(),
        }
        return [_setting(name, value, OF_THE_NODE, is_fixed=True) for name, value in settings.items()]

    def _of_topic(self, own: Mapping[str, str]) -> list[Values]:
        fixed = not self._is_writable
        of_node = {**texts_of(TopicOptions()), **({} if self._log is None else texts_of(self._log.options))}
        found = [_setting(name, value, DEFAULT, is_fixed=True) for name, value in FIXED.items()]
        found += [
            _setting(name, value, DEFAULT if value == DEFAULTS[name] else OF_THE_NODE, is_fixed=fixed)
            for name, value in of_node.items()
            if name not in own
        ]
        return found + [_setting(name, value, OF_THE_TOPIC, is_fixed=fixed) for name, value in own.items()]

    def _own(self) -> OwnOf:
        """Return the settings of all topics. If another process writes the log, this reads the file of them."""
        if self._log is not None:
            return self._log.settings.of
        try:
            return TopicSettings(os.path.join(self._topics.directory, TOPIC_SETTINGS_FILE)).of
        except LogError:  # the writer reports it
            return lambda _topic: {}

    # --- change

    def alter(self, call: Call) -> Stepwise[Values]:
        """AlterConfigs: replaces the settings of a topic by those in the request."""

        def wanted(resource: Any) -> dict[str, str]:
            return {one.name: one.value or "" for one in resource.configs}

        return self._alter(call, wanted)

    def alter_incrementally(self, call: Call) -> Stepwise[Values]:
        """IncrementalAlterConfigs (KIP-339): sets or deletes single settings, or values of the cleanup policy."""

        def wanted(resource: Any) -> dict[str, str]:
            settings = dict(self._own()(resource.resource_name))
            for one in resource.configs:
                if one.config_operation == SET:
                    settings[one.name] = one.value or ""
                elif one.config_operation == DELETE:
                    settings.pop(one.name, None)
                else:
                    settings[one.name] = _changed_list(settings, one)
            return settings

        return self._alter(call, wanted)

    def _alter(self, call: Call, wanted: Callable[[Any], dict[str, str]]) -> Stepwise[Values]:
        is_trial = bool(call.message.validate_only)
        resources, again = split_repeated(
            call.message.resources, lambda resource: (resource.resource_type, resource.resource_name)
        )
        answers = yield from answer_each(resources, lambda resource: self._altered(resource, wanted, is_trial=is_trial))
        repeated = [{"resource_type": kind, "resource_name": name, **REPEATED} for kind, name in again]
        return {"responses": [*answers, *repeated]}

    def _altered(self, resource: Any, wanted: Callable[[Any], dict[str, str]], *, is_trial: bool) -> Values:
        error, sentence = self._problem(resource)
        if error is BrokerError.NONE and resource.resource_type == BROKER_RESOURCE:
            error, sentence = (
                BrokerError.INVALID_REQUEST,
                "settings of the node are options of its command: restart the server with other options",
            )
        if error is BrokerError.NONE:
            error, sentence = self._try_alter(resource, wanted, is_trial=is_trial)
        return {
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "error_code": error,
            "error_message": sentence,
        }

    def _try_alter(
        self, resource: Any, wanted: Callable[[Any], dict[str, str]], *, is_trial: bool
    ) -> tuple[BrokerError, str | None]:
        assert self._log is not None  # only a writable server has these requests
        try:
            settings = without_fixed(wanted(resource))
            if not is_trial:
                self._log.change_settings(resource.resource_name, settings)
        except InvalidArgumentError as error:
            return BrokerError.INVALID_CONFIG, str(error)
        except OSError as error:
            return BrokerError.KAFKA_STORAGE_ERROR, str(error)
        return BrokerError.NONE, None


def _identity(resource: Any) -> Hashable:
    keys = resource.configuration_keys
    return resource.resource_type, resource.resource_name, None if keys is None else tuple(keys)


def without_fixed(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings without fixed ones.

    Raises:
        InvalidArgumentError: a setting differs from its fixed value, or is not supported.
    """
    for name, value in settings.items():
        if name in FIXED and value != FIXED[name]:
            raise InvalidArgumentError(
                f"{name} is fixed to {FIXED[name]} for every topic and cannot be {value}: omit it"
            )
    return checked({name: value for name, value in settings.items() if name not in FIXED})


def _changed_list(settings: Mapping[str, str], change: Any) -> str:
    """Return the values of a list after some were appended or subtracted.

    Raises:
        InvalidArgumentError: the setting is not a list, or there is no such operation.
    """
    if change.name != CLEANUP_POLICY or change.config_operation not in (APPEND, SUBTRACT):
        raise InvalidArgumentError(f"{change.name} is not a list: set or delete it")
    values = settings.get(CLEANUP_POLICY, DEFAULTS[CLEANUP_POLICY]).split(",")
    changed = [value.strip() for value in (change.value or "").split(",")]
    if change.config_operation == APPEND:
        return ",".join([*values, *changed])
    return ",".join(value for value in values if value not in changed)


DEFAULTS: Final[Mapping[str, str]] = {**texts_of(ServerOptions()), **texts_of(TopicOptions())}
"""The default of each setting of a topic."""


def _setting(name: str, value: str, source: int, *, is_fixed: bool) -> Values:
    return {
        "name": name,
        "value": value,
        "read_only": is_fixed,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": [{"name": name, "value": value, "source": source}],
        "config_type": TYPES.get(name, STRING),
        "documentation": None,
    }
