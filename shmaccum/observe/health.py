# SPDX-License-Identifier: Apache-2.0
"""The health of an arena: its troubles as sentences, and the probe that each of them fails.

``live``
    Processes can append, and the sender makes progress. A supervisor restarts a program that is not live.
``ready``
    Records are delivered, and buffers are free. A load balancer sends no work to a program that is not ready.
``well``
    Nothing needs attention: no topic is stuck, no batch is damaged, no process is stopped, and the sender can
    write all of its files.

Each question includes the ones above it, so an arena that is not live is neither ready nor well. There is one
exception: an idle arena (`Observation.is_idle`) is well, although it is not ready before a sender starts. A probe only
reports and changes nothing in the arena.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shmaccum.common.units import format_count, format_duration_ns
from shmaccum.observe.limited_topics import LimitedTopic
from shmaccum.observe.observation import Observation

SILENCE_NS_MAX = 30_000_000_000
"""A sender updates its heartbeat each second, so after this time it is stopped or blocked in its sink."""
PATIENCE_NS_MAX = 10_000_000_000
"""The longest time that a partition may be stuck, or that a thread may wait because its topic holds its share."""
REPORT_NS_MAX = 60_000_000_000
"""The age up to which a failed start counts. A supervisor repeats the report at least every ten seconds."""


class Question(enum.IntEnum):
    """The questions of a probe. A later one includes the earlier ones."""

    LIVE = 0
    READY = 1
    WELL = 2


@dataclass(frozen=True)
class Trouble:
    """A problem of an arena.

    Attributes:
        kind: a stable word for machines, such as "no_sender".
        question: the first question whose answer is no because of it.
        sentence: the problem and its remedy, for people.
    """

    kind: str
    question: Question
    sentence: str

    def as_json(self) -> dict[str, Any]:
        """Returns a JSON document with stable keys."""
        return {"kind": self.kind, "question": self.question.name.lower(), "sentence": self.sentence}


def _removed(seen: Observation) -> str | None:
    if not seen.is_removed:
        return None
    return "the arena was removed and accepts no more records: restart the processes that use it"


def _poisoned(seen: Observation) -> str | None:
    if seen.poisoned is None:
        return None
    return f"the arena is poisoned ({seen.poisoned}) and accepts no more work: export its records (shmaccum recover)"


def _silent_sender(seen: Observation) -> str | None:
    age_ns = seen.sender.heartbeat_age_ns
    if not seen.sender.is_alive or age_ns is None or age_ns <= SILENCE_NS_MAX:
        return None
    return f"the sender {_named(seen)}has not renewed its heartbeat for {format_duration_ns(age_ns)}: restart it"


def _no_sender(seen: Observation) -> str | None:
    if seen.sender.is_alive:
        return None
    waiting = format_count(seen.left_record_count, "record waits", "records wait")
    failed = (error.text for error in seen.errors if error.kind == "not_kept" and error.age_ns <= REPORT_NS_MAX)
    return "; ".join((f"no sender is running, and {waiting}: start one (shmaccum sender)", *failed))


def _stopped_sender(seen: Observation) -> str | None:
    if seen.sender.state != "stopped":
        return None
    return f"the sender {_named(seen)}is stopped: continue it (kill -CONT {seen.sender.pid})"


def _outage(seen: Observation) -> str | None:
    return seen.delivery_clock.sentence() if seen.delivery_clock.outage_ns is not None else None


def _exhausted(seen: Observation) -> str | None:
    if seen.slots["FREE"] or not seen.waiting_count:
        return None
    threads = format_count(seen.waiting_count, "thread waits", "threads wait")
    return f"all buffers are in use, and {threads} for one: the sink is too slow, or the arena is too small"


def _stuck_topics(seen: Observation) -> list[LimitedTopic]:
    """Return the topics that were stuck for too long while records of them wait."""
    return [
        topic
        for topic in seen.limited_topics
        if (topic.stuck_age_ns or 0) > PATIENCE_NS_MAX
        and (topic.held_slot_count or topic.waiting_count or topic.overflow_batch_count)
    ]


def _stuck(seen: Observation) -> str | None:
    """Return a sentence on the stuck topic that holds most."""
    stuck = _stuck_topics(seen)
    if not stuck:
        return None
    worst = stuck[0]
    facts = [f"it holds {worst.held_slot_count:,} of {format_count(seen.slot_count, 'buffer')}"]
    if worst.waiting_count:
        facts.append(f"{format_count(worst.waiting_count, 'thread waits', 'threads wait')} for one")
    if worst.overflow_batch_count:
        facts.append(f"at most {format_count(worst.overflow_batch_count, 'batch', 'batches')} are in the overflow")
    return (
        f"nothing has been delivered to {worst.stuck_partition_count} of "
        f"{format_count(worst.partition_count, 'partition')} of topic {worst.topic!r} for "
        f"{format_duration_ns(worst.stuck_age_ns or 0)}: {worst.why}; {', and '.join(facts)}{_others(stuck)}: check "
        "the brokers"
    )


def _at_share(seen: Observation) -> str | None:
    """Return a sentence on a topic that holds its share of the buffers while threads wait for one."""
    waiting = [
        topic for topic in seen.limited_topics if not topic.is_stuck and (topic.waiting_age_ns or 0) > PATIENCE_NS_MAX
    ]
    if not waiting:
        return None
    worst = waiting[0]
    threads = format_count(worst.waiting_count, "thread waits", "threads wait")
    return (
        f"topic {worst.topic!r} holds {worst.held_slot_count:,} of {format_count(seen.slot_count, 'buffer')}, and "
        f"{threads} for one, for {format_duration_ns(worst.waiting_age_ns or 0)}: {worst.why}{_others(waiting)}: the "
        "sink is too slow, or the arena is too small"
    )


def _others(topics: Sequence[LimitedTopic]) -> str:
    return f" (and {format_count(len(topics) - 1, 'other topic')})" if len(topics) > 1 else ""


def _damaged(seen: Observation) -> str | None:
    if not seen.slots["BAD"]:
        return None
    kept = format_count(seen.slots["BAD"], "damaged batch is kept", "damaged batches are kept")
    topics = ", ".join(f"{topic} {format_count(count, 'record')}" for topic, count in sorted(seen.damaged.items()))
    return f"{kept} ({topics}): export them (shmaccum recover --export)"


def _retried(seen: Observation) -> str | None:
    """Return a sentence on a partition whose batches the sink rejects. `_stuck` is for stuck topics."""
    stuck = {topic.topic for topic in _stuck_topics(seen)}
    reports = {
        error.place: error for error in seen.errors if error.kind == "retried" and error.age_ns <= SILENCE_NS_MAX
    }
    late = [
        (queue.oldest_age_ns, reports[place].text)
        for queue in seen.partitions
        if (place := f"{queue.topic}-{queue.partition}") in reports
        and not (queue.stuck and queue.topic in stuck)
        and (queue.oldest_age_ns or 0) > SILENCE_NS_MAX
    ]
    if not late or not seen.sender.is_alive:
        return None
    age_ns, text = max(late)
    others = f" (and {format_count(len(late) - 1, 'other partition')})" if len(late) > 1 else ""
    return f"its oldest record has waited for {format_duration_ns(age_ns or 0)}, and {text}{others}"


def _impaired(seen: Observation) -> str | None:
    """Return a sentence on a recent failure of the overflow, the dead letters or the wake FIFO."""
    lately = (error.text for error in seen.errors if error.kind == "impaired" and error.age_ns <= SILENCE_NS_MAX)
    return "; ".join(lately) or None if seen.sender.is_alive else None


def _stopped_process(seen: Observation) -> str | None:
    stopped = [each for each in seen.processes if each.is_stopped and each.pid != seen.sender.pid]
    if not stopped:
        return None
    names = ", ".join(f"{each.name} ({each.pid})" for each in stopped)
    are = "is" if len(stopped) == 1 else "are"
    their = "keeps its" if len(stopped) == 1 else "keep their"
    pids = " ".join(str(each.pid) for each in stopped)
    return f"{names} {are} stopped and {their} buffers: kill -CONT {pids}"


def _fallback(seen: Observation) -> str | None:
    """Return a sentence on the processes that do not use the arena although it can be read."""
    gone = [f"{each.name} ({each.pid})" for each in seen.processes if each.is_on_fallback]
    if not gone:
        return None
    send = "sends its records" if len(gone) == 1 else "send their records"
    return f"{', '.join(gone)} {send} elsewhere (on_unusable): restart them when the arena works again"


def _named(seen: Observation) -> str:
    return "" if seen.sender.pid is None else f"{seen.sender.name} ({seen.sender.pid}) "


TROUBLES: Final[Mapping[str, tuple[Question, Callable[[Observation], str | None]]]] = {
    "removed": (Question.LIVE, _removed),
    "poisoned": (Question.LIVE, _poisoned),
    "silent_sender": (Question.LIVE, _silent_sender),
    "no_sender": (Question.READY, _no_sender),
    "stopped_sender": (Question.READY, _stopped_sender),
    "outage": (Question.READY, _outage),
    "exhausted": (Question.READY, _exhausted),
    "stuck": (Question.WELL, _stuck),
    "at_share": (Question.WELL, _at_share),
    "retried": (Question.WELL, _retried),
    "impaired": (Question.WELL, _impaired),
    "damaged": (Question.WELL, _damaged),
    "stopped_process": (Question.WELL, _stopped_process),
    "fallback": (Question.WELL, _fallback),
}
"""The troubles by kind: the first question with the answer no, and the sentence. The worst come first."""


def troubles(seen: Observation, question: Question = Question.WELL) -> Iterator[Trouble]:
    """Yield the troubles because of which the answer to a question is no."""
    for kind, (first, sentence_of) in TROUBLES.items():
        if kind == "no_sender" and question is Question.WELL and seen.is_idle:
            continue
        if first <= question and (sentence := sentence_of(seen)) is not None:
            yield Trouble(kind, first, sentence)
