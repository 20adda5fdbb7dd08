# SPDX-License-Identifier: Apache-2.0
"""Topics are checked soon after a producer named one or requested partitions, and otherwise every few seconds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum.sender.duties.topics import ASK_AGAIN_NS, REFRESH_NS, WANTED_FOR_NS, WANTED_NS, TopicPublisher

NOW_NS = 10**12


class Known:
    """The topics of an arena and of a sink, whose counts a test sets.

    Attributes:
        wanted: topics for which a producer requests more partitions.
        asked: each question to the sink about more partitions.
        checks: times of the checks of all topics.
    """

    def __init__(self) -> None:
        self.arena: dict[str, int] = {"flights": 0}
        self.sink: dict[str, int | None] = {"flights": 3}
        self.wanted: list[str] = []
        self.asked: list[str] = []
        self.checks: list[int] = []
        self.now_ns = NOW_NS
        native = SimpleNamespace(
            take_wanted_topics=self._take_wanted,
            topics=self._topics,
            topic_partition_count=self.arena.__getitem__,
            set_topic_partition_count=self.arena.__setitem__,
            geometry={"topic_count": 8},
        )
        sink = SimpleNamespace(partition_count=self.sink.__getitem__, peer=SimpleNamespace(ask_again=self.asked.append))
        trouble = SimpleNamespace(ask=lambda question, _default: question())
        shared: Any = SimpleNamespace(native=native, sink=sink, host=SimpleNamespace(report=None), trouble=trouble)
        self._native = native
        self.publisher = TopicPublisher(shared)

    def _take_wanted(self) -> list[str]:
        taken, self.wanted = self.wanted, []
        return taken

    def _topics(self) -> list[str]:
        self.checks.append(self.now_ns)
        return list(self.arena)

    def run(self, after_ns: int = 0) -> bool:
        """Run the duty so much later. Return True if it checked the topics."""
        self.now_ns += after_ns
        self._native.registered_topic_count = len(self.arena)
        self.publisher.run(self.now_ns)
        return self.checks[-1:] == [self.now_ns]


@pytest.fixture
def known() -> Known:
    """The first check has published the count."""
    known = Known()
    assert known.run()
    assert known.arena == {"flights": 3}
    return known


def test_all_topics_are_checked_every_few_seconds(known: Known) -> None:
    known.sink["flights"] = 4
    assert not known.run(REFRESH_NS - 1)
    assert known.run(1)
    assert known.arena == {"flights": 4}


def test_a_new_topic_is_checked_at_once_and_often_until_it_is_known(known: Known) -> None:
    known.arena["hops"], known.sink["hops"] = 0, None
    assert known.run(1)
    assert not known.run(ASK_AGAIN_NS - 1)
    assert known.run(1)
    known.sink["hops"] = 2
    assert known.run(ASK_AGAIN_NS)
    assert known.arena["hops"] == 2
    assert not known.run(ASK_AGAIN_NS)


def test_partitions_that_a_producer_requests_are_asked_for_and_checked_often_for_a_while(known: Known) -> None:
    known.wanted = ["flights"]
    assert not known.run(WANTED_NS - 1)
    assert known.asked == []
    assert known.run(1)
    assert known.asked == ["flights"]
    for _ in range(WANTED_FOR_NS // ASK_AGAIN_NS):
        assert known.run(ASK_AGAIN_NS)
    assert not known.run(ASK_AGAIN_NS)
    assert known.asked == ["flights"]
