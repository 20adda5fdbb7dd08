# SPDX-License-Identifier: Apache-2.0
"""The troubles of an arena: each has a message, and makes its check and later ones false."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.reports import Kind, Report
from shmaccum.observe.health import PATIENCE_NS_MAX, REPORT_NS_MAX, SILENCE_NS_MAX, TROUBLES, Question, troubles
from shmaccum.observe.limited_topics import AT_SHARE, LimitedTopic
from shmaccum.observe.observation import ErrorFacts, Observation, Observer, PartitionFacts
from tests.support.accumulator import Accumulator


@pytest.fixture
def seen(arena: Arena) -> Observation:
    """An observation of an arena without troubles."""
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        return Observer(arena).observe()


def changed(seen: Observation, **changes: Any) -> Observation:
    return seen._replace(**changes)


def with_sender(seen: Observation, **changes: Any) -> Observation:
    return changed(seen, sender=seen.sender._replace(**changes))


def with_clock(seen: Observation, **changes: Any) -> Observation:
    return changed(seen, delivery_clock=seen.delivery_clock._replace(**changes))


def with_slots(seen: Observation, **counts: int) -> Mapping[str, int]:
    return {**dict.fromkeys(seen.slots, 0), **counts}


def with_stopped_process(seen: Observation) -> Observation:
    process = seen.processes[0]._replace(pid=4711, name="worker", state="stopped")
    return changed(seen, processes=(*seen.processes, process))


def with_fallback(seen: Observation) -> Observation:
    """The same with a process that uses its fallback."""
    process = seen.processes[0]._replace(pid=4711, name="worker", is_on_fallback=True)
    return changed(seen, processes=(*seen.processes, process))


def with_limited(seen: Observation, **facts: Any) -> Observation:
    """The same with a topic at a limit."""
    topic = LimitedTopic("flights", 3, 0, {}, "it has no leader", None, 8, 8 * 4096, 0.5, 9, 0, None, 0)
    return changed(seen, limited_topics=(topic._replace(**facts),))


ILL: Mapping[str, tuple[Callable[[Observation], Observation], str]] = {
    "removed": (lambda seen: changed(seen, is_removed=True), "restart the processes"),
    "poisoned": (lambda seen: changed(seen, poisoned="a lock has two owners"), "a lock has two owners"),
    "silent_sender": (
        lambda seen: with_sender(seen, heartbeat_age_ns=SILENCE_NS_MAX + 1),
        "not renewed its heartbeat for 30 s",
    ),
    "no_sender": (
        lambda seen: changed(with_sender(seen, is_alive=False), queued_record_count=1),
        "no sender is running, and 1 record waits",
    ),
    "stopped_sender": (lambda seen: with_sender(seen, state="stopped"), "kill -CONT"),
    "outage": (lambda seen: with_clock(seen, outage="no broker answers", outage_ns=7 * 10**9), "no broker answers"),
    "exhausted": (
        lambda seen: changed(seen, slots=with_slots(seen, READY=16), waiting_count=2),
        "2 threads wait for one",
    ),
    "stuck": (
        lambda seen: with_limited(seen, stuck_partition_count=1, stuck_age_ns=11 * 10**9, waiting_count=2),
        (
            "nothing has been delivered to 1 of 3 partitions of topic 'flights' for 11 s: it has no leader; it holds "
            "8 of 16 buffers, and 2 threads wait for one: check the brokers"
        ),
    ),
    "at_share": (
        lambda seen: with_limited(seen, waiting_count=1, waiting_age_ns=11 * 10**9, why=AT_SHARE),
        f"topic 'flights' holds 8 of 16 buffers, and 1 thread waits for one, for 11 s: {AT_SHARE}: the sink is too",
    ),
    "retried": (
        lambda seen: changed(
            seen,
            partitions=(PartitionFacts("flights", 3, 1, 2, 100, SILENCE_NS_MAX + 10**9),),
            errors=(ErrorFacts("OS", "flights-3 is tried again: it has no leader", 9, 10**9, "retried", "flights-3"),),
        ),
        "its oldest record has waited for 31 s, and flights-3 is tried again: it has no leader",
    ),
    "impaired": (
        lambda seen: changed(seen, errors=(ErrorFacts("OS", "the overflow cannot be written", 9, 10**9, "impaired"),)),
        "the overflow cannot be written",
    ),
    "damaged": (
        lambda seen: changed(seen, slots=with_slots(seen, FREE=14, BAD=2), damaged={"flights": 3}),
        "2 damaged batches are kept (flights 3 records)",
    ),
    "stopped_process": (with_stopped_process, "worker (4711) is stopped and keeps its buffers: kill -CONT 4711"),
    "fallback": (with_fallback, "worker (4711) sends its records elsewhere"),
}


def test_an_arena_in_which_nothing_is_wrong_has_no_trouble(seen: Observation) -> None:
    assert list(troubles(seen)) == []


def test_each_trouble_has_a_case_here() -> None:
    assert set(ILL) == set(TROUBLES)


@pytest.mark.parametrize("kind", ILL)
def test_a_trouble_is_reported_and_answers_its_question_and_later_ones_with_no(seen: Observation, kind: str) -> None:
    make_ill, words = ILL[kind]
    ill = make_ill(seen)
    (found,) = troubles(ill)
    assert found.kind == kind
    assert words in found.sentence
    answers = {question: not list(troubles(ill, question)) for question in Question}
    assert answers == {question: question < found.question for question in Question}


@pytest.mark.parametrize(
    "well",
    [
        lambda seen: with_sender(seen, heartbeat_age_ns=SILENCE_NS_MAX),
        lambda seen: with_sender(seen, heartbeat_age_ns=None),
        lambda seen: changed(seen, slots=with_slots(seen, READY=16)),
        lambda seen: changed(seen, slots=with_slots(seen, FREE=1, READY=15), waiting_count=1),
        lambda seen: with_clock(seen, outage="no sender runs"),
        lambda seen: changed(seen, errors=(ErrorFacts("OS", "a disk is full", 9, SILENCE_NS_MAX + 1, "impaired"),)),
        lambda seen: with_limited(seen, stuck_partition_count=1, stuck_age_ns=PATIENCE_NS_MAX),
        lambda seen: with_limited(seen, stuck_partition_count=1, stuck_age_ns=PATIENCE_NS_MAX + 1, held_slot_count=0),
        lambda seen: with_limited(seen, waiting_count=1, waiting_age_ns=PATIENCE_NS_MAX),
    ],
    ids=[
        "30 s of silence",
        "before the first heartbeat",
        "full",
        "a wait that is about to end",
        "no outage yet",
        "a disk that was full",
        "a leader that is elected",
        "a stuck topic to which nobody sends",
        "a wait for the share of a topic that is about to end",
    ],
)
def test_a_state_that_passes_by_itself_is_no_trouble(
    seen: Observation, well: Callable[[Observation], Observation]
) -> None:
    assert list(troubles(well(seen))) == []


def test_a_supervisor_that_cannot_start_a_sender_reports_the_reason(arena: Arena) -> None:
    with Accumulator(arena) as accumulator:
        accumulator.append("t", 0, 1, None, b"v")
    Report(Kind.NOT_KEPT, "the log /var/lib/events cannot be opened").record(arena.native)
    Report(Kind.RETRIED, "it has no leader", "t-0").record(arena.native)
    seen = Observer(arena).observe()
    (found,) = troubles(seen)
    assert found.sentence == (
        "no sender is running, and 1 record waits: start one (shmaccum sender); the supervisor has no sender: the log "
        "/var/lib/events cannot be opened"
    )
    assert [(error.kind, error.place) for error in seen.errors] == [("not_kept", ""), ("retried", "t-0")]
    later = changed(seen, errors=tuple(replace(error, age_ns=REPORT_NS_MAX + 1) for error in seen.errors))
    assert "the supervisor has no sender" not in next(troubles(later)).sentence


def test_a_dead_sender_is_one_trouble_and_not_also_a_silent_or_broken_one(seen: Observation) -> None:
    dead = with_sender(seen, is_alive=False, heartbeat_age_ns=10**12, state=None)
    assert [found.kind for found in troubles(with_clock(dead, outage="no sender runs"))] == ["no_sender"]


def test_a_stuck_partition_is_reported_once(seen: Observation) -> None:
    make_ill, _ = ILL["retried"]
    retried = make_ill(seen)
    stuck = with_limited(retried, stuck_partition_count=1, stuck_age_ns=PATIENCE_NS_MAX + 1)
    queue = stuck.partitions[0]._replace(stuck="no_leader")
    assert [trouble.kind for trouble in troubles(changed(stuck, partitions=(queue,)))] == ["stuck"]
    again = with_limited(changed(stuck, partitions=(queue,)), stuck_partition_count=1, stuck_age_ns=1)
    assert [trouble.kind for trouble in troubles(again)] == ["retried"], "a new sender has just found it stuck"


def test_the_topic_that_holds_most_is_named(seen: Observation) -> None:
    ill = with_limited(seen, stuck_partition_count=1, stuck_age_ns=PATIENCE_NS_MAX + 1, overflow_batch_count=7)
    (topic,) = ill.limited_topics
    (found,) = troubles(changed(ill, limited_topics=(topic, topic._replace(topic="cargo", held_slot_count=1))))
    assert "topic 'flights'" in found.sentence
    assert "and at most 7 batches are in the overflow (and 1 other topic)" in found.sentence
