# SPDX-License-Identifier: Apache-2.0
"""Properties of the assignors, as in Java's AbstractStickyAssignorTest, and Kafka's own examples."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.groups.assignors import (
    BY_NAME,
    Assignment,
    Subscriptions,
    assign_in_turn,
    assign_ranges,
    assign_sticky,
)

TOPICS = ("a", "b", "c")
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 6))
members = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(7)]), st.sets(st.sampled_from(TOPICS)), min_size=1
)
places = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 7))
former = st.dictionaries(st.sampled_from([f"m{number}" for number in range(8)]), st.lists(places, max_size=6))
groups = st.builds(Subscriptions, counts, members, former)


def flat(assignment: Assignment) -> list[TopicPartition]:
    return sorted(place for found in assignment.values() for place in found)


def uniform(member_count: int, former: Assignment | None = None, *, partition_count: int = 3) -> Subscriptions:
    names = [f"m{number}" for number in range(member_count)]
    return Subscriptions({"a": partition_count}, {name: ["a"] for name in names}, former or {})


@pytest.mark.parametrize("name", BY_NAME)
@given(group=groups)
def test_every_partition_has_one_owner_that_wants_it(name: str, group: Subscriptions) -> None:
    found = BY_NAME[name](group)
    assert set(found) == set(group.topics)
    assert flat(found) == group.partitions()
    assert all(place.topic in group.topics[member] for member, owned in found.items() for place in owned)


@pytest.mark.parametrize("name", BY_NAME)
@given(group=groups)
def test_the_same_group_gets_the_same_assignment(name: str, group: Subscriptions) -> None:
    assert BY_NAME[name](group) == BY_NAME[name](group)


@given(group=groups)
def test_a_sticky_assignment_is_balanced(group: Subscriptions) -> None:
    found = assign_sticky(group)
    for receiver, few in found.items():
        for many in found.values():
            if len(many) > len(few) + 1:
                assert not any(place.topic in group.topics[receiver] for place in many)


@given(group=groups)
def test_a_sticky_assignment_stays_when_nothing_changes(group: Subscriptions) -> None:
    found = assign_sticky(group)
    assert assign_sticky(group._replace(former=found)) == found


@given(member_count=st.integers(2, 7), partition_count=st.integers(0, 20), data=st.data())
def test_a_death_moves_the_partitions_of_the_dead_alone(
    member_count: int, partition_count: int, data: st.DataObject
) -> None:
    before = assign_sticky(uniform(member_count, partition_count=partition_count))
    dead = data.draw(st.sampled_from(sorted(before)))
    group = uniform(member_count, before, partition_count=partition_count)
    after = assign_sticky(group._replace(topics={name: ["a"] for name in before if name != dead}))
    assert all(set(before[name]) <= set(after[name]) for name in after)


@given(member_count=st.integers(1, 7), partition_count=st.integers(0, 20))
def test_a_new_member_gets_its_share_and_no_other_gets_more(member_count: int, partition_count: int) -> None:
    before = assign_sticky(uniform(member_count, partition_count=partition_count))
    after = assign_sticky(uniform(member_count + 1, before, partition_count=partition_count))
    assert all(set(after[name]) <= set(before[name]) for name in before)


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize(("member_count", "sizes"), [(1, [3]), (2, [1, 2]), (3, [1, 1, 1]), (4, [0, 1, 1, 1])])
def test_three_partitions_among_one_to_four_members(name: str, member_count: int, sizes: list[int]) -> None:
    assert sorted(map(len, BY_NAME[name](uniform(member_count)).values())) == sizes


def test_ranges_and_turns_are_those_of_kafka() -> None:
    group = Subscriptions({"a": 3, "b": 3}, {"m0": ["a", "b"], "m1": ["a", "b"]}, {})
    ranges = {"m0": [("a", 0), ("a", 1), ("b", 0), ("b", 1)], "m1": [("a", 2), ("b", 2)]}
    turns = {"m0": [("a", 0), ("a", 2), ("b", 1)], "m1": [("a", 1), ("b", 0), ("b", 2)]}
    assert assign_ranges(group) == ranges
    assert assign_in_turn(group) == turns


@pytest.mark.parametrize("name", BY_NAME)
def test_the_work_grows_with_members_and_partitions_and_not_with_their_product(name: str) -> None:
    """A thousand members share ten thousand partitions. First, none is assigned. Then, one member has all."""
    group = uniform(1000, partition_count=10_000)
    calls = count_calls(lambda: BY_NAME[name](group))
    alone = {"m0": group.partitions()}
    assert calls + count_calls(lambda: BY_NAME[name](group._replace(former=alone))) < 50 * 11_000


def count_calls(run: Callable[[], object]) -> int:
    """Count the function calls of a run, including calls of C functions."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count
