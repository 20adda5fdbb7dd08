# SPDX-License-Identifier: Apache-2.0
"""Topic patterns match as in Kafka, and no client's pattern delays the server."""

from __future__ import annotations

import importlib
import time
from typing import Any

import pytest

from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.server import topic_patterns
from shmaccum.log.server.topic_patterns import MATCHING_CPU_S, PATTERN_SIZE_MAX, TopicPatterns, compiled

TOPICS = ("flights", "flights-eu", "weather", "a.b", "axb")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("flights", {"flights"}),
        ("flights.*", {"flights", "flights-eu"}),
        ("^f.*|^w.*", {"flights", "flights-eu", "weather"}),
        (r"a\.b", {"a.b"}),
        (r"\Qa.b\E", {"a.b"}),
        ("(?i)WEATHER", {"weather"}),
        (".*", set(TOPICS)),
        ("missing", set()),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, names: set[str]) -> None:
    assert TopicPatterns().matching(pattern, TOPICS) == names


WRONG = ("(", "[z-a]", "a**", "(?=look)", r"(a)\1", "\udc80")
LARGE = ("(a{1000}){1000}", r"\pL" * 600, "x" * (PATTERN_SIZE_MAX + 1))


@pytest.mark.parametrize("pattern", [*WRONG, *LARGE])
def test_a_pattern_that_is_none_or_too_large_is_refused_with_a_sentence(pattern: str) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        TopicPatterns().matching(pattern, TOPICS)
    assert 20 < len(str(refusal.value)) < 350


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a?){40}a{40}b", "(a|aa)+$b", "(.*)(.*)(.*)(.*)!"])
def test_a_pattern_that_is_exponential_elsewhere_takes_no_time(pattern: str) -> None:
    compiled(pattern)
    begun_s = time.thread_time()
    assert TopicPatterns().matching(pattern, [f"{'a' * 240}{number}" for number in range(20)]) == set()
    assert time.thread_time() - begun_s < MATCHING_CPU_S


def test_the_dearest_pattern_is_given_up_soon() -> None:
    names = [f"{number:05}{'a' * 244}" for number in range(20_000)]
    dear = "(.?){1,200}z"
    compiled(dear)
    begun_s = time.thread_time()
    with pytest.raises(InvalidArgumentError, match="takes too long for 20000 topics"):
        TopicPatterns().matching(dear, names)
    assert time.thread_time() - begun_s < 1.0, "one pattern would hold every client up"
    assert len(TopicPatterns().matching("0000.*", names)) == 10


def test_topics_are_looked_through_again_when_they_changed_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(pattern: str) -> Any:
        calls.append(pattern)
        return compiled(pattern)

    monkeypatch.setattr(topic_patterns, "compiled", counted)
    patterns = TopicPatterns()
    for _ in range(3):
        assert patterns.matching("f.*", TOPICS) == {"flights", "flights-eu"}
    assert patterns.matching("f.*", ["future"]) == {"future"}
    assert calls == ["f.*"] * 2


def test_many_patterns_leave_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_patterns, "FOUND_KEPT", 4)
    patterns = TopicPatterns()
    for number in range(20):
        patterns.matching(f"{number}.*", TOPICS)
        assert len(patterns._found) <= 4


def test_a_server_without_the_engine_reports_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    compiled.cache_clear()
    with pytest.raises(InvalidArgumentError, match=r"pip install '.\[serve\]'"):
        TopicPatterns().matching("no-engine-knows-this", TOPICS)
