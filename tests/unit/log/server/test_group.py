# SPDX-License-Identifier: Apache-2.0
"""The state machine of consumer groups, with a manual clock."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.coordinator import SETTLED
from shmaccum.log.server.group import Answer, Group, GroupLimits, GroupState, Join, JoinAnswer, Protocol, SyncAnswer

RANGE = Protocol("range", b"r")
STICKY = Protocol("sticky", b"s")
INITIAL_DELAY_MS = 200
SESSION_MS = 10_000
REBALANCE_MS = 60_000
PARTITION_COUNT = 3


class Simulation:
    """A group, its clock, and the answers it gave.

    Attributes:
        life: the number of deaths of its coordinator.
    """

    def __init__(self, **limits: int) -> None:
        self.now_ms = 0.0
        self.life = 0
        self._limits = GroupLimits(**{"initial_delay_ms": INITIAL_DELAY_MS, **limits})
        self._numbers = itertools.count()
        self._noted = 0
        self.group = self._new_group()
        self.answers: dict[str, JoinAnswer | SyncAnswer] = {}

    def _new_group(self) -> Group:
        return Group("g", self._limits, lambda name: f"{name}-{next(self._numbers)}", generation=self._noted)

    def die(self) -> None:
        """Replace the coordinator. The new one has the generation of the group's file."""
        self.life += 1
        self.group = self._new_group()

    def take(self) -> None:
        if self.group.state in SETTLED:  # the file has a generation before an answer has it
            self._noted = self.group.generation
        for answer in self.group.take_answers():
            assert isinstance(answer, Answer)
            token = str(answer.token)
            assert token not in self.answers, f"{token} is answered twice"
            self.answers[token] = answer.content
        members = self.group.members.values()
        assert self.group.size == sum(member.join.size + len(member.assignment) for member in members)

    def pass_time(self, ms: float) -> None:
        end_ms = self.now_ms + ms
        while self.group.deadline_ms <= end_ms:
            assert self.group.deadline_ms > self.now_ms or self.now_ms == 0, "a deadline that does not move on"
            self.now_ms = self.group.deadline_ms
            self.group.tick(self.now_ms)
        self.now_ms = end_ms
        self.take()

    def join(self, token: str, member_id: str = "", **more: object) -> None:
        values = {
            "instance_id": None,
            "client_id": "c",
            "client_host": "/h",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": (RANGE,),
            "is_member_id_required": False,
            **more,
        }
        self.group.join(token, Join(member_id=member_id, **values), self.now_ms)  # type: ignore[arg-type]
        self.take()

    def sync(self, token: str, member_id: str, generation: int, assignments: Sequence[tuple[str, bytes]] = ()) -> None:
        self.group.sync(token, member_id, None, generation, assignments, self.now_ms)
        self.take()

    def joined(self, token: str) -> JoinAnswer:
        answer = self.answers[token]
        assert isinstance(answer, JoinAnswer)
        return answer

    def synced(self, token: str) -> SyncAnswer:
        answer = self.answers[token]
        assert isinstance(answer, SyncAnswer)
        return answer

    def stable(self, count: int) -> list[str]:
        """Makes a stable group of this many members, and returns their ids, the leader's first."""
        for number in range(count):
            self.join(f"join {number}")
        self.pass_time(INITIAL_DELAY_MS)
        ids = [self.joined(f"join {number}").member_id for number in range(count)]
        leader = self.group.leader
        assert leader is not None
        for number, member_id in enumerate(ids):
            given = [(one, one.encode()) for one in ids] if member_id == leader else ()
            self.sync(f"sync {number}", member_id, self.group.generation, given)
        assert self.group.state is GroupState.STABLE
        return [leader, *(one for one in ids if one != leader)]


def test_the_first_round_waits_for_more_members_and_then_gives_each_its_assignment() -> None:
    simulation = Simulation()
    ids = simulation.stable(3)
    assert simulation.group.generation == 1
    assert {simulation.synced(f"sync {number}").assignment for number in range(3)} == {one.encode() for one in ids}
    leader = next(answer for answer in map(simulation.joined, ["join 0", "join 1", "join 2"]) if answer.members)
    assert {member.member_id for member in leader.members} == set(ids)


def test_a_new_member_gets_an_id_first_and_returns_with_it() -> None:
    simulation = Simulation()
    simulation.join("first", is_member_id_required=True)
    promised = simulation.joined("first")
    assert promised.error is BrokerError.MEMBER_ID_REQUIRED
    simulation.join("second", promised.member_id, is_member_id_required=True)
    simulation.pass_time(INITIAL_DELAY_MS)
    assert simulation.joined("second").error is BrokerError.NONE


def test_a_promised_id_that_is_not_used_holds_a_round_up_until_its_session_is_over() -> None:
    simulation = Simulation()
    leader, *_ = simulation.stable(1)
    simulation.join("promised", is_member_id_required=True)
    simulation.join("again", leader)
    assert "again" not in simulation.answers
    simulation.pass_time(SESSION_MS)
    assert simulation.joined("again").generation == 2


def test_an_unknown_member_gets_an_error_after_a_restart() -> None:
    simulation = Simulation()
    simulation.join("old", "c-of-a-former-life")
    assert simulation.joined("old").error is BrokerError.UNKNOWN_MEMBER_ID


def test_a_member_that_dies_loses_its_place_after_its_session_and_the_others_join_again() -> None:
    simulation = Simulation()
    leader, other = simulation.stable(2)
    simulation.pass_time(SESSION_MS - 1)
    assert simulation.group.heartbeat(leader, None, 1, simulation.now_ms) is BrokerError.NONE
    simulation.pass_time(1)
    assert other not in simulation.group.members
    assert simulation.group.heartbeat(leader, None, 1, simulation.now_ms) is BrokerError.REBALANCE_IN_PROGRESS
    simulation.join("again", leader)
    assert simulation.joined("again").generation == 2


def test_a_round_ends_at_the_rebalance_time_out_without_those_that_did_not_come() -> None:
    simulation = Simulation()
    leader, silent = simulation.stable(2)
    simulation.join("newcomer")
    simulation.join("again", leader)
    for _ in range(REBALANCE_MS // 1000 - 1):
        simulation.pass_time(1000)
        simulation.group.heartbeat(silent, None, 1, simulation.now_ms)
    assert "again" not in simulation.answers
    simulation.pass_time(1000)
    assert simulation.joined("again").generation == 2
    assert silent not in simulation.group.members


def test_a_parked_join_is_a_sign_of_life() -> None:
    simulation = Simulation()
    leader, other = simulation.stable(2)
    simulation.join("newcomer")
    simulation.join("again", leader)
    for _ in range(5):
        simulation.pass_time(SESSION_MS - 1)
        simulation.group.heartbeat(other, None, 1, simulation.now_ms)
    assert leader in simulation.group.members


def test_a_parked_sync_is_a_sign_of_life() -> None:
    simulation = Simulation()
    leader, follower = simulation.stable(2)
    simulation.join("leader again", leader)
    simulation.join("follower again", follower)
    simulation.sync("parked", follower, 2)
    for _ in range(3):
        simulation.pass_time(SESSION_MS - 1)
        simulation.group.heartbeat(leader, None, 2, simulation.now_ms)
    simulation.join("newcomer")
    assert simulation.synced("parked").error is BrokerError.REBALANCE_IN_PROGRESS
    simulation.pass_time(SESSION_MS - 1)
    assert follower in simulation.group.members


def test_a_join_counts_whose_connection_ended_while_it_waited() -> None:
    simulation = Simulation()
    leader, *_ = simulation.stable(1)
    simulation.join("dying")
    simulation.group.drop("dying")
    simulation.join("again", leader)
    answer = simulation.joined("again")
    assert (answer.error, answer.generation, len(answer.members)) == (BrokerError.NONE, 2, 2)
    simulation.sync("share", leader, 2, [(leader, b"mine")])
    assert simulation.synced("share").assignment == b"mine"
    simulation.pass_time(SESSION_MS / 2)
    assert simulation.group.heartbeat(leader, None, 2, simulation.now_ms) is BrokerError.NONE
    simulation.pass_time(SESSION_MS / 2)
    simulation.join("last", leader)
    assert [member.member_id for member in simulation.joined("last").members] == [leader]


def test_a_leader_whose_connection_ended_in_its_join_does_not_lead_while_another_member_can() -> None:
    simulation = Simulation()
    leader, other = simulation.stable(2)
    simulation.join("leader again", leader)
    simulation.group.drop("leader again")
    simulation.join("other again", other)
    assert simulation.joined("other again").leader == other
    simulation.sync("share", other, 2, [(other, b"mine")])
    assert simulation.synced("share").assignment == b"mine"


def test_a_static_member_whose_connection_ended_in_its_join_returns_to_the_same_round() -> None:
    simulation = Simulation()
    leader, *_ = simulation.stable(1)
    simulation.join("dying", instance_id="one")
    simulation.group.drop("dying")
    simulation.join("back", instance_id="one")
    assert simulation.joined("dying").error is BrokerError.FENCED_INSTANCE_ID
    simulation.join("again", leader)
    assert len(simulation.joined("again").members) == 2
    assert simulation.joined("back").generation == 2


def test_a_sync_whose_connection_ended_while_it_waited_changes_nothing_for_the_others() -> None:
    simulation = Simulation()
    leader, other = simulation.stable(2)
    simulation.join("leader again", leader)
    simulation.join("other again", other)
    simulation.sync("dying", other, 1)
    simulation.sync("dying in time", other, 2)
    simulation.group.drop("dying in time")
    simulation.sync("share", leader, 2, [(leader, b"mine"), (other, b"lost")])
    assert simulation.synced("share").assignment == b"mine"
    assert simulation.group.state is GroupState.STABLE
    simulation.pass_time(SESSION_MS / 2)
    assert simulation.group.heartbeat(leader, None, 2, simulation.now_ms) is BrokerError.NONE
    simulation.pass_time(SESSION_MS / 2)
    assert list(simulation.group.members) == [leader]


def test_a_member_that_joined_and_never_syncs_is_out() -> None:
    simulation = Simulation()
    for number in range(2):
        simulation.join(f"join {number}", session_timeout_ms=120_000)
    simulation.pass_time(INITIAL_DELAY_MS)
    follower = next(one for one in simulation.group.members if one != simulation.group.leader)
    simulation.sync("sync", follower, 1)
    simulation.pass_time(REBALANCE_MS)
    assert list(simulation.group.members) == [follower]
    assert simulation.synced("sync").error is BrokerError.REBALANCE_IN_PROGRESS


def test_the_protocol_that_most_like_best_of_those_all_know_is_taken() -> None:
    simulation = Simulation()
    simulation.join("a", protocols=(Protocol("x", b""), STICKY, RANGE))
    simulation.join("b", protocols=(RANGE, STICKY))
    simulation.join("c", protocols=(RANGE, STICKY))
    simulation.pass_time(INITIAL_DELAY_MS)
    assert simulation.joined("a").protocol == "range"


def test_a_member_without_a_common_protocol_is_refused() -> None:
    simulation = Simulation()
    simulation.stable(1)
    simulation.join("other", protocols=(STICKY,))
    assert simulation.joined("other").error is BrokerError.INCONSISTENT_GROUP_PROTOCOL
    simulation.join("type", protocol_type="connect")
    assert simulation.joined("type").error is BrokerError.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("session_ms", [499, 30 * 60_000 + 1])
def test_a_session_time_out_beyond_the_limits_is_refused(session_ms: int) -> None:
    simulation = Simulation()
    simulation.join("odd", session_timeout_ms=session_ms)
    assert simulation.joined("odd").error is BrokerError.INVALID_SESSION_TIMEOUT


def test_a_full_group_takes_no_other_member() -> None:
    simulation = Simulation(member_count_max=2)
    simulation.stable(2)
    simulation.join("third")
    assert simulation.joined("third").error is BrokerError.GROUP_MAX_SIZE_REACHED


def test_commits_are_taken_while_stable_and_while_preparing_and_refused_in_between() -> None:
    simulation = Simulation()
    group = simulation.group
    assert group.commit_problem("", None, -1, 0) is BrokerError.NONE
    leader, other = simulation.stable(2)
    assert group.commit_problem(leader, None, 1, simulation.now_ms) is BrokerError.NONE
    assert group.commit_problem(leader, None, 0, simulation.now_ms) is BrokerError.ILLEGAL_GENERATION
    assert group.commit_problem("stranger", None, 1, simulation.now_ms) is BrokerError.UNKNOWN_MEMBER_ID
    assert group.commit_problem("", None, -1, simulation.now_ms) is BrokerError.UNKNOWN_MEMBER_ID
    simulation.join("newcomer")
    assert group.commit_problem(other, None, 1, simulation.now_ms) is BrokerError.NONE
    simulation.join("again", leader)
    simulation.join("too", other)
    assert group.state is GroupState.COMPLETING
    assert group.commit_problem(leader, None, 2, simulation.now_ms) is BrokerError.REBALANCE_IN_PROGRESS


def test_a_static_member_that_returns_keeps_its_assignment_and_fences_its_former_self() -> None:
    simulation = Simulation()
    simulation.join("join", instance_id="i")
    simulation.pass_time(INITIAL_DELAY_MS)
    former = simulation.joined("join").member_id
    simulation.sync("sync", former, 1, [(former, b"mine")])
    simulation.join("back", instance_id="i")
    back = simulation.joined("back")
    assert {one.rpartition("-")[0] for one in (former, back.member_id)} == {"i"}
    assert (back.error, back.generation, back.is_assignment_skipped) == (BrokerError.NONE, 1, True)
    simulation.sync("sync again", back.member_id, 1)
    assert simulation.synced("sync again").assignment == b"mine"
    group = simulation.group
    assert group.heartbeat(former, "i", 1, simulation.now_ms) is BrokerError.FENCED_INSTANCE_ID


def test_a_static_member_whose_client_cannot_skip_the_assignment_does_not_lead() -> None:
    simulation = Simulation()
    simulation.join("join", instance_id="i")
    simulation.pass_time(INITIAL_DELAY_MS)
    former = simulation.joined("join").member_id
    simulation.sync("sync", former, 1, [(former, b"mine")])
    simulation.join("back", instance_id="i", can_skip_assignment=False)
    back = simulation.joined("back")
    assert (back.leader, back.members, back.is_assignment_skipped) == (former, (), False)


def test_a_static_member_that_waits_twice_is_fenced_in_its_first_wait() -> None:
    simulation = Simulation()
    simulation.join("first", instance_id="i")
    simulation.join("second", instance_id="i")
    assert simulation.joined("first").error is BrokerError.FENCED_INSTANCE_ID
    simulation.pass_time(INITIAL_DELAY_MS)
    assert simulation.joined("second").error is BrokerError.NONE


def test_static_members_are_named_by_their_instance_when_they_leave() -> None:
    simulation = Simulation()
    simulation.join("join", instance_id="i")
    simulation.pass_time(INITIAL_DELAY_MS)
    group = simulation.group
    assert group.leave("", "other", simulation.now_ms) is BrokerError.UNKNOWN_MEMBER_ID
    assert group.leave("wrong", "i", simulation.now_ms) is BrokerError.FENCED_INSTANCE_ID
    assert group.leave("", "i", simulation.now_ms) is BrokerError.NONE
    assert group.state is GroupState.EMPTY


def test_a_static_member_that_does_not_join_in_time_keeps_its_place() -> None:
    simulation = Simulation()
    simulation.join("join", instance_id="i")
    simulation.pass_time(INITIAL_DELAY_MS)
    static = simulation.joined("join").member_id
    simulation.sync("sync", static, 1, [(static, b"mine")])
    simulation.join("newcomer")
    for _ in range(REBALANCE_MS // 1000):
        simulation.pass_time(1000)
        simulation.group.heartbeat(static, "i", 1, simulation.now_ms)
    newcomer = simulation.joined("newcomer")
    assert (newcomer.error, newcomer.generation, newcomer.leader) == (BrokerError.NONE, 2, newcomer.member_id)
    assert [(one.member_id, one.instance_id) for one in newcomer.members] == [
        (static, "i"),
        (newcomer.member_id, None),
    ]


def test_a_static_member_that_was_silent_for_its_session_returns_as_a_new_one() -> None:
    simulation = Simulation()
    simulation.join("join", instance_id="i")
    simulation.pass_time(INITIAL_DELAY_MS)
    former = simulation.joined("join").member_id
    simulation.sync("sync", former, 1, [(former, b"mine")])
    simulation.pass_time(SESSION_MS)
    assert simulation.group.is_unused
    simulation.join("back", instance_id="i")
    simulation.pass_time(INITIAL_DELAY_MS)
    back = simulation.joined("back")
    assert back.error is BrokerError.NONE
    assert back.member_id != former


def test_a_member_that_joins_again_while_its_first_join_waits_gets_one_answer() -> None:
    simulation = Simulation()
    leader, _ = simulation.stable(2)
    simulation.join("newcomer")
    simulation.join("once", leader)
    simulation.join("twice", leader)
    assert simulation.joined("once").error is BrokerError.UNKNOWN_MEMBER_ID


def test_a_member_that_syncs_again_while_its_first_sync_waits_gets_an_answer_to_each() -> None:
    simulation = Simulation()
    for token in ("one", "two"):
        simulation.join(token)
    simulation.pass_time(INITIAL_DELAY_MS)
    leader = simulation.group.leader
    (other,) = {simulation.joined(token).member_id for token in ("one", "two")} - {leader}
    simulation.sync("first", other, 1)
    simulation.sync("second", other, 1)
    assert simulation.synced("first").error is BrokerError.UNKNOWN_MEMBER_ID
    simulation.sync("leader", str(leader), 1, [(other, b"theirs")])
    assert simulation.synced("second").assignment == b"theirs"


def test_the_last_member_that_leaves_leaves_an_empty_group_that_can_be_joined() -> None:
    simulation = Simulation()
    (leader,) = simulation.stable(1)
    assert simulation.group.leave(leader, None, simulation.now_ms) is BrokerError.NONE
    assert simulation.group.state is GroupState.EMPTY
    assert simulation.group.generation == 2
    simulation.join("join")
    simulation.pass_time(INITIAL_DELAY_MS)
    assert simulation.joined("join").generation == 3


class Offsets:
    """The committed offsets of a group, which outlive its coordinator, and the records that clients processed.

    Attributes:
        committed: offsets by partition.
        processed: how often each record was processed, by partition and offset.
        is_in_step: clients process a record and commit it in one transaction.
    """

    def __init__(self, *, is_in_step: bool) -> None:
        self.is_in_step = is_in_step
        self.committed = dict.fromkeys(range(PARTITION_COUNT), 0)
        self.processed: Counter[tuple[int, int]] = Counter()

    def commit(self, partition: int, offset: int) -> None:
        assert offset >= self.committed[partition], "a member of a former round commits"
        self.committed[partition] = offset

    def audit(self) -> None:
        """Check that no offset is past the processed records. In step, check that none was processed twice."""
        records = [(place, offset) for place, end in self.committed.items() for offset in range(end)]
        assert all(self.processed[record] for record in records)
        if self.is_in_step:
            assert self.processed == Counter(records)


class Client:
    """A consumer that behaves as Kafka's clients, and may die at any moment."""

    numbers = itertools.count()
    """Numbers of all clients, so that the names of requests are unique."""

    def __init__(self, name: str, simulation: Simulation, offsets: Offsets, dice: random.Random) -> None:
        self.name = name
        self.simulation = simulation
        self.offsets = offsets
        self.dice = dice
        self.instance_id = name if dice.random() < 0.3 else None
        self.member_id = ""
        self.generation = -1
        self.positions: dict[int, int] | None = None
        self.waits_for: str | None = None
        self.life = 0

    def step(self) -> None:
        if self.waits_for is not None:
            self.read_answer(self.waits_for)
        elif self.positions is None:
            self.ask("join")
            self.simulation.join(
                str(self.waits_for), self.member_id, instance_id=self.instance_id, is_member_id_required=True
            )
        else:
            group = self.simulation.group
            error = group.heartbeat(self.member_id, self.instance_id, self.generation, self.simulation.now_ms)
            if error is BrokerError.NONE:
                error = self.consume(self.positions)
            if error is not BrokerError.NONE:
                self.rejoin(error)

    def ask(self, what: str) -> None:
        self.waits_for, self.life = f"{self.name} {what} {next(self.numbers)}", self.simulation.life

    def consume(self, positions: dict[int, int]) -> BrokerError:
        """Processes a record of each partition, and commits it at once, later or never."""
        for partition, position in positions.items():
            if self.offsets.is_in_step:
                error = self.commit({partition: position + 1})
                if error is not BrokerError.NONE:
                    return error
            self.offsets.processed[partition, position] += 1
            positions[partition] += 1
        return self.commit(positions) if self.dice.random() < 0.5 else BrokerError.NONE

    def commit(self, positions: dict[int, int]) -> BrokerError:
        group, now_ms = self.simulation.group, self.simulation.now_ms
        error = group.commit_problem(self.member_id, self.instance_id, self.generation, now_ms)
        for partition, position in positions.items() if error is BrokerError.NONE else ():
            self.offsets.commit(partition, position)
        return error

    def rejoin(self, error: BrokerError) -> None:
        self.positions = None
        if error in {BrokerError.UNKNOWN_MEMBER_ID, BrokerError.FENCED_INSTANCE_ID}:
            self.member_id = ""

    def read_answer(self, token: str) -> None:
        answer = self.simulation.answers.get(token)
        if answer is None:
            if self.life != self.simulation.life:  # the connection broke
                self.waits_for = None
            return
        self.waits_for = None
        if isinstance(answer, JoinAnswer):
            self.read_join(answer)
        elif answer.error is BrokerError.NONE:
            self.positions = {partition: self.offsets.committed[partition] for partition in answer.assignment}
        else:
            self.rejoin(answer.error)

    def read_join(self, answer: JoinAnswer) -> None:
        if answer.error is BrokerError.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif answer.error is not BrokerError.NONE:
            self.rejoin(answer.error)
        else:
            self.member_id, self.generation = answer.member_id, answer.generation
            self.ask("sync")
            names = [member.member_id for member in answer.members]
            given = [
                (name, bytes(range(number, PARTITION_COUNT, len(names)))) for number, name in enumerate(names)
            ]  # a byte for each partition
            self.simulation.group.sync(
                self.waits_for, self.member_id, self.instance_id, self.generation, given, self.simulation.now_ms
            )
            self.simulation.take()


SHORT_DEATHS = 500
LONG_DEATHS = 10_000
COORDINATOR_SHARE = 0.1
"""The share of deaths that hit the coordinator."""


def test_after_any_deaths_the_living_share_everything_and_no_two_have_the_same(
    seeded: Callable[[], random.Random],
) -> None:
    live_and_die(SHORT_DEATHS, seeded())


@pytest.mark.slow
def test_after_ten_thousand_deaths_the_living_share_everything(seeded: Callable[[], random.Random]) -> None:
    live_and_die(LONG_DEATHS, seeded())


def live_and_die(death_count: int, dice: random.Random) -> None:
    """Let members and coordinators of groups die at random, on a simulated clock."""
    deaths = 0
    while deaths < death_count:
        simulation, offsets = Simulation(), Offsets(is_in_step=dice.random() < 0.5)
        names = (f"c{number}" for number in itertools.count())
        clients = [Client(next(names), simulation, offsets, dice) for _ in range(dice.randrange(1, 8))]
        for _ in range(200):
            simulation.pass_time(dice.choice([1, 10, 300, 3000]))
            for client in dice.sample(clients, len(clients)):
                client.step()
            if dice.random() < 0.3:
                deaths += 1
                one_dies(simulation, clients, dice)
                offsets.audit()
            if not clients or dice.random() < 0.25:
                clients.append(Client(next(names), simulation, offsets, dice))
        before = dict(offsets.committed)
        settle(simulation, clients)
        assert simulation.group.state is GroupState.STABLE
        assert {client.member_id for client in clients} == set(simulation.group.members)
        assert {client.generation for client in clients} == {simulation.group.generation}
        shared = sorted(partition for client in clients for partition in client.positions or ())
        assert shared == list(range(PARTITION_COUNT))
        offsets.audit()
        assert all(offsets.committed[partition] > before[partition] for partition in shared)


def one_dies(simulation: Simulation, clients: list[Client], dice: random.Random) -> None:
    """Let the coordinator die, or a client, which may have a successor of the same name."""
    if dice.random() < COORDINATOR_SHARE:
        simulation.die()
        return
    dead = clients.pop(dice.randrange(len(clients)))
    if dead.instance_id is not None and dice.random() < 0.5:
        successor = Client(dead.name, simulation, dead.offsets, dice)
        successor.instance_id = dead.instance_id
        clients.append(successor)


def settle(simulation: Simulation, clients: list[Client]) -> None:
    """Wait without deaths, until every session and round of the dead has ended."""
    for _ in range((SESSION_MS + 3 * REBALANCE_MS) // 1000):
        simulation.pass_time(1000)
        for client in clients:
            client.step()


# --- size


def test_a_group_takes_no_more_bytes_than_it_may_have() -> None:
    simulation = Simulation()
    leader, other = simulation.stable(2)
    simulation.group.size_max = 100
    large = (Protocol("range", bytes(90)),)
    simulation.join("new", protocols=large)
    assert simulation.joined("new").error is BrokerError.GROUP_MAX_SIZE_REACHED
    simulation.join("again", leader, protocols=large)
    assert simulation.joined("again").error is BrokerError.GROUP_MAX_SIZE_REACHED
    assert simulation.group.state is GroupState.STABLE

    simulation.join("leader", leader, protocols=(Protocol("range", b"changed"),))
    simulation.join("other", other)
    generation = simulation.joined("leader").generation
    simulation.sync("too large", leader, generation, [(leader, bytes(40)), (other, bytes(50))])
    assert simulation.synced("too large").error is BrokerError.GROUP_MAX_SIZE_REACHED
    simulation.sync("small", leader, generation, [(leader, bytes(40)), (other, bytes(20))])
    assert simulation.synced("small").assignment == bytes(40)


def test_a_new_round_begins_without_assignments() -> None:
    simulation = Simulation()
    leader, _ = simulation.stable(2)
    assert all(member.assignment for member in simulation.group.members.values())
    simulation.join("again", leader, protocols=(Protocol("range", b"changed"),))
    assert simulation.group.state is GroupState.PREPARING
    assert [member.assignment for member in simulation.group.members.values()] == [b"", b""]


def test_a_member_that_joins_again_as_another_instance_is_fenced() -> None:
    simulation = Simulation()
    simulation.join("join", instance_id="i")
    simulation.pass_time(INITIAL_DELAY_MS)
    member_id = simulation.joined("join").member_id
    simulation.join("again", member_id, instance_id="other")
    assert simulation.joined("again").error is BrokerError.FENCED_INSTANCE_ID
    simulation.join("right", member_id, instance_id="i")
    assert simulation.joined("right").error is BrokerError.NONE


@pytest.mark.parametrize("waits", ["join", "sync"])
def test_a_waiting_member_that_is_removed_gets_an_answer(waits: str) -> None:
    simulation = Simulation()
    for token in ("one", "two"):
        simulation.join(token)
    if waits == "sync":
        simulation.pass_time(INITIAL_DELAY_MS)
        (other,) = {simulation.joined(token).member_id for token in ("one", "two")} - {simulation.group.leader}
        simulation.sync("sync", other, 1)
    simulation.group.remove_all()
    simulation.take()
    answers = [simulation.synced("sync")] if waits == "sync" else [simulation.joined(each) for each in ("one", "two")]
    assert {answer.error for answer in answers} == {BrokerError.UNKNOWN_MEMBER_ID}
