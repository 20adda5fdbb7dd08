# SPDX-License-Identifier: Apache-2.0
"""A DescribeConfigs of many resources costs little more than the bytes of its response."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.topic_settings import TopicSettings
from shmaccum.log.server.messages import decode_answer, encode, read_head
from shmaccum.log.server.messages import encode_request as encoded
from shmaccum.log.server.settings import BROKER_RESOURCE, TOPIC_RESOURCE, ServerSettings
from shmaccum.log.server.steps import take_all
from shmaccum.log.server.topics import LogTopics
from tests.support.segment_log import TOPIC, open_log

DESCRIBE_CONFIGS, VERSION = 32, 4
OTHERS = ("equal", "different")


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[ServerSettings]:
    with open_log(tmp_path) as log:
        for topic in OTHERS:
            log.create_topic(topic)
        log.change_settings("different", {"retention.ms": "7000"})
        topics = LogTopics(str(tmp_path))
        topics.refresh()
        yield ServerSettings(topics, log, advertised="PLAINTEXT://127.0.0.1:9092", is_writable=True)


def described(settings: ServerSettings, *resources: tuple[int, str, Sequence[str] | None]) -> list[dict[str, Any]]:
    call: Any = SimpleNamespace(
        message=SimpleNamespace(
            include_synonyms=True,
            resources=[
                SimpleNamespace(resource_type=kind, resource_name=name, configuration_keys=keys)
                for kind, name, keys in resources
            ],
        )
    )
    results: list[dict[str, Any]] = take_all(settings.describe(call))["results"]
    return results


def test_a_resource_that_is_named_repeatedly_is_described_once(settings: ServerSettings) -> None:
    keys = ["retention.ms"]
    topic, other = (TOPIC_RESOURCE, TOPIC, None), (TOPIC_RESOURCE, TOPIC, keys)
    found = described(settings, topic, topic, (BROKER_RESOURCE, "1", None), other, topic, other)
    assert [(one["resource_type"], one["resource_name"]) for one in found] == [
        (TOPIC_RESOURCE, TOPIC),
        (BROKER_RESOURCE, "1"),
        (TOPIC_RESOURCE, TOPIC),
    ]
    assert [setting["name"] for setting in found[2]["configs"]] == keys


def test_a_server_that_does_not_write_the_log_reads_the_settings_once(
    settings: ServerSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = LogTopics(str(tmp_path))
    topics.refresh()
    reader = ServerSettings(topics, None, advertised="PLAINTEXT://127.0.0.1:9092", is_writable=False)
    paths: list[str] = []

    def read(path: str) -> TopicSettings:
        paths.append(path)
        return TopicSettings(path)

    monkeypatch.setattr("shmaccum.log.server.settings.TopicSettings", read)
    found = described(reader, *((TOPIC_RESOURCE, name, ["retention.ms"]) for name in (TOPIC, *OTHERS)))
    assert [[setting["value"] for setting in one["configs"]] for one in found] == [[], [], ["7000"]]
    assert len(paths) == 1


def test_topics_with_equal_settings_share_a_list_that_is_built_once(settings: ServerSettings) -> None:
    found = described(settings, *((TOPIC_RESOURCE, name, None) for name in (TOPIC, *OTHERS)))
    first, equal, different = (one["configs"] for one in found)
    assert first is equal
    assert first != different
    request = read_head(memoryview(encoded(DESCRIBE_CONFIGS, VERSION, {"resources": []}))[4:])
    answer = decode_answer(DESCRIBE_CONFIGS, VERSION, encode(request, {"results": found})[4:])
    values = [{setting.name: setting.value for setting in one.configs} for one in answer.results]
    assert values == [{setting["name"]: setting["value"] for setting in one} for one in (first, equal, different)]
    assert values[2] == {**values[0], "retention.ms": "7000"}


def test_a_resource_without_settings_has_an_error_of_its_own(settings: ServerSettings) -> None:
    resources = ((TOPIC_RESOURCE, "missing"), (BROKER_RESOURCE, "7"), (3, TOPIC), (TOPIC_RESOURCE, TOPIC))
    found = described(settings, *((kind, name, None) for kind, name in resources))
    assert [(one["error_code"], one["error_message"], bool(one["configs"])) for one in found] == [
        (BrokerError.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic missing", False),
        (BrokerError.INVALID_REQUEST, "the only node is 1, not 7", False),
        (BrokerError.INVALID_REQUEST, "only topics and the node have settings", False),
        (BrokerError.NONE, None, True),
    ]
