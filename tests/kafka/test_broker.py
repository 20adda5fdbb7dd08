# SPDX-License-Identifier: Apache-2.0
"""The ground of the other tests against Apache Kafka: it starts, keeps its topics, and starts again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka.broker import running_cluster
from tests.kafka.distribution import require


@pytest.mark.slow
def test_a_broker_that_was_stopped_starts_again_with_its_topics(tmp_path: Path) -> None:
    require()
    with running_cluster(tmp_path) as cluster:
        cluster.create_topic("flights", 3)
        cluster.brokers[0].stop()
        cluster.start()
        assert len(cluster.admin().list_topics(timeout=10).topics["flights"].partitions) == 3
