# SPDX-License-Identifier: Apache-2.0
"""Run a short round of each kind. The judge finds one planted fault of each kind in its history."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shmaccum import Consumer
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files import LogDirectory
from shmaccum.log.files.reader import PartitionReader
from tests.kafka.broker import LOOPBACK, held_port
from tests.kafka.proxy import RequestProxy
from tests.linear import linearizable, roles
from tests.linear.director import KINDS_OF_ROUNDS, Outcome, Round
from tests.linear.history import (
    Assigned,
    Committed,
    Committing,
    Ended,
    Ending,
    Event,
    History,
    Joined,
    Joining,
    Kind,
    Life,
    Log,
    Note,
    NotedEvents,
    Notes,
    Positions,
    Read,
    SendEvent,
    Sending,
    Sent,
    Told,
    code_of,
    codes_from,
    codes_in_values,
    codes_of,
    topic_name,
    values_of,
)
from tests.linear.judge import KINDS, judge
from tests.linear.linearizable import CallKind
from tests.linear.made import count_of, make
from tests.linear.roles import CONSUMERS_LEAVE, Places, Words, is_narrow, read_by_kafka
from tests.support.log_server import served
from tests.support.segment_log import make_batch, open_log

FETCH, LIST_OFFSETS = 1, 2
PARTITION_COUNT, RECORD_COUNT = 2, 10
PLACE = TopicPartition("linear-0", 0)
SHORT_S = 2.5

pytestmark = pytest.mark.xdist_group("linear")  # one process builds porcupine


def needs_porcupine(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that builds porcupine. A new checkout compiles Go's library for it, which takes 20 s."""
    missing = pytest.mark.skipif("linearizable.missing()", reason="no Go, or its module of porcupine is missing")
    marked: Callable[..., None] = pytest.mark.slow(missing(test))
    return marked


def small_history() -> History:
    """Two authors, a reader, and a group of two members. The second member takes the partition over."""
    first, second = code_of(1, 0), code_of(2, 3)
    codes = [first, second, first + 1, second + 1, first + 2]
    log = codes_of(*codes)
    history = History(log={PLACE: log}, shipped={PLACE: log})
    told = Told(20, PLACE, log[[0, 2, 4]], codes_of(0, 2, 4))
    history.producers = [[Sending(1, first, 3), Sent(first + 2), told], [Sending(1, second, 2), Sent(second + 1)]]
    history.readers["reader"] = [Life([Read(5, 6, PLACE, 0, log[:2])]), Life([Read(9, 10, PLACE, 0, log)])]
    history.groups["group"] = [
        Life([Assigned(1, 1, PLACE), Read(2, 2, PLACE, 0, log[:3]), Committed(3, 4, PLACE, 3)]),
        Life([Assigned(5, 5, PLACE), Read(6, 7, PLACE, 3, log[3:]), Committed(8, 9, PLACE, 5)]),
    ]
    return history


def small_transactions() -> History:
    """A committed transaction, an aborted one, and a visible one whose coordinator died in the commit."""
    codes = [code_of(producer, 0, number) for number in range(3) for producer in range(2)]
    log = codes_of(*codes[:2], *codes[4:])
    events: list[SendEvent] = [
        event
        for number in range(3)
        for code in codes[2 * number : 2 * number + 2]
        for event in (Joining(number + 1, codes_of(code), PLACE), Joined(number + 1, codes_of(code), is_refused=False))
    ]
    ends: list[SendEvent] = [
        Ending(1, 10),
        Ended(1, 20, is_committed=True),
        Ended(2, 30, is_committed=False),
        Ending(3, 40),
    ]
    history = History(log={PLACE: log}, producers=[[*events, *ends]])
    history.readers["reader"] = [Life([Read(15, 25, PLACE, 0, log[:2]), Read(45, 50, PLACE, 2, log[2:])])]
    return history


def loaded(history: History) -> History:
    """A copy whose parts are lists and arrays in memory."""
    return History(
        log={place: np.array(codes) for place, codes in history.log.items()},
        shipped=None if history.shipped is None else {one: np.array(codes) for one, codes in history.shipped.items()},
        producers=[list(events) for events in history.producers],
        readers=_loaded(history.readers),
        groups=_loaded(history.groups),
    )


def _loaded(named: Mapping[str, list[Life]]) -> dict[str, list[Life]]:
    return {name: [Life(list(life.events)) for life in lives] for name, lives in named.items()}


def events_of(life: Life) -> list[Any]:
    assert isinstance(life.events, list)
    return life.events


def told_of(history: History) -> tuple[list[Any], int]:
    """The notes of a producer with results in a narrow topic, and the index of the last of them."""
    for events in history.producers:
        assert isinstance(events, list)
        found = [index for index, one in enumerate(events) if isinstance(one, Told) and is_narrow(one.place.topic)]
        if found:
            return events, found[-1]
    raise AssertionError("no result is known")


def lose_from_log(history: History) -> None:
    """Remove the last record of a partition whose result a producer knows."""
    events, index = told_of(history)
    place, code = events[index].place, events[index].codes[-1]
    history.log[place] = history.log[place][history.log[place] != code]


def lose_in_shipping(history: History) -> None:
    assert history.shipped is not None
    place = next(place for place, codes in history.shipped.items() if len(codes))
    history.shipped[place] = history.shipped[place][:-1]


def double(log: Log | None) -> None:
    assert log is not None
    place = next(place for place, codes in log.items() if len(codes) and is_narrow(place.topic))
    log[place] = np.append(log[place], log[place][0])


def double_in_log(history: History) -> None:
    double(history.log)


def double_in_shipping(history: History) -> None:
    double(history.shipped)


def swap_in_log(history: History) -> None:
    """Swap two records of one author."""
    for place, codes in history.log.items():
        offsets: dict[int, int] = {}
        for offset, code in enumerate(codes.tolist() if is_narrow(place.topic) else ()):
            earlier = offsets.setdefault(code >> 32, offset)
            if earlier != offset:
                codes[[earlier, offset]] = codes[[offset, earlier]]
                return
    raise AssertionError("no author has two records in a partition")


def swap_in_shipping(history: History) -> None:
    assert history.shipped is not None
    codes = next(codes for codes in history.shipped.values() if len(codes) > 1)
    codes[[0, 1]] = codes[[1, 0]]


def _last_read(life: Life) -> int:
    return max(number for number, event in enumerate(life.events) if isinstance(event, Read))


def skip_in_reader(history: History) -> None:
    life = next(iter(history.readers.values()))[-1]
    read = events_of(life)[_last_read(life)]
    events_of(life)[_last_read(life)] = read._replace(codes=read.codes[:-1])


def skip_in_group(history: History) -> None:
    """Remove the first record of a group's first read."""
    for life in next(iter(history.groups.values())):
        for number, event in enumerate(life.events):
            if isinstance(event, Read) and not event.position:
                events_of(life)[number] = event._replace(position=1, codes=event.codes[1:])


def read_again_in_group(history: History) -> None:
    life = next(life for life in next(iter(history.groups.values())) if any(isinstance(e, Read) for e in life.events))
    events_of(life).insert(_last_read(life), events_of(life)[_last_read(life)])


def withdraw_told_offset(history: History) -> None:
    events, index = told_of(history)
    events[index] = events[index]._replace(positions=events[index].positions + 1)


def withdraw_read_record(history: History) -> None:
    life = next(iter(history.readers.values()))[-1]
    for number, event in enumerate(life.events):
        if isinstance(event, Read) and is_narrow(event.place.topic):
            events_of(life)[number] = event._replace(codes=event.codes + 1)


def last_commit(history: History) -> tuple[list[Life], Committed]:
    """A group's last commit of records, and the lives of the group."""
    return max(
        (
            (lives, event)
            for lives in history.groups.values()
            for life in lives
            for event in life.events
            if isinstance(event, Committed) and event.position
        ),
        key=lambda found: found[1].end_ns,
    )


def withdraw_commit(history: History) -> None:
    """A member begins at 0 after the group has committed."""
    lives, commit = last_commit(history)
    ns = commit.end_ns + 1
    read = Read(ns + 1, ns + 2, commit.place, 0, history.log[commit.place])
    lives.append(Life([Assigned(ns, ns, commit.place), read]))


def commit_past_another_record(history: History) -> None:
    """A commit names the offset after a record that the member has not read."""
    lives, commit = last_commit(history)
    for life in lives:
        if commit in (events := events_of(life)):
            events[events.index(commit)] = commit._replace(position=commit.position + 1)


def commit_before_another_record(history: History) -> None:
    """The first commit names an offset before records that the member has read."""
    for lives in history.groups.values():
        for life in lives:
            for number, event in enumerate(life.events):
                if isinstance(event, Committed) and event.position:
                    events_of(life)[number] = event._replace(position=event.position - 1)
                    return
    raise AssertionError("no member has committed a record")


def lose_part_of_transaction(history: History) -> None:
    """The log lacks one record of a committed transaction of several."""
    numbers = {event.number for events in history.producers for event in events
               if isinstance(event, Ended) and event.is_committed}  # fmt: skip
    for event in (event for events in history.producers for event in events if isinstance(event, Joining)):
        codes = history.log.get(event.place, codes_of())
        if event.number in numbers and event.codes[-1] in codes and len(codes) > 1:
            history.log[event.place] = codes[codes != event.codes[-1]]
            return
    raise AssertionError("no transaction has a visible record")


def show_aborted_record(history: History) -> None:
    """A record of an aborted transaction is visible at the end."""
    numbers = {event.number for events in history.producers for event in events
               if isinstance(event, Ended) and not event.is_committed}  # fmt: skip
    for events in history.producers:
        joined = {event.codes[0] for event in events if isinstance(event, Joined) and not event.is_refused}
        for event in events:
            if isinstance(event, Joining) and event.number in numbers and event.codes[0] in joined:
                history.log[event.place] = np.append(history.log.get(event.place, codes_of()), event.codes[0])
                return
    raise AssertionError("no aborted transaction has a record")


Plant = Callable[[History], None]

PLANTED: dict[Plant, str] = {
    lose_from_log: "lost",
    lose_in_shipping: "lost",
    double_in_log: "doubled",
    double_in_shipping: "doubled",
    read_again_in_group: "doubled",
    swap_in_log: "out of order",
    swap_in_shipping: "out of order",
    skip_in_reader: "skipped",
    skip_in_group: "skipped",
    commit_past_another_record: "skipped",
    withdraw_told_offset: "withdrawn",
    withdraw_read_record: "withdrawn",
    withdraw_commit: "withdrawn",
}
PLANTED_IN_TRANSACTIONS: dict[Plant, str] = {lose_part_of_transaction: "in part", show_aborted_record: "in part"}
NOT_IN_THE_MODEL = {lose_in_shipping, double_in_shipping, swap_in_shipping, skip_in_reader}
"""Faults that porcupine cannot find: the model has no second log, and each read may begin anywhere."""
IN_THE_MODEL: list[Plant] = [
    *(plant for plant in PLANTED if plant not in NOT_IN_THE_MODEL),
    commit_before_another_record,
]


def planted(history: History, plant: Plant) -> History:
    copied = loaded(history)
    plant(copied)
    return copied


def find_all_planted(history: History, plants: Mapping[Plant, str] = PLANTED) -> None:
    """Plants each fault into a copy of a sound history."""
    for plant, kind in plants.items():
        assert judge(planted(history, plant)).counts[kind] > 0, f"{plant.__name__} was not found"


def test_the_judge_finds_each_planted_fault_and_nothing_in_a_sound_history() -> None:
    assert judge(small_history()).counts.total() == 0
    assert judge(small_transactions()).counts.total() == 0
    assert {*PLANTED.values(), *PLANTED_IN_TRANSACTIONS.values()} == set(KINDS)
    find_all_planted(small_history())
    find_all_planted(small_transactions(), PLANTED_IN_TRANSACTIONS)


@needs_porcupine
@pytest.mark.parametrize("sound", [small_history, small_transactions])
def test_porcupine_finds_nothing_in_a_sound_history(sound: Callable[[], History], tmp_path: Path) -> None:
    checked = linearizable.check(sound(), tmp_path / "calls")
    assert checked.faults == []
    assert checked.operations > 0


@needs_porcupine
@pytest.mark.parametrize("plant", [*IN_THE_MODEL, *PLANTED_IN_TRANSACTIONS], ids=lambda plant: plant.__name__)
def test_porcupine_finds_each_planted_fault(plant: Plant, tmp_path: Path) -> None:
    sound = small_transactions if plant in PLANTED_IN_TRANSACTIONS else small_history
    faults = linearizable.check(planted(sound(), plant), tmp_path / "calls").faults
    assert faults
    assert all(fault.startswith("Illegal ") for fault in faults)


@needs_porcupine
@pytest.mark.parametrize(("seen", "count"), [(3, 0), (5, 0), (4, 1)])
def test_porcupine_knows_that_a_commit_without_a_result_may_have_happened(
    seen: int, count: int, tmp_path: Path
) -> None:
    """A member commits 3, and dies while it commits 5. Its successor may begin only at 3 or 5."""
    history = small_history()
    first, second = history.groups["group"]
    log = history.log[PLACE]
    more: list[Event] = [Read(4, 4, PLACE, 3, log[3:]), Committing(4, PLACE, 5)]
    events_of(first).extend(more)
    second.events = [Assigned(6, 6, PLACE), Committing(7, PLACE, seen)]
    assert len(linearizable.check(history, tmp_path / "calls").faults) == count


def test_the_records_of_one_poll_are_one_read() -> None:
    """If one poll returned two lines with consecutive positions, they are one call."""
    log = codes_of(*range(6))
    history = History(log={PLACE: log})
    reads = [Read(1, 2, PLACE, 0, log[:2]), Read(1, 2, PLACE, 2, log[2:3]), Read(1, 2, PLACE, 4, log[4:5])]
    history.readers["reader"] = [Life([*reads, Read(3, 4, PLACE, 5, log[5:])])]
    ((_, calls),) = linearizable.histories_of(history)
    found = [(call.position, call.codes.tolist()) for call in calls if call.kind == CallKind.READ]
    assert found == [(0, [0, 1, 2]), (4, [4]), (5, [5])]


@needs_porcupine
def test_porcupine_finds_a_transaction_that_is_seen_before_its_commit(tmp_path: Path) -> None:
    history = small_transactions()
    history.readers["early"] = [Life([Read(5, 9, PLACE, 0, history.log[PLACE][:1])])]
    assert linearizable.check(history, tmp_path / "calls").faults == [f"Illegal partition {PLACE.topic}/0"]


@needs_porcupine
def test_porcupine_checks_each_segment_of_a_long_history(tmp_path: Path) -> None:
    """The last read is wrong, many idle moments after the first append."""
    count = 5000
    log = codes_of(*range(count))
    sends: list[SendEvent] = [event for code in range(count) for event in
             (Sending(10 * code, code, 1), Told(10 * code + 5, PLACE, log[[code]], log[[code]]))]  # fmt: skip
    history = History(log={PLACE: log}, producers=[sends])
    checked = linearizable.check(history, tmp_path / "calls")
    assert (checked.faults, checked.open_max) == ([], 1)
    assert checked.segments >= 5
    history.readers["reader"] = [Life([Read(10 * count - 12, 10 * count - 11, PLACE, count - 1, log[-1:])])]
    assert linearizable.check(history, tmp_path / "calls").faults == [f"Illegal partition {PLACE.topic}/0"]


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"PATH": ""}, "there is no Go"),
        ({"GOMODCACHE": "modules"}, "the module of porcupine cannot be fetched"),
    ],
)
def test_without_porcupine_nothing_is_checked_and_the_reason_is_known(
    variables: Mapping[str, str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "PATH" not in variables and shutil.which("go") is None:
        pytest.skip("there is no Go")
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setenv("GOPROXY", "off")
    linearizable.missing.cache_clear()
    try:
        checked = linearizable.check(small_history(), tmp_path / "calls")
    finally:
        linearizable.missing.cache_clear()
    assert str(checked) == f"not checked ({reason})"


def test_a_log_that_is_longer_than_a_chunk_is_judged_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault is next to a chunk boundary or spans it."""
    monkeypatch.setattr("tests.linear.judge.CHUNK", 8)
    log = codes_of(*range(30))

    def counts(codes: Sequence[int]) -> dict[str, int]:
        return dict(judge(History(log={PLACE: codes_of(*codes)}, producers=[[Sending(0, 0, 30), Sent(29)]])).counts)

    assert counts(log.tolist()) == {}
    assert counts([*range(8), *range(9, 30)]) == {"lost": 1}
    assert counts([*range(7), 8, 7, *range(9, 30)]) == {"out of order": 1}
    assert counts([*range(8), 7, *range(8, 30)]) == {"doubled": 1}
    assert counts([*range(16)]) == {"lost": 14}


def test_a_note_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    Notes(path).add_all([Note(Kind.READ, (2, 3, 0, 0, 7), codes_of(12, 13)), Note(Kind.COMMITTED, (4, 5, 0, 0, 9))])
    whole = path.read_bytes()
    found = []
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        found.append([type(event) for event in NotedEvents(path, Positions())])
    read_size, committed_size = 8 * 9, 8 * 7
    assert found == [*[[]] * read_size, *[[Read]] * committed_size, [Read, Committed]]
    (read, _) = NotedEvents(path, Positions())
    assert isinstance(read, Read)
    assert (*read[:4], read.codes.tolist()) == (2, 3, PLACE, 7, [12, 13])


def test_a_record_that_has_parts_of_another_one_is_found() -> None:
    codes, sizes = codes_of(7, 8, 9), codes_of(1, 3, 2)
    values = values_of(codes, sizes)
    assert codes_in_values(values).tolist() == codes.tolist()
    with pytest.raises(AssertionError, match="parts of another one"):
        codes_in_values([values[0], values[1][:8] + values[2], values[2]])


def fill(log: LogDirectory, topic: str) -> None:
    log.create_topic(topic)
    for partition in range(PARTITION_COUNT):
        codes = codes_from(code_of(partition, 0), RECORD_COUNT)
        log.partition(topic, partition).append([make_batch(values_of(codes, np.ones_like(codes)))])


@dataclass(frozen=True)
class Alone:
    """A log with one topic, served through a proxy to one member, which leaves when it has read some topics."""

    places: Places
    log: LogDirectory
    between: RequestProxy

    def read(self, *topics: str) -> None:
        rows = [f"{topic} {number} {RECORD_COUNT}\n" for topic in topics for number in range(PARTITION_COUNT)]
        self.places.ends.write_text("".join(rows))
        read_by_kafka(self.places, Notes(self.places.notes("kafka-0", 0)), random.Random(0))


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
    """A late response to ListOffsets would reset the member to the first offset, whatever the server does."""
    alone.read(PLACE.topic)
    assert alone.between.counts[FETCH] > 0
    assert alone.between.counts[LIST_OFFSETS] == 0


def test_a_member_of_librdkafka_subscribes_again_for_a_topic_that_it_lacks(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is created after the member has subscribed again."""
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


def test_a_made_history_of_blocks_is_sound_and_each_planted_fault_is_found(tmp_path: Path) -> None:
    wanted = 100_000
    history = make(tmp_path, wanted)
    verdict = judge(history)
    assert dict(verdict.counts) == {}
    assert abs(count_of(verdict, history) - wanted) < wanted / 50
    find_all_planted(history)
    last = next(reversed(history.log))
    history.log[last] = history.log[last][:-1]
    assert {"lost", "withdrawn"} <= judge(history).counts.keys()


def record_count(history: History) -> int:
    return sum(map(len, history.log.values()))


@pytest.mark.slow
def test_no_round_loses_doubles_reorders_skips_or_withdraws_a_record(
    tmp_path: Path, arena_name: str, seeded: Callable[[], random.Random]
) -> None:
    chance, total = seeded(), Outcome()
    rounds = {
        kind: Round(tmp_path / kind, arena_name, kind, SHORT_S, str(chance.getrandbits(32))) for kind in KINDS_OF_ROUNDS
    }
    for one in rounds.values():
        total.add(one.run())
    print(total)
    assert total.is_clean, "\n".join(total.lines())
    largest = max((rounds[kind].history for kind in KINDS_OF_ROUNDS if kind != "transact"), key=record_count)
    find_all_planted(largest)
    for plant in [] if linearizable.missing() else IN_THE_MODEL:
        checked = linearizable.check(planted(largest, plant), tmp_path / "calls")
        assert checked.faults, f"{plant.__name__} was not found"
    assert total.kills.total() > 0
    assert total.record_count > 0


def commit_one_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduces the first commit of some offsets by one, but not the next one of the same offsets."""
    real = Consumer.commit
    last: dict[TopicPartition, int] = {}

    def commit(consumer: Consumer, offsets: dict[TopicPartition, int]) -> None:
        nonlocal last
        is_first, last = offsets != last, offsets
        real(consumer, {place: max(offset - is_first, 0) for place, offset in offsets.items()})

    monkeypatch.setattr(Consumer, "commit", commit)


def poll_one_less(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Consumer.poll

    def poll(consumer: Consumer, **options: Any) -> dict[TopicPartition, list[Any]]:
        return {place: records[1:] for place, records in real(consumer, **options).items()}

    monkeypatch.setattr(Consumer, "poll", poll)


def take_no_record_for_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionReader, "is_aborted", lambda *_: False)


MUTANT_ROUNDS_MAX = 6

MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, str]] = {
    commit_one_less: ("beside", "withdrawn"),
    poll_one_less: ("beside", "skipped"),
    take_no_record_for_aborted: ("transact", "in part"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_mutant_of_the_product_is_found(
    mutate: Callable[[pytest.MonkeyPatch], None],
    tmp_path: Path,
    arena_name: str,
    seeded: Callable[[], random.Random],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The processes of a round are forked from this one, so they run the mutant. A round may not trigger it."""
    kind, fault = MUTANTS[mutate]
    mutate(monkeypatch)
    chance, total, no_go = seeded(), Outcome(), linearizable.missing()
    while total.rounds < MUTANT_ROUNDS_MAX and not (total.verdict.counts[fault] and (total.checked.faults or no_go)):
        folder = tmp_path / str(total.rounds)
        total.add(Round(folder, arena_name, kind, SHORT_S, str(chance.getrandbits(32))).run())
    assert total.verdict.counts[fault] > 0, str(total)
    assert total.checked.faults or no_go, str(total)
