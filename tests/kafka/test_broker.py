# SPDX-License-Identifier: Apache-2.0
"""Apache Kafka starts, and it keeps its topics when it restarts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.kafka import distribution
from tests.kafka.broker import archive_classes, running_cluster
from tests.kafka.distribution import TOOL_TIMEOUT_S, java_command, require


@pytest.mark.slow
def test_a_broker_that_was_stopped_starts_again_with_its_topics(tmp_path: Path) -> None:
    require()
    with running_cluster(tmp_path) as cluster:
        cluster.create_topic("flights", 3)
        cluster.brokers[0].stop()
        cluster.start()
        assert len(cluster.admin().list_topics(timeout=10).topics["flights"].partitions) == 3


def test_a_program_of_kafka_uses_the_archived_classes_where_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(distribution, "find", distribution.directory)
    assert not any("SharedArchiveFile" in word for word in java_command("kafka.Kafka"))
    distribution.directory().mkdir(parents=True)
    distribution.class_archive().touch()
    assert f"-XX:SharedArchiveFile={distribution.class_archive()}" in java_command("kafka.Kafka")
    assert java_command("kafka.Kafka", jvm=["-server"])[:3] == ["java", "-server", "-cp"]


@pytest.mark.slow
def test_the_classes_of_a_broker_are_archived(tmp_path: Path) -> None:
    require()
    archive = tmp_path / "classes.jsa"
    archive_classes(archive)
    jvm = (*distribution.TEST_JVM, "-Xshare:on", f"-XX:SharedArchiveFile={archive}")
    command = java_command("kafka.Kafka", "--version", jvm=jvm)
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S)
    assert done.returncode == 0, "with -Xshare:on Java ends where the archive does not fit"
    assert distribution.version() in done.stdout
