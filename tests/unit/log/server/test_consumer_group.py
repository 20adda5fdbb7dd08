# SPDX-License-Identifier: Apache-2.0
"""The state machine of consumer groups whose partitions the server assigns, with a manual clock."""

from __future__ import annotations

import fnmatch
import itertools
import uuid
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.consumer_assignors import ASSIGNORS, Places
from shmaccum.log.server.consumer_group import (
    IS_AWAY,
    LEAVES,
    NO_PLACES,
    ConsumerGroup,
    ConsumerGroupState,
    ConsumerLimits,
    Heartbeat,
    HeartbeatAnswer,
    HeartbeatRefusedError,
    TopicShape,
)

TOPIC, OTHER = "flights", "weather"
IDS = {TOPIC: uuid.UUID(int=1), OTHER: uuid.UUID(int=2)}
SESSION_MS = 10_000
REBALANCE_MS = 4_000


def places(*partitions: int, topic: str = TOPIC) -> Places:
    return frozenset((IDS[topic], partition) for partition in partitions)


class Simulation:
    """A group, its topics and its clock."""

    def __init__(self, member_count_max: int = 10) -> None:
        self.now_ms = 0.0
        self.group = ConsumerGroup("g", ConsumerLimits(SESSION_MS, 1000, member_count_max))
        self.topics = {TOPIC: TopicShape(IDS[TOPIC], 3), OTHER: TopicShape(IDS[OTHER], 2)}

    def die(self) -> None:
        """Replace the coordinator. The new one knows the epoch of the group, but no member."""
        self.group = ConsumerGroup("g", self.group.limits, generation=self.group.generation)

    def state(self) -> ConsumerGroupState:
        return self.group.state

    def send(self, request: Heartbeat) -> HeartbeatAnswer:
        return self.group.heartbeat(request, self.topics, self.now_ms, self.matching)

    def matching(self, pattern: str) -> frozenset[str]:
        """Replaces regular expressions. ``(`` is invalid."""
        if pattern == "(":
            raise HeartbeatRefusedError(BrokerError.INVALID_REGULAR_EXPRESSION, "a bracket is open")
        return frozenset(fnmatch.filter(self.topics, pattern))

    def join(self, member_id: str, *topics: str, **more: object) -> HeartbeatAnswer:
        names = frozenset(topics or (TOPIC,))
        values = {"rebalance_timeout_ms": REBALANCE_MS, "topic_names": names, "owned": NO_PLACES, **more}
        return self.send(Heartbeat(member_id, 0, **values))  # type: ignore[arg-type]

    def beat(self, member_id: str, owned: Places | None = None, epoch: int | None = None) -> HeartbeatAnswer:
        member = self.group.members.get(member_id)
        known_epoch = member.epoch if member is not None else 1
        instance_id = member.instance_id if member is not None else None
        return self.send(Heartbeat(member_id, known_epoch if epoch is None else epoch, instance_id, owned=owned))

    def refused(self, request: Heartbeat) -> BrokerError:
        before = self.group.generation
        with pytest.raises(HeartbeatRefusedError) as refusal:
            self.send(request)
        assert self.group.generation == before
        return refusal.value.error

    def pass_time(self, ms: float) -> None:
        end_ms = self.now_ms + ms
        while self.group.deadline_ms <= end_ms:
            self.now_ms = self.group.deadline_ms
            self.group.tick(self.now_ms)
        self.now_ms = end_ms


def test_the_first_member_has_all_places_with_its_first_answer() -> None:
    simulation = Simulation()
    assert simulation.state() is ConsumerGroupState.EMPTY
    assert simulation.join("a") == HeartbeatAnswer("a", 1, places(0, 1, 2))
    assert simulation.state() is ConsumerGroupState.STABLE
    assert simulation.beat("a") == HeartbeatAnswer("a", 1)


def test_a_newcomer_gets_a_place_when_its_former_owner_has_given_it_up() -> None:
    simulation = Simulation()
    simulation.join("a")
    assert simulation.join("b") == HeartbeatAnswer("b", 2, NO_PLACES)
    assert simulation.state() is ConsumerGroupState.RECONCILING
    told = simulation.beat("a")
    assert told.member_epoch == 1
    assert told.assignment is not None
    assert len(told.assignment) == 2
    assert simulation.beat("b").assignment is None
    assert simulation.beat("a", owned=places(0, 1, 2)).member_epoch == 1
    assert simulation.beat("a", owned=told.assignment).member_epoch == 2
    assert simulation.beat("b").assignment == places(0, 1, 2) - told.assignment
    assert simulation.state() is ConsumerGroupState.STABLE


def test_a_member_that_gives_nothing_up_is_removed_after_its_rebalance_time_out() -> None:
    simulation = Simulation()
    simulation.join("slow")
    simulation.join("b")
    simulation.beat("slow")
    simulation.pass_time(REBALANCE_MS - 1)
    simulation.beat("slow", owned=places(0, 1, 2))
    simulation.pass_time(1)
    assert list(simulation.group.members) == ["b"]
    assert simulation.beat("b").assignment == places(0, 1, 2)
    assert simulation.refused(Heartbeat("slow", 1)) is BrokerError.UNKNOWN_MEMBER_ID


def test_a_member_that_is_silent_for_its_session_is_removed() -> None:
    simulation = Simulation()
    simulation.join("dead")
    simulation.join("b")
    simulation.pass_time(SESSION_MS - 1)
    simulation.beat("b")
    simulation.pass_time(1)
    assert simulation.beat("b").assignment == places(0, 1, 2)


def test_a_member_that_leaves_frees_its_places_at_once() -> None:
    simulation = Simulation()
    simulation.join("a")
    simulation.join("b")
    assert simulation.send(Heartbeat("a", LEAVES)) == HeartbeatAnswer("a", LEAVES)
    assert simulation.beat("b").assignment == places(0, 1, 2)
    assert simulation.group.leave("b", None, 0) is BrokerError.NONE
    assert simulation.group.leave("b", None, 0) is BrokerError.UNKNOWN_MEMBER_ID
    assert simulation.state() is ConsumerGroupState.EMPTY


def test_another_epoch_is_fenced_and_the_former_one_is_taken_for_a_lost_answer() -> None:
    simulation = Simulation()
    simulation.join("a")
    assert simulation.refused(Heartbeat("a", 2)) is BrokerError.FENCED_MEMBER_EPOCH
    simulation.topics[TOPIC] = TopicShape(IDS[TOPIC], 4)
    assert simulation.beat("a").member_epoch == 2
    assert simulation.refused(Heartbeat("a", 1)) is BrokerError.FENCED_MEMBER_EPOCH
    assert simulation.refused(Heartbeat("a", 1, owned=places(7))) is BrokerError.FENCED_MEMBER_EPOCH
    assert simulation.beat("a", owned=places(0, 1, 2), epoch=1) == HeartbeatAnswer("a", 2, places(0, 1, 2, 3))


def test_an_outdated_member_is_corrected_with_its_next_heartbeat() -> None:
    """The member reported no partitions, lost the answer that revoked one, and then took them over."""
    simulation = Simulation()
    simulation.join("a")
    simulation.join("b")
    simulation.beat("a", owned=NO_PLACES)
    taken = simulation.beat("b").assignment
    assert taken
    left = places(0, 1, 2) - taken
    full = Heartbeat("a", 2, rebalance_timeout_ms=1, topic_names=frozenset([TOPIC]), owned=places(0, 1, 2))
    assert simulation.send(full) == HeartbeatAnswer("a", 2, left)


def test_a_member_whose_first_answer_was_lost_joins_again_under_its_id() -> None:
    simulation = Simulation()
    simulation.join("a")
    assert simulation.join("a") == HeartbeatAnswer("a", 1, places(0, 1, 2))


def test_a_commit_needs_the_epoch_of_its_member() -> None:
    simulation = Simulation()
    group = simulation.group
    assert group.commit_problem("", None, -1, 0) is BrokerError.NONE
    simulation.join("a")
    assert group.commit_problem("a", None, 1, 0) is BrokerError.NONE
    assert group.commit_problem("a", None, 0, 0) is BrokerError.STALE_MEMBER_EPOCH
    assert group.commit_problem("stranger", None, 1, 0) is BrokerError.UNKNOWN_MEMBER_ID
    assert group.commit_problem("", None, -1, 0) is BrokerError.UNKNOWN_MEMBER_ID


def test_a_static_member_that_is_away_keeps_its_places_for_its_successor() -> None:
    simulation = Simulation()
    simulation.join("a", instance_id="i")
    simulation.join("b")
    owned = simulation.beat("a").assignment
    simulation.beat("a", owned=owned)
    assert simulation.join("b").assignment == places(0, 1, 2) - (owned or NO_PLACES)
    unreleased = Heartbeat("a2", 0, "i", rebalance_timeout_ms=1, topic_names=frozenset([TOPIC]), owned=NO_PLACES)
    assert simulation.refused(unreleased) is BrokerError.UNRELEASED_INSTANCE_ID
    simulation.send(Heartbeat("a", IS_AWAY, "i"))
    epoch = simulation.group.generation
    assert simulation.beat("b").assignment is None
    assert simulation.join("a2", instance_id="i") == HeartbeatAnswer("a2", epoch, owned)
    assert simulation.refused(Heartbeat("a", epoch, "i")) is BrokerError.FENCED_INSTANCE_ID
    assert simulation.group.generation == epoch, "nothing changed for the group"


def test_a_static_member_is_known_by_its_member_id_alone() -> None:
    simulation = Simulation()
    simulation.join("a", instance_id="i")
    assert simulation.send(Heartbeat("a", 1)) == HeartbeatAnswer("a", 1)
    assert simulation.join("a") == HeartbeatAnswer("a", 1, places(0, 1, 2)), "its first answer was lost"
    assert simulation.refused(Heartbeat("a", 1, "other")) is BrokerError.UNKNOWN_MEMBER_ID
    assert simulation.group.members["a"].instance_id == "i"
    assert simulation.send(Heartbeat("a", LEAVES)) == HeartbeatAnswer("a", LEAVES)
    assert simulation.group.members == {}
    assert simulation.join("b", instance_id="i").assignment == places(0, 1, 2)


def test_a_static_member_that_stays_away_is_removed_after_its_session() -> None:
    simulation = Simulation()
    simulation.join("a", instance_id="i")
    simulation.send(Heartbeat("a", IS_AWAY, "i"))
    simulation.pass_time(SESSION_MS)
    assert simulation.group.members == {}
    assert simulation.join("new", instance_id="i").assignment == places(0, 1, 2)
    assert simulation.group.leave("", "i", 0) is BrokerError.NONE


def test_a_topic_that_comes_later_is_assigned_and_one_that_goes_is_taken_back() -> None:
    simulation = Simulation()
    shape = simulation.topics.pop(OTHER)
    simulation.join("a", TOPIC, OTHER)
    simulation.topics[OTHER] = shape
    assert simulation.beat("a").assignment == places(0, 1, 2) | places(0, 1, topic=OTHER)
    del simulation.topics[TOPIC]
    assert simulation.beat("a", owned=places(0, topic=OTHER)).assignment == places(0, 1, topic=OTHER)


def test_a_pattern_follows_topics_that_come_and_go() -> None:
    simulation = Simulation()
    own = places(0, 1, 2)
    assert simulation.join("a", topic_names=None, topic_pattern="f*").assignment == own
    simulation.topics["future"] = TopicShape(uuid.UUID(int=3), 1)
    more = own | {(uuid.UUID(int=3), 0)}
    assert simulation.beat("a") == HeartbeatAnswer("a", 2, more)
    del simulation.topics["future"]
    assert simulation.beat("a").assignment == own
    assert simulation.beat("a", owned=own) == HeartbeatAnswer("a", 3, own)


def test_names_and_a_pattern_add_up_and_an_empty_pattern_takes_one_back() -> None:
    simulation = Simulation()
    both = places(0, 1, 2) | places(0, 1, topic=OTHER)
    assert simulation.join("a", TOPIC, topic_pattern="w*").assignment == both
    assert simulation.send(Heartbeat("a", 1, topic_pattern="")).assignment == places(0, 1, 2)


def test_the_pattern_of_a_static_member_is_that_of_its_successor() -> None:
    simulation = Simulation()
    simulation.join("a", topic_names=None, topic_pattern="w*", instance_id="i")
    simulation.send(Heartbeat("a", IS_AWAY, "i"))
    answer = simulation.join("a2", topic_names=frozenset(), instance_id="i")
    assert answer.assignment == places(0, 1, topic=OTHER)


def test_a_pattern_that_is_refused_changes_nothing() -> None:
    simulation = Simulation()
    simulation.join("a", topic_names=None, topic_pattern="f*")
    before = simulation.group.members["a"].expires_at_ms
    simulation.pass_time(1)
    assert simulation.refused(Heartbeat("a", 1, topic_pattern="(")) is BrokerError.INVALID_REGULAR_EXPRESSION
    assert simulation.group.members["a"].topic_pattern == "f*"
    assert simulation.group.members["a"].expires_at_ms == before
    joining = Heartbeat("b", 0, rebalance_timeout_ms=1, owned=NO_PLACES, topic_pattern="(")
    assert simulation.refused(joining) is BrokerError.INVALID_REGULAR_EXPRESSION
    assert list(simulation.group.members) == ["a"]


def test_the_assignor_that_most_members_ask_for_is_taken() -> None:
    simulation = Simulation()
    simulation.join("a", assignor="range")
    assert simulation.group.assignor == "range"
    simulation.join("b", assignor="uniform")
    simulation.join("c", assignor="uniform")
    assert simulation.group.assignor == "uniform"
    assert set(ASSIGNORS) == {"range", "uniform"}


JOINING = {"rebalance_timeout_ms": 1, "topic_names": frozenset([TOPIC]), "owned": NO_PLACES}


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Heartbeat("", 0, **JOINING), BrokerError.INVALID_REQUEST),  # type: ignore[arg-type]
        (Heartbeat("a", 0, "", **JOINING), BrokerError.INVALID_REQUEST),  # type: ignore[arg-type]
        (Heartbeat("a", -3), BrokerError.INVALID_REQUEST),
        (Heartbeat("a", IS_AWAY), BrokerError.INVALID_REQUEST),
        (Heartbeat("a", 0), BrokerError.INVALID_REQUEST),
        (Heartbeat("a", 0, **{**JOINING, "owned": places(1)}), BrokerError.INVALID_REQUEST),  # type: ignore[arg-type]
        (Heartbeat("a", 0, assignor="none", **JOINING), BrokerError.UNSUPPORTED_ASSIGNOR),  # type: ignore[arg-type]
        (Heartbeat("a", 5), BrokerError.UNKNOWN_MEMBER_ID),
        (Heartbeat("a", LEAVES), BrokerError.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_wrong_heartbeat_is_refused_and_changes_nothing(request_: Heartbeat, error: BrokerError) -> None:
    simulation = Simulation()
    assert simulation.refused(request_) is error
    assert simulation.group.members == {}


def test_a_full_group_takes_no_other_member() -> None:
    simulation = Simulation(member_count_max=1)
    simulation.join("a")
    joining = Heartbeat("b", 0, **JOINING)  # type: ignore[arg-type]
    assert simulation.refused(joining) is BrokerError.GROUP_MAX_SIZE_REACHED


def test_the_subscriptions_of_a_group_have_a_bound() -> None:
    simulation = Simulation()
    simulation.join("a")
    one = simulation.group.size
    assert one > 0
    simulation.group.size_max = 2 * one
    simulation.join("b")
    joining = Heartbeat("c", 0, rebalance_timeout_ms=REBALANCE_MS, topic_names=frozenset({TOPIC}), owned=NO_PLACES)
    assert simulation.refused(joining) is BrokerError.GROUP_MAX_SIZE_REACHED
    epoch = simulation.group.members["a"].epoch
    many = frozenset(f"topic-{number}" for number in range(100))
    assert simulation.refused(Heartbeat("a", epoch, topic_names=many)) is BrokerError.GROUP_MAX_SIZE_REACHED
    assert simulation.group.members["a"].topic_names == {TOPIC}
    simulation.beat("a")
    simulation.send(Heartbeat("b", LEAVES))
    assert simulation.group.size == one
    simulation.send(joining)
    simulation.pass_time(10 * SESSION_MS)
    assert simulation.group.size == 0


# --- any order of events


@dataclass
class Client:
    """A consumer like Java's. It applies its assignments, and joins again when it is fenced."""

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    epoch: int = 0
    owned: Places = NO_PLACES
    told: Places = NO_PLACES
    hears: bool = True
    news: dict[str, object] = field(default_factory=dict)

    def request(self) -> Heartbeat:
        owned = self.owned if self.epoch == 0 or self.owned != self.told or self.news else None
        if self.epoch == 0:
            values: dict[str, object] = {"rebalance_timeout_ms": REBALANCE_MS, "topic_names": self.topics}
        else:
            values = self.news
        return Heartbeat(self.member_id, self.epoch, self.instance_id, owned=owned, **values)  # type: ignore[arg-type]

    def begin_again(self) -> None:
        self.epoch, self.owned, self.told, self.hears = 0, NO_PLACES, NO_PLACES, True

    def take(self, answer: HeartbeatAnswer) -> None:
        self.epoch = answer.member_epoch
        self.news, self.hears = {}, True
        if answer.assignment is not None:
            self.told = answer.assignment

    def lose_answer(self) -> None:
        self.news, self.hears = {"rebalance_timeout_ms": REBALANCE_MS, "topic_names": self.topics}, False

    def act(self) -> None:
        """Applies the assignment, which the next heartbeat reports. Does nothing while an answer is missing."""
        if self.hears and self.owned != self.told:
            self.owned = self.told
            self.news = {"rebalance_timeout_ms": REBALANCE_MS, "topic_names": self.topics}


CLIENTS = st.integers(0, 5)
REFUSALS = {
    BrokerError.UNKNOWN_MEMBER_ID,
    BrokerError.FENCED_MEMBER_EPOCH,
    BrokerError.FENCED_INSTANCE_ID,
    BrokerError.UNRELEASED_INSTANCE_ID,
}


class AnyOrder(RuleBasedStateMachine):
    """Clients join, die, leave, resubscribe and lose answers, and coordinators die, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.simulation = Simulation(member_count_max=1000)  # many may die within one session timeout
        self.clients: dict[int, Client] = {}
        self.numbers = itertools.count()
        self.refusals: set[BrokerError] = set()

    @property
    def group(self) -> ConsumerGroup:
        return self.simulation.group

    @rule(slot=CLIENTS, is_static=st.booleans(), topics=st.sampled_from([{TOPIC}, {OTHER}, {TOPIC, OTHER}]))
    def start(self, slot: int, is_static: bool, topics: set[str]) -> None:
        """A process starts in this slot. The previous one died."""
        name = f"m{next(self.numbers)}"
        self.clients[slot] = Client(name, f"i{slot}" if is_static else None, frozenset(topics))

    @precondition(lambda self: self.clients)
    @rule(slot=CLIENTS, is_lost=st.booleans())
    def beat(self, slot: int, is_lost: bool) -> None:
        """A client sends a heartbeat, whose answer may be lost."""
        client = self.clients.get(slot)
        if client is None:
            return
        try:
            answer = self.simulation.send(client.request())
        except HeartbeatRefusedError as refusal:
            self.refusals.add(refusal.error)
            client.begin_again()
            return
        if not is_lost:
            client.take(answer)
        else:
            client.lose_answer()

    @rule(slot=CLIENTS)
    def act(self, slot: int) -> None:
        if slot in self.clients:
            self.clients[slot].act()

    @rule(slot=CLIENTS, is_for_good=st.booleans())
    def leave(self, slot: int, is_for_good: bool) -> None:
        client = self.clients.get(slot)
        if client is None or client.epoch == 0:
            return
        epoch = LEAVES if is_for_good or client.instance_id is None else IS_AWAY
        del self.clients[slot]
        try:
            self.simulation.send(Heartbeat(client.member_id, epoch, client.instance_id))
        except HeartbeatRefusedError as refusal:
            self.refusals.add(refusal.error)

    @rule()
    def die(self) -> None:
        self.simulation.die()

    @rule(ms=st.sampled_from([100, REBALANCE_MS, SESSION_MS]))
    def wait(self, ms: int) -> None:
        self.simulation.pass_time(ms)

    @rule(count=st.integers(1, 6))
    def change_topic(self, count: int) -> None:
        self.simulation.topics[OTHER] = TopicShape(IDS[OTHER], count)

    @invariant()
    def each_place_that_is_owned_has_one_member(self) -> None:
        held = [place for member in self.group.members.values() for place in member.assigned | member.revoked]
        assert sorted(held) == sorted(self.group.owned)

    @invariant()
    def a_client_that_is_a_member_consumes_nothing_that_another_one_owns(self) -> None:
        for client in self.clients.values():
            if client.member_id in self.group.members and client.epoch != 0:
                member = self.group.members[client.member_id]
                assert client.owned <= member.assigned | member.revoked

    @invariant()
    def a_client_that_does_its_part_is_refused_for_no_other_reason(self) -> None:
        assert self.refusals <= REFUSALS

    @invariant()
    def deadlines_lie_ahead(self) -> None:
        assert self.group.deadline_ms >= self.simulation.now_ms

    def teardown(self) -> None:
        """The living members become stable: each partition has a member that consumes it."""
        for _ in range(30):
            for slot in self.clients:
                self.act(slot)
                self.beat(slot, is_lost=False)
            self.simulation.pass_time(SESSION_MS / 10)
        if self.group.members:
            assert self.simulation.state() is ConsumerGroupState.STABLE
            names = {name for client in self.clients.values() for name in client.topics}
            wanted = {
                (IDS[name], number) for name in names for number in range(self.simulation.topics[name].partition_count)
            }
            assert {place for client in self.clients.values() for place in client.owned} == wanted


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
