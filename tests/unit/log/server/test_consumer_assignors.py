# SPDX-License-Identifier: Apache-2.0
"""The assignors of a consumer group, with any members, topics and former assignments."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmaccum.log.server.consumer_assignors import ASSIGNORS, Places, assign_ranges, assign_uniformly

TOPICS = tuple(uuid.UUID(int=number) for number in range(1, 6))
NAMES = tuple("abcdefgh")
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9))
SUBSCRIPTIONS = st.dictionaries(st.sampled_from(NAMES), st.frozensets(st.sampled_from(TOPICS)))
FORMER = st.dictionaries(
    st.sampled_from((*NAMES, "gone")), st.frozensets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 12)))
)


def moved(before: Mapping[str, Places], after: Mapping[str, Places]) -> int:
    """Count the partitions that have another owner than before."""
    owners = {place: name for name, places in before.items() for place in places}
    return sum(owners.get(place, name) != name for name, places in after.items() for place in places)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(members=SUBSCRIPTIONS, counts=COUNTS, former=FORMER)
def test_each_place_has_one_member_that_subscribes_to_its_topic(
    name: str,
    members: Mapping[str, frozenset[uuid.UUID]],
    counts: Mapping[uuid.UUID, int],
    former: Mapping[str, Places],
) -> None:
    found = ASSIGNORS[name](members, counts, former)
    assert found.keys() == members.keys()
    given_out = [place for places in found.values() for place in places]
    wanted = {topic for topics in members.values() for topic in topics} & counts.keys()
    assert sorted(given_out) == sorted((topic, number) for topic in wanted for number in range(counts[topic]))
    for member, places in found.items():
        assert {topic for topic, _ in places} <= members[member]


@given(members=SUBSCRIPTIONS, counts=COUNTS, former=FORMER)
def test_uniform_leaves_no_place_that_a_subscriber_with_two_fewer_could_have(
    members: Mapping[str, frozenset[uuid.UUID]], counts: Mapping[uuid.UUID, int], former: Mapping[str, Places]
) -> None:
    found = assign_uniformly(members, counts, former)
    for places in found.values():
        for topic in {topic for topic, _ in places}:
            least = min(len(found[other]) for other, topics in members.items() if topic in topics)
            assert len(places) - least <= 1


@given(names=st.lists(st.sampled_from(NAMES), min_size=1, unique=True), counts=COUNTS)
def test_uniform_takes_for_a_newcomer_what_it_needs_and_moves_nothing_else(
    names: list[str], counts: Mapping[uuid.UUID, int]
) -> None:
    topics = frozenset(TOPICS)
    before = assign_uniformly(dict.fromkeys(names, topics), counts, {})
    after = assign_uniformly(dict.fromkeys([*names, "new"], topics), counts, before)
    assert moved(before, after) == len(after["new"])
    assert assign_uniformly(dict.fromkeys([*names, "new"], topics), counts, after) == after


@given(names=st.lists(st.sampled_from(NAMES), min_size=2, unique=True), counts=COUNTS)
def test_uniform_moves_the_places_of_a_member_that_left_and_no_others(
    names: list[str], counts: Mapping[uuid.UUID, int]
) -> None:
    topics = frozenset(TOPICS)
    before = assign_uniformly(dict.fromkeys(names, topics), counts, {})
    gone = before.pop(names[0])
    after = assign_uniformly(dict.fromkeys(names[1:], topics), counts, before)
    assert moved(before, after) == 0
    assert sum(map(len, after.values())) == sum(map(len, before.values())) + len(gone)


def test_range_gives_members_the_same_partitions_of_each_topic() -> None:
    first, second = TOPICS[:2]
    found = assign_ranges(dict.fromkeys("ab", frozenset(TOPICS)), {first: 3, second: 3}, {})
    assert found == {
        "a": {(first, 0), (first, 1), (second, 0), (second, 1)},
        "b": {(first, 2), (second, 2)},
    }
