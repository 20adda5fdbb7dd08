# SPDX-License-Identifier: Apache-2.0
"""A short round of each kind; and the judge finds one planted fault of each kind in the history that it recorded."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files import LogDirectory
from tests.kafka.broker import LOOPBACK, held_port
from tests.kafka.proxy import RequestProxy
from tests.linear import roles
from tests.linear.director import KINDS_OF_ROUNDS, Outcome, Round
from tests.linear.history import Assigned, Committed, History, Life, Notes, Read, Told, code_of, read_consumer
from tests.linear.judge import KINDS, judge
from tests.linear.roles import CONSUMERS_LEAVE, Places, Words, read_by_kafka, topic_name
from tests.support.log_server import served
from tests.support.segment_log import make_batch, open_log

FETCH, LIST_OFFSETS = 1, 2
PARTITION_COUNT, RECORD_COUNT = 2, 10
PLACE = TopicPartition("linear-0", 0)
SHORT_S = 2.5


def small_history() -> History:
    """Two authors, a reader, and a group of two members of which the second takes the partition over."""
    first, second = code_of(1, 0), code_of(2, 3)
    codes = [first, second, first + 1, second + 1, first + 2]
    history = History(log={PLACE: codes}, shipped={PLACE: list(codes)}, sent={first >> 32: 2, second >> 32: 1})
    history.told = [Told(codes[0], PLACE, 0), Told(codes[4], PLACE, 4)]
    history.readers["reader"] = [Life([Read(5, PLACE, 0, codes[:2])]), Life([Read(9, PLACE, 0, list(codes))])]
    history.groups["group"] = [
        Life([Assigned(1, PLACE), Read(2, PLACE, 0, codes[:3]), Committed(3, 4, PLACE, 3)]),
        Life([Assigned(5, PLACE), Read(6, PLACE, 3, codes[3:]), Committed(7, 8, PLACE, 5)]),
    ]
    return history


def lose_from_log(history: History) -> None:
    codes = next(codes for codes in history.log.values() if codes)
    last = codes.pop()
    history.sent[last >> 32] = max(history.sent.get(last >> 32, -1), last & 0xFFFFFFFF)


def lose_in_shipping(history: History) -> None:
    next(codes for codes in history.shipped.values() if codes).pop()


def double_in_log(history: History) -> None:
    codes = next(codes for codes in history.log.values() if codes)
    codes.append(codes[0])


def double_in_shipping(history: History) -> None:
    codes = next(codes for codes in history.shipped.values() if codes)
    codes.append(codes[0])


def swap_in_log(history: History) -> None:
    """Two records of one author change their places."""
    for codes in history.log.values():
        offsets: dict[int, int] = {}
        for offset, code in enumerate(codes):
            earlier = offsets.setdefault(code >> 32, offset)
            if earlier != offset:
                codes[earlier], codes[offset] = codes[offset], codes[earlier]
                return
    raise AssertionError("no author has two records in a partition")


def swap_in_shipping(history: History) -> None:
    codes = next(codes for codes in history.shipped.values() if len(codes) > 1)
    codes[0], codes[1] = codes[1], codes[0]


def _last_read(life: Life) -> int:
    return max(number for number, event in enumerate(life.events) if isinstance(event, Read))


def skip_in_reader(history: History) -> None:
    life = next(iter(history.readers.values()))[-1]
    read = life.events[_last_read(life)]
    assert isinstance(read, Read)
    life.events[_last_read(life)] = read._replace(codes=read.codes[:-1])


def skip_in_group(history: History) -> None:
    """The first read of a group lacks its first record."""
    for life in next(iter(history.groups.values())):
        for number, event in enumerate(life.events):
            if isinstance(event, Read) and not event.offset:
                life.events[number] = event._replace(offset=1, codes=event.codes[1:])


def read_again_in_group(history: History) -> None:
    life = next(life for life in next(iter(history.groups.values())) if any(isinstance(e, Read) for e in life.events))
    life.events.insert(_last_read(life), life.events[_last_read(life)])


def withdraw_told_offset(history: History) -> None:
    history.told[0] = history.told[0]._replace(offset=history.told[0].offset + 1)


def withdraw_read_record(history: History) -> None:
    read = next(event for event in next(iter(history.readers.values()))[-1].events if isinstance(event, Read))
    read.codes[0] += 1


def withdraw_commit(history: History) -> None:
    """A member begins at 0 after the group has committed."""
    commit = max(
        (event for lives in history.groups.values() for life in lives for event in life.events
         if isinstance(event, Committed) and event.offset),
        key=lambda commit: commit.end_ns,
    )  # fmt: skip
    ns = commit.end_ns + 1
    codes = history.log[commit.place]
    lives = next(lives for lives in history.groups.values() if any(commit in life.events for life in lives))
    lives.append(Life([Assigned(ns, commit.place), Read(ns, commit.place, 0, list(codes))]))


PLANTED: dict[Callable[[History], None], str] = {
    lose_from_log: "lost",
    lose_in_shipping: "lost",
    double_in_log: "doubled",
    double_in_shipping: "doubled",
    read_again_in_group: "doubled",
    swap_in_log: "out of order",
    swap_in_shipping: "out of order",
    skip_in_reader: "skipped",
    skip_in_group: "skipped",
    withdraw_told_offset: "withdrawn",
    withdraw_read_record: "withdrawn",
    withdraw_commit: "withdrawn",
}


def find_all_planted(history: History) -> None:
    """Plants each fault into a copy of a sound history."""
    recorded = pickle.dumps(history)
    for plant, kind in PLANTED.items():
        copied = pickle.loads(recorded)
        plant(copied)
        assert judge(copied).counts[kind] > 0, f"{plant.__name__} was not found"


def test_the_judge_finds_each_planted_fault_and_nothing_in_a_sound_history() -> None:
    assert judge(small_history()).counts.total() == 0
    assert set(PLANTED.values()) == set(KINDS)
    find_all_planted(small_history())


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    Notes(path).add("begin", 0)
    with path.open("ab") as file:
        file.write(b"read 1 linear-0 0 7 12")
    notes = Notes(path)
    notes.add("begin", 1)
    notes.add("read", 2, "linear-0", 0, 7, 12, 13)
    assert read_consumer(path) == [Life(), Life([Read(2, PLACE, 7, [12, 13])])]


def fill(log: LogDirectory, topic: str) -> None:
    log.create_topic(topic)
    for partition in range(PARTITION_COUNT):
        values = [b"%d" % code_of(partition, 0, number) for number in range(RECORD_COUNT)]
        log.partition(topic, partition).append([make_batch(values)])


@dataclass(frozen=True)
class Alone:
    """A log with one topic, served through a proxy to one member that leaves when it has read all of some topics."""

    places: Places
    log: LogDirectory
    between: RequestProxy

    def read(self, *topics: str) -> None:
        rows = [f"{topic} {number} {RECORD_COUNT}\n" for topic in topics for number in range(PARTITION_COUNT)]
        self.places.ends.write_text("".join(rows))
        read_by_kafka(self.places, "kafka-0", random.Random(0))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    with contextlib.closing(held_port()) as held, open_log(tmp_path / "log", partitions=PARTITION_COUNT) as log:
        port = held.getsockname()[1]
        places = Places(tmp_path, "", f"{LOOPBACK}:{port}")
        fill(log, PLACE.topic)
        Words(places.words).phase = CONSUMERS_LEAVE
        with served(places.log, is_writable=False, advertised_listener=places.address) as address:
            between = RequestProxy(int(address.rpartition(":")[2]), port)
            try:
                yield Alone(places, log, between)
            finally:
                between.close()


def test_a_member_of_librdkafka_looks_no_offset_up(alone: Alone) -> None:
    """A late answer to ListOffsets would take it back to the first offset, whatever the server does."""
    alone.read(PLACE.topic)
    assert alone.between.counts[FETCH] > 0
    assert alone.between.counts[LIST_OFFSETS] == 0


def test_a_member_of_librdkafka_subscribes_again_for_a_topic_that_it_lacks(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the topic is made when it has done so."""
    later = topic_name(1)
    real_begins = roles._begins
    calls = []

    def begins(consumer: Any, given: list[Any]) -> list[Any]:
        calls.append(given)
        if len(calls) == 2:
            fill(alone.log, later)
        return real_begins(consumer, given)

    monkeypatch.setattr(roles, "_begins", begins)
    alone.read(PLACE.topic, later)
    assert len(calls) > 1


@pytest.mark.slow
def test_no_round_loses_doubles_reorders_skips_or_withdraws_a_record(
    tmp_path: Path, arena_name: str, seeded: Callable[[], random.Random]
) -> None:
    chance, total = seeded(), Outcome()
    rounds = [
        Round(tmp_path / kind, arena_name, kind, SHORT_S, str(chance.getrandbits(32))) for kind in KINDS_OF_ROUNDS
    ]
    for one in rounds:
        total.add(one.run())
    print(total)
    assert total.is_clean, "\n".join((*total.failures, *total.verdict.descriptions))
    find_all_planted(min((one.history for one in rounds), key=History.read_count))
    assert total.kills.total() > 0
    assert total.record_count > 0
