# SPDX-License-Identifier: Apache-2.0
"""Members of local groups: plans, locks, commits and both modes. Members in one process simulate processes."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from shmaccum.common import clock
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import (
    ConsumerStateError,
    GroupBusyError,
    GroupModeError,
    InvalidArgumentError,
    LogForbiddenError,
)
from shmaccum.log.groups import file_systems, member_locks, members, membership, offsets_file, plan, shared_offsets
from shmaccum.log.groups.member_locks import MemberLocks, partition_byte
from shmaccum.log.groups.membership import Assignors, Membership
from shmaccum.log.groups.offsets_file import Committed, GroupLock, OffsetsFile
from shmaccum.log.groups.plan import Plan, plan_path, read_plan
from tests.support.descriptors import open_descriptors

PLACES = [TopicPartition("a", number) for number in range(3)]
Join = Callable[..., Membership]
FORGED = b'{"epoch": 9, "counts": {}, "members": {}, "assignment": {"m": [["a", -1]]}}'


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Join]:
    """Makes members of the group "g" that consume topic a, which has three partitions."""
    made: list[Membership] = []

    def make(*assignors: Any, **options: Any) -> Membership:
        chosen = Assignors.of(assignors or ("cooperative-sticky",))
        member = Membership(os.fspath(tmp_path), "g", count_of=lambda _topic: 3, assignors=chosen, **options)
        made.append(member)
        member.subscribe(["a"])
        return member

    yield make
    for member in made:
        member.leave()


def settle(*members: Membership) -> list[int]:
    """Lets each member act until nothing changes, and returns the number of partitions of each."""
    for _ in range(3):
        for member in members:
            member.check_plan()
            member.give_up(member.locks.owned - member.wanted)
            member.take()
    return [len(member.locks.owned) for member in members]


def offset(number: int) -> Committed:
    return Committed(number, -1, "", 1)


@pytest.mark.parametrize(("count", "sizes"), [(1, [3]), (2, [1, 2]), (3, [1, 1, 1]), (4, [0, 1, 1, 1])])
def test_members_share_the_partitions(join: Join, count: int, sizes: list[int]) -> None:
    members = [join() for _ in range(count)]
    assert sorted(settle(*members)) == sizes
    assert set().union(*(member.locks.owned for member in members)) == set(PLACES)


def test_a_partition_is_taken_only_when_its_owner_let_go(join: Join) -> None:
    first = join()
    settle(first)
    second = join()
    second.check_plan()
    assert (second.take(), len(second.pending)) == (set(), 1)
    first.check_plan()
    first.give_up(first.locks.owned - first.wanted)
    assert second.take() == second.wanted


def test_a_commit_after_a_rewrite_or_a_removal_of_the_file_is_kept(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = join(), join()
    settle(first, second)
    place, other = min(first.locks.owned), min(second.locks.owned)
    first.commit({place: offset(1)}, 1)
    with monkeypatch.context() as patch:
        patch.setattr(offsets_file, "DEAD_SIZE_MIN", -10_000)
        second.commit({other: offset(2)}, 1)
    first.commit({place: offset(3)}, 1)
    assert stored(tmp_path) == {place: 3, other: 2}
    next(tmp_path.glob(".groups/*.offsets")).unlink()
    first.commit({place: offset(4)}, 1)
    assert stored(tmp_path) == {place: 4}


def stored(directory: Path) -> dict[TopicPartition, int]:
    """Return the offsets that a new program reads."""
    file = OffsetsFile(os.fspath(directory), "g", is_writer=False)
    return {place: one.offset for place, one in file.offsets.items()}


def test_a_member_that_leaves_is_replaced_at_the_next_look(join: Join) -> None:
    first, second = join(), join()
    settle(first, second)
    second.leave()
    assert settle(first) == [3]
    assert [member.pid for member in first.members()] == [os.getpid()]


def test_a_slot_that_is_used_again_keeps_no_dead_member(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    same_slot(monkeypatch)
    first = join()
    settle(first)
    first.leave()
    second = join()
    assert settle(second) == [3]
    assert list(second.plan.members) == [second.member_id]


def test_nothing_is_published_while_nothing_changes(join: Join) -> None:
    first, second = join(), join()
    settle(first, second)
    epoch = first.plan.epoch
    settle(first, second)
    assert first.plan.epoch == epoch


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[", b'{"epoch": "x"}', b"\xff", b"[" * 100_000, b'{"members": {"m": {"slot": -9}}}', FORGED],
)
def test_a_damaged_plan_is_rewritten(join: Join, tmp_path: Path, content: bytes) -> None:
    first = join()
    Path(plan_path(os.fspath(tmp_path), "g")).write_bytes(content)
    assert read_plan(plan_path(os.fspath(tmp_path), "g")) == Plan()
    assert settle(first) == [3]


# --- static members


def test_partitions_of_a_static_member_wait_for_its_return(join: Join) -> None:
    first, static = join(), join(instance_id="s", session_timeout_ms=60_000)
    settle(first, static)
    owned, epoch = set(static.locks.owned), first.plan.epoch
    static.leave()
    settle(first)
    assert not owned & first.locks.owned
    again = join(instance_id="s", session_timeout_ms=60_000)
    settle(first, again)
    assert again.locks.owned == owned
    assert first.plan.epoch > epoch


def test_partitions_of_a_static_member_move_after_its_session(join: Join) -> None:
    first, static = join(), join(instance_id="s", session_timeout_ms=0)
    settle(first, static)
    static.leave()
    assert settle(first) == [3]


def test_a_slot_that_is_used_again_does_not_bring_a_static_member_back(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = join()
    same_slot(monkeypatch)
    static = join(instance_id="s", session_timeout_ms=60_000)
    settle(first, static)
    static.leave()
    settle(first)
    successor = join()
    settle(first, successor)
    assert successor.locks.slot == static.locks.slot
    assert [member.lives for member in first.members() if member.instance_id == "s"] == [False]


def test_a_second_living_member_of_one_instance_is_refused(join: Join) -> None:
    join(instance_id="s")
    with pytest.raises(ConsumerStateError, match=f"process {os.getpid()} is the member 's'"):
        join(instance_id="s")


# --- assignors


class Greedy:
    name = "greedy"

    def assign(self, group: Any) -> Any:
        return {min(group.topics): group.partitions()}


def test_an_assignor_of_ones_own_decides(join: Join) -> None:
    members = [join(Greedy()), join(Greedy())]
    assert sorted(settle(*members)) == [0, 3]


def test_an_assignor_that_is_wrong_is_refused(join: Join) -> None:
    class Twice(Greedy):
        def assign(self, group: Any) -> Any:
            return dict.fromkeys(["nobody"], PLACES)

    with pytest.raises(ConsumerStateError, match="the assignor 'greedy' is wrong: it assigns a-0 to 'nobody'"):
        join(Twice())
    with pytest.raises(ConsumerStateError, match="is not an assignor"):
        join("best")


def test_members_without_a_common_assignor_are_refused(join: Join) -> None:
    join("range")
    with pytest.raises(ConsumerStateError, match="members of group 'g' use range"):
        join("sticky")


# --- commits


def test_commits_of_several_members_are_in_one_file(join: Join, tmp_path: Path) -> None:
    members = [join(), join()]
    settle(*members)
    for number in range(200):
        for member in members:
            member.commit({place: offset(number) for place in member.locks.owned}, 0)
    assert {place: members[0].committed(place) for place in PLACES} == dict.fromkeys(PLACES, offset(199))
    assert OffsetsFile(os.fspath(tmp_path), "g", is_writer=False).offsets == dict.fromkeys(PLACES, offset(199))


def test_commits_continue_when_another_member_rewrote_the_file(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shmaccum.log.groups.offsets_file.DEAD_SIZE_MIN", 512)
    members = [join(), join()]
    settle(*members)
    for number in range(100):
        for member in members:
            member.commit({place: offset(number) for place in member.locks.owned}, 0)
        assert {place: members[1].committed(place) for place in PLACES} == dict.fromkeys(PLACES, offset(number))
    assert sum(file.stat().st_size for file in (tmp_path / ".groups").glob("*.offsets")) < 4096


def test_a_torn_commit_is_cut_by_the_next(join: Join, tmp_path: Path) -> None:
    first = join()
    settle(first)
    first.commit({PLACES[0]: offset(1)}, 0)
    (file,) = (tmp_path / ".groups").glob("*.offsets")
    whole = file.read_bytes()
    for size in range(1, 30):
        file.write_bytes(whole + whole[-40:][:size])
        first.commit({PLACES[0]: offset(size)}, 0)
        found = OffsetsFile(os.fspath(tmp_path), "g", is_writer=False)
        assert found.offsets == {PLACES[0]: offset(size)}
        whole = file.read_bytes()


def test_a_partition_of_another_member_is_not_committed(join: Join) -> None:
    first, second = join(), join()
    settle(first, second)
    (foreign,) = list(second.locks.owned)[:1]
    with pytest.raises(ConsumerStateError, match=f"{foreign} of the group 'g' is not assigned"):
        first.commit({foreign: offset(1)}, 0)


def test_a_member_that_leaves_has_no_open_file(join: Join, tmp_path: Path) -> None:
    member = join()
    settle(member)
    member.commit({PLACES[0]: offset(1)}, 0)
    for _ in range(2):
        member.leave()
    assert [path for _, path in open_descriptors() if path.startswith(os.fspath(tmp_path))] == []


def test_a_commit_that_may_not_wait_does_not_pause(join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = join()
    settle(first)
    other = MemberLocks(os.fspath(tmp_path), "g")
    monkeypatch.setattr(clock, "monotonic", lambda: 100.0)
    monkeypatch.setattr(time, "sleep", lambda _seconds: pytest.fail("it pauses"))
    with other.offsets_lock(0), pytest.raises(GroupBusyError):
        first.commit({PLACES[0]: offset(1)}, 0)
    other.close()


def test_the_byte_of_a_partition_is_that_of_members_of_other_versions() -> None:
    assert partition_byte(TopicPartition("flights", 0)) == 2058272064942571000


def test_a_pen_that_is_held_is_reported(join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = join()
    settle(first)
    other = MemberLocks(os.fspath(tmp_path), "g")
    with other.offsets_lock(0), pytest.raises(GroupBusyError, match="is writing at the moment: try again"):
        first.commit({PLACES[0]: offset(1)}, 0)
    monkeypatch.setattr("shmaccum.log.groups.membership.is_stopped", lambda _pid: True)
    with other.offsets_lock(0), pytest.raises(GroupBusyError, match=f"stopped processes of the group: {os.getpid()}"):
        first.commit({PLACES[0]: offset(1)}, 0.001)
    other.close()
    first.commit({PLACES[0]: offset(1)}, 0)


def test_a_consumer_that_is_no_member_looks_and_publishes_nothing(join: Join, tmp_path: Path) -> None:
    first, second = join("range"), join("range")
    settle(first, second)
    second.locks.close()  # like a death
    observer = Membership(os.fspath(tmp_path), "g", count_of=lambda _topic: 9, assignors=Assignors.of(["sticky"]))
    assert observer.check_plan()
    assert {member.member_id: member.lives for member in observer.members()} == {
        first.member_id: True,
        second.member_id: False,
    }
    observer.leave()
    assert read_plan(plan_path(os.fspath(tmp_path), "g")).epoch == first.plan.epoch


# --- modes, file systems, forks


def test_a_group_has_one_mode_at_a_time(join: Join, tmp_path: Path) -> None:
    server = GroupLock(os.fspath(tmp_path), "g")
    with pytest.raises(GroupModeError, match="is coordinated by a server"):
        join()
    server.release()
    member = join()
    with pytest.raises(GroupModeError, match="shared by consumers on its host"):
        GroupLock(os.fspath(tmp_path), "g")
    member.leave()
    GroupLock(os.fspath(tmp_path), "g").release()


@pytest.mark.parametrize("magic", file_systems.FAR)
def test_a_file_system_of_another_host_is_refused(join: Join, monkeypatch: pytest.MonkeyPatch, magic: int) -> None:
    monkeypatch.setattr(file_systems, "kind_of", lambda _path: magic)
    with pytest.raises(InvalidArgumentError, match="whose locks are not released at once"):
        join()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_user_who_may_not_write_is_reported(join: Join, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(path: str, _flags: int) -> int:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr("shmaccum.log.files.lock_descriptor.open_regular", refuse)
    with pytest.raises(LogForbiddenError, match=r"may not write .*g\.lock.* consume without group_id"):
        join()


def test_a_forked_child_holds_no_lock(join: Join) -> None:
    first, second = join(), join()
    settle(first, second)
    begin, end = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        os.read(begin, 1)
        os._exit(0)
    os.close(begin)
    try:
        second.leave()  # the child lives, and has no copy of the descriptor
        assert settle(first) == [3]
    finally:
        os.close(end)
        os.waitpid(child, 0)


# --- large groups


def test_a_death_is_found_though_each_look_asks_about_few_members(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "CHECKED_MAX", 1)
    members = [join() for _ in range(3)]
    settle(*members)
    members.pop().locks.close()  # like a death
    while sum(len(member.locks.owned) for member in members) < len(PLACES):
        settle(*members)


def test_the_death_of_a_process_is_found_at_once_by_each_look_in_a_large_group(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "CHECKED_MAX", 2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 4711)
        dead = [join() for _ in range(2)]
    members = [join() for _ in range(8)]
    settle(*members)
    for one in dead:
        one.locks.close()  # like a death
    assert all(member._is_outdated(is_known=False) for member in members for _ in range(20))
    assert not any(member._is_outdated(is_known=True) for member in members)


def test_a_member_is_concerned_by_its_own_share_alone(join: Join) -> None:
    first, second, third = join(), join(), join()
    settle(first, second, third)
    assert not any(member.is_concerned(first.plan) for member in (first, second, third))
    third.leave()
    first.check_plan()
    taker = next(member for member in (first, second) if len(first.plan.partitions_of(member.member_id)) == 2)
    assert second.is_concerned(first.plan) == (taker is second)
    settle(first, second)
    assert not second.is_concerned(first.plan)


def test_a_member_is_concerned_while_it_waits_for_a_partition(join: Join) -> None:
    first = join()
    settle(first)
    second = join()
    second.take()
    assert second.is_concerned(second.plan)
    settle(first, second)
    assert not second.is_concerned(second.plan)


def test_a_member_that_is_not_in_the_plan_is_concerned_by_the_next_one(join: Join, tmp_path: Path) -> None:
    with planning(tmp_path):
        first, second = join(), join()
    joins_of(tmp_path).write_bytes(b"")
    first.check_plan()
    assert second.is_concerned(first.plan)
    with planning(tmp_path):
        second.check_plan()
    assert not second.is_concerned(first.plan)


def test_a_known_plan_is_not_parsed_again(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [join() for _ in range(3)]
    settle(*members)
    with monkeypatch.context() as patch:
        patch.setattr(plan, "_parsed", None)
        settle(*members)
    members.pop().leave()
    assert sorted(settle(*members)) == [1, 2]


def test_an_observer_of_a_group_without_a_plan_opens_no_lock_file(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = join()
    settle(member)
    monkeypatch.setattr(members, "living_slots", lambda _path, slots: set(slots) or pytest.fail("a lock file was read"))
    assert [each.pid for each in members.local_members(os.fspath(tmp_path), "g")] == [os.getpid()]
    assert not members.local_members(os.fspath(tmp_path), "remote")


def same_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes members search for a free slot from the first one."""
    monkeypatch.setattr(random, "randrange", lambda _count: 0)


def test_a_former_holder_of_a_slot_is_no_member(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    same_slot(monkeypatch)
    former = join()
    former.leave()
    successor = join()
    assert successor.locks.slot == former.locks.slot
    assert list(successor.plan.members) == [successor.member_id]


# --- members that join together


@contextlib.contextmanager
def planning(directory: Path) -> Iterator[None]:
    """A member of another process that is making a plan until the block ends."""
    other = MemberLocks(os.fspath(directory), "g")
    with other.planner() as is_planner:
        assert is_planner
        yield
    other.close()


def test_members_that_join_while_a_plan_is_made_share_the_next_one(join: Join, tmp_path: Path) -> None:
    with planning(tmp_path):
        members = [join() for _ in range(4)]
        assert [member.check_plan() for member in members] == [False] * 4
    assert sorted(settle(*members)) == [0, 1, 1, 1]
    assert members[0].plan.epoch == 1


def test_a_member_whose_row_is_lost_joins_by_itself(join: Join, tmp_path: Path) -> None:
    with planning(tmp_path):
        members = [join() for _ in range(3)]
    joins_of(tmp_path).write_bytes(b"")
    assert settle(*members) == [1, 1, 1]


def joins_of(directory: Path) -> Path:
    (path,) = (directory / ".groups").glob("*.joins")
    return path


def test_a_member_that_is_not_in_a_new_plan_appends_its_row_again(join: Join, tmp_path: Path) -> None:
    with planning(tmp_path):
        members = [join() for _ in range(3)]
    joins_of(tmp_path).write_bytes(b"")
    members[0].check_plan()
    with planning(tmp_path):
        assert [member.check_plan() for member in members[1:]] == [False, False]
    members[1].check_plan()
    assert len(members[1].plan.members) == 3


def test_rows_that_come_while_a_plan_is_made_stay_for_the_next(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Membership(os.fspath(tmp_path), "g", count_of=lambda _topic: 3, assignors=Assignors.of(["range"]))

    def join_and_write(path: str, made: Plan) -> None:
        late.subscribe(["a"])
        plan.write_plan(path, made)

    with monkeypatch.context() as patch:
        patch.setattr(membership, "write_plan", join_and_write)
        first = join("range")
    assert len(first.plan.members) == 1
    first.locks.close()
    try:
        late.check_plan()
        assert list(late.plan.members) == [late.member_id]
    finally:
        late.leave()


ROW = b'{"id": "%s", "slot": %d, "pid": 1, "topics": ["a"], "assignors": ["cooperative-sticky"], "is_static": false, '
TAIL = b'"session_timeout_ms": 0, "gone_ms": null}'


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"[" * 100_000,
        b"{}\n[]\n7\nnull",
        ROW % (b"dead", 4095) + TAIL,
        ROW % (b"none", -1) + TAIL,
        ROW % (b"far", 2**70) + TAIL,
        (ROW % (b"torn", 1))[:40],
        ROW % (b"odd", 1) + b'"session_timeout_ms": [], "gone_ms": null}',
    ],
)
def test_rows_that_make_no_sense_are_passed_over(join: Join, tmp_path: Path, content: bytes) -> None:
    first = join()
    joins_of(tmp_path).write_bytes(content)
    second = join()
    assert sorted(settle(first, second)) == [1, 2]
    assert set(first.plan.members) == {first.member_id, second.member_id}


def test_the_joins_of_a_group_whose_planner_does_not_get_on_stay_small(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shmaccum.log.groups.joins.SIZE_MAX", 500)
    with planning(tmp_path):
        members = [join() for _ in range(10)]
        assert joins_of(tmp_path).stat().st_size < 1000
    assert sum(settle(*members)) == 3


def test_two_members_of_one_instance_that_join_together_do_not_both_stay(join: Join, tmp_path: Path) -> None:
    with planning(tmp_path):
        first, second = join(instance_id="s"), join(instance_id="s")
    assert first.check_plan()
    with pytest.raises(ConsumerStateError, match="is the member 's'"):
        second.check_plan()
    assert settle(first) == [3]


def test_members_without_a_common_assignor_that_join_together_do_not_both_stay(join: Join, tmp_path: Path) -> None:
    with planning(tmp_path):
        first, second = join("range"), join("sticky")
    assert first.check_plan()
    with pytest.raises(ConsumerStateError, match="members of group 'g' use range"):
        second.check_plan()
    assert settle(first) == [3]


def test_members_of_which_only_each_two_have_an_assignor_in_common_are_refused(join: Join) -> None:
    members = [join("range", "sticky"), join("sticky", "roundrobin")]
    with pytest.raises(ConsumerStateError, match="set partition_assignment_strategy"):
        join("range", "roundrobin")
    assert sorted(settle(*members)) == [1, 2]


def test_a_member_whose_next_subscription_fails_stays_a_member(join: Join, tmp_path: Path) -> None:
    class Fussy(Greedy):
        def assign(self, group: Any) -> Any:
            return {"nobody": group.partitions()} if group.counts.get("b") else super().assign(group)

    first = join(Fussy())
    settle(first)
    with pytest.raises(ConsumerStateError, match="assigns a-0 to 'nobody'"):
        first.subscribe(["a", "b"])
    first.subscribe(["a"])
    assert settle(first) == [3]


def test_a_member_that_joins_a_group_writes_one_row(join: Join, tmp_path: Path) -> None:
    join().check_plan()
    with planning(tmp_path):
        second = join()
        second.check_plan()
        assert joins_of(tmp_path).read_bytes().count(b"\n") == 1
    assert second.check_plan()


def test_a_plan_of_a_large_group_is_left_alone_for_a_while(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "AT_ONCE_MAX", 0)
    first = join()
    with monkeypatch.context() as patch:
        patch.setattr(membership, "JOIN_PAUSE_NS", 10**12)
        patch.setattr(membership, "JOIN_PAUSE_NS_MAX", 10**12)
        second, third = join(), join()
        assert (second.check_plan(), third.check_plan()) == (False, False)
        assert 0 < third.pause_s <= 1000
        assert list(second.plan.members) == [first.member_id]
    monkeypatch.setattr(membership, "JOIN_PAUSE_NS", 0)
    assert third.check_plan()
    assert third.plan.epoch == 2
    assert settle(first, second, third) == [1, 1, 1]


def test_a_member_that_dies_at_any_call_of_its_join_leaves_nothing(join: Join, tmp_path: Path) -> None:
    """A child dies before its first system call, then before its second, and so on to its last."""
    first = join()
    settle(first)
    for count in itertools.count(1):
        has_died = dies_in_join(tmp_path, count)
        assert settle(first) == [3], f"after a death before call {count}"
        second = join()
        assert sorted(settle(first, second)) == [1, 2], f"after a death before call {count}"
        assert first.plan.members.keys() == {first.member_id, second.member_id}
        second.leave()
        assert settle(first) == [3]
        if not has_died:
            break
    assert count > 20


def dies_in_join(directory: Path, count: int) -> bool:
    """Joins in a child that kills itself before the system call of this number. Returns False if there was none."""
    child = os.fork()
    if not child:
        try:
            kill_before_call(count)
            assignors = Assignors.of(("cooperative-sticky",))
            member = Membership(os.fspath(directory), "g", count_of=lambda _topic: 3, assignors=assignors)
            member.subscribe(["a"])
            member.check_plan()
            member.take()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


CALLS = {"open", "close", "fcntl", "write", "pwrite", "replace", "ftruncate", "mkdir"}
"""Functions whose effects other processes see."""


def kill_before_call(count: int) -> None:
    """Kills this process before the call of this number to one of these functions."""
    left = itertools.count(count - 1, -1)

    def note(_frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in CALLS and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(note)


# --- the files of the group are removed or replaced


@pytest.mark.parametrize("removed", [".groups", ".groups/g.lock"])
def test_members_whose_files_are_removed_share_the_partitions_again(
    join: Join, tmp_path: Path, removed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = join(), join()
    settle(first, second)
    place, other = min(first.locks.owned), min(second.locks.owned)
    first.commit({place: offset(5)}, 1)
    second.commit({other: offset(6)}, 1)
    remove(tmp_path / removed)
    as_another_process(monkeypatch)
    third = join()
    assert sorted(settle(third, first, second)) == [1, 1, 1]
    assert set().union(*(member.locks.owned for member in (first, second, third))) == set(PLACES)
    assert stored(tmp_path) == {place: 5, other: 6}


def test_a_member_keeps_its_partitions_when_the_lock_file_is_replaced(join: Join, tmp_path: Path) -> None:
    member = join()
    settle(member)
    member.commit({PLACES[0]: offset(5)}, 1)
    lock = tmp_path / ".groups/g.lock"
    lock.rename(tmp_path / ".groups/aside")
    lock.touch()
    member.check_plan()
    assert (member.locks.owned, member.locks.has_its_name) == (set(PLACES), True)
    member.commit({PLACES[0]: offset(6)}, 1)
    assert stored(tmp_path) == {PLACES[0]: 6}


def test_a_member_commits_nothing_of_a_partition_that_it_lost_with_the_files(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = join()
    settle(first)
    first.commit({PLACES[0]: offset(2)}, 1)
    remove(tmp_path / ".groups")
    as_another_process(monkeypatch)
    second = join()
    settle(second)
    second.commit({PLACES[0]: offset(7)}, 1)
    with pytest.raises(ConsumerStateError, match="not assigned to this consumer"):
        first.commit({PLACES[0]: offset(3)}, 1)
    assert stored(tmp_path) == {PLACES[0]: 7}


def test_a_member_loses_everything_to_a_server_that_has_the_new_files(join: Join, tmp_path: Path) -> None:
    member = join()
    settle(member)
    remove(tmp_path / ".groups")
    server = GroupLock(os.fspath(tmp_path), "g")
    for _ in range(2):
        with pytest.raises(GroupModeError, match="coordinated by a server"):
            member.check_plan()
        assert member.locks.owned == set()
    server.release()
    assert settle(member) == [3]


def as_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later members do not share the open offsets files of this process."""
    monkeypatch.setattr(shared_offsets._OpenFiles, "files", {})


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


@pytest.mark.parametrize(("process_count", "pause_ns"), [(1, 30_000), (3, 90_000), (33, 990_000), (34, 1_000_000)])
def test_the_pause_of_joins_grows_with_the_processes_up_to_its_limit(process_count: int, pause_ns: int) -> None:
    rows = {str(number): SimpleNamespace(pid=number % process_count) for number in range(100)}
    member = SimpleNamespace(plan=SimpleNamespace(members=rows))
    assert Membership._join_pause_ns.fget(member) == pause_ns  # type: ignore[attr-defined]


def test_a_member_that_leaves_wakes_the_others_and_keeps_no_lock_in_a_copy_of_its_descriptor(
    join: Join, tmp_path: Path
) -> None:
    first, second = join(), join()
    assert settle(first, second) == [2, 1]
    copy = os.dup(first.locks._descriptor.number)
    try:
        os.utime(first.locks.path, ns=(0, 0))
        second.locks.wake()
        assert os.stat(first.locks.path).st_mtime_ns > 0
        assert os.path.getsize(first.locks.path) == 8
        os.utime(first.locks.path, ns=(0, 0))
        first.leave()
        assert os.stat(first.locks.path).st_mtime_ns > 0
        assert settle(second) == [3]
    finally:
        os.close(copy)


def test_the_bytes_of_the_lock_file_stay_where_other_releases_look_for_them() -> None:
    found = (member_locks.MODE_BYTE, member_locks.OFFSETS_BYTE, member_locks.PLANNER_BYTE, member_locks.MEMBERS_BYTE)
    assert found == (0, 1, 2, 1 << 20)
    assert (member_locks.MEMBERS_MAX, member_locks.PARTITIONS_BYTE, member_locks.DIGEST_BITS) == (4096, 1 << 32, 61)
