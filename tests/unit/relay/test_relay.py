# SPDX-License-Identifier: Apache-2.0
"""Relays write each output once, however a turn ends, or raise a clear error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmaccum import Consumer, OffsetAndMetadata, TopicPartition
from shmaccum.arena import Arena
from shmaccum.exceptions import (
    ArenaRemovedError,
    ConsumerStateError,
    DeliveryFailedError,
    FlushTimeoutError,
    InvalidArgumentError,
    ResultExpiredError,
)
from shmaccum.log.files import LogDirectory, LogReader
from shmaccum.producer import Producer
from shmaccum.relay import Relay, relay
from shmaccum.relay.origin import HEADER, RelayProgress
from tests.support.processes import run_in_child, wait_until
from tests.support.segment_log import make_batch
from tests.unit.relay.relaying import (
    GROUP,
    INPUT,
    OUTPUT,
    each_once,
    make_log,
    make_relay,
    outputs,
    relay_all,
    send_outputs,
    sending,
)

NUMBERS = range(10)
WANTED = [(partition, offset) for partition in range(2) for offset in range(5)]
OUTPUTS = [TopicPartition(OUTPUT, partition) for partition in range(2)]
Make = Callable[[], Relay]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "log"
    make_log(folder, NUMBERS)
    return folder


@pytest.fixture
def producer(arena: Arena) -> Iterator[Producer]:
    with Producer(arena, linger_ms=0) as producer:
        yield producer


@pytest.fixture
def make(log: Path, producer: Producer) -> Iterator[Make]:
    """Makes relays, which are closed at the end."""
    made: list[Relay] = []

    def make_one() -> Relay:
        made.append(make_relay(log, producer))
        return made[-1]

    yield make_one
    for one in made:
        one.close()


def test_each_output_is_there_once_with_its_origin(arena: Arena, log: Path, make: Make) -> None:
    with sending(arena, log):
        relay_all(make(), len(NUMBERS))
    assert outputs(log) == each_once(NUMBERS)
    origins = {record.headers for record in LogReader(log).partition(OUTPUT, 1).records()}
    wanted = {((HEADER, f"{GROUP}/{INPUT}-{partition}/{offset}/1".encode()),) for partition, offset in WANTED}
    assert origins == wanted
    with Consumer(log, group_id=GROUP) as observer:
        assert [observer.committed(TopicPartition(INPUT, number)) for number in range(2)] == [5, 5]


def test_the_last_commit_has_the_ends_of_the_outputs(arena: Arena, log: Path, make: Make) -> None:
    with sending(arena, log):
        first = make()
        with first.turn(timeout_ms=1000, max_records=7) as records:
            for record in records:
                send_outputs(first, record)
        first.close()
        relay_all(make(), len(NUMBERS) - len(records))
    with Consumer(log, group_id=GROUP) as observer:
        committed = [observer.committed(TopicPartition(INPUT, number), metadata=True) for number in range(2)]
    progress = [RelayProgress.of(each.metadata) for each in committed if isinstance(each, OffsetAndMetadata)]
    assert dict.fromkeys(OUTPUTS, len(NUMBERS)) in [each.ends for each in progress if each is not None]


class CutShortError(Exception):
    """Ends a turn."""


def cut_short(relay: Relay, sent: int, before: Callable[[], object] = lambda: None) -> None:
    """Run a turn that raises after this many outputs."""
    with contextlib.suppress(CutShortError), relay.turn(timeout_ms=1000) as records:
        before()
        for index in range(sent):
            record = records[index // 2]
            relay.send(record, OUTPUT, (record.value or b"") + b".%d" % (index % 2), partition=index % 2)
        raise CutShortError


@pytest.mark.parametrize("sent", [0, 1, 4])
def test_a_turn_that_raises_is_given_back_and_its_outputs_are_not_sent_again(
    arena: Arena, log: Path, make: Make, sent: int
) -> None:
    with sending(arena, log):
        one = make()
        cut_short(one, sent)
        relay_all(one, len(NUMBERS))
    assert outputs(log) == each_once(NUMBERS)


def test_a_turn_that_raises_without_its_partitions_raises_the_error_of_its_block(
    arena: Arena, log: Path, make: Make
) -> None:
    with sending(arena, log):
        one = make()
        cut_short(one, 0, one.consumer.unsubscribe)
        relay_all(make(), len(NUMBERS))
    assert outputs(log) == each_once(NUMBERS)


@pytest.mark.parametrize("sends", [True, False])
def test_a_turn_whose_partitions_were_given_up_in_its_block_commits_nothing(
    arena: Arena, log: Path, make: Make, sends: bool
) -> None:
    def give_up(one: Relay) -> None:
        with one.turn(timeout_ms=1000) as records:
            send_outputs(one, records[0])
            one.consumer.unsubscribe()
            if sends:
                send_outputs(one, records[0])

    with sending(arena, log):
        with pytest.raises(ConsumerStateError, match="within the turn"):
            give_up(make())
        relay_all(make(), len(NUMBERS))
    assert outputs(log) == each_once(NUMBERS)


def test_outputs_that_wait_in_the_arena_are_known_to_the_next_owner(
    arena: Arena, producer: Producer, log: Path, make: Make
) -> None:
    first = make()

    def stop_the_sender() -> None:
        producer.partitions_for(OUTPUT)
        sender.stop()
        wait_until(lambda: not arena.native.sender_is_alive, "the sender has left")

    with sending(arena, log) as sender:
        cut_short(first, 7, stop_the_sender)
    first.close()
    assert not outputs(log)
    with sending(arena, log):
        relay_all(make(), len(NUMBERS))
    assert outputs(log) == each_once(NUMBERS)


def test_known_outputs_outlive_turns_that_are_smaller_than_the_lost_one(arena: Arena, log: Path, make: Make) -> None:
    with sending(arena, log):
        first = make()
        cut_short(first, 2 * len(NUMBERS))
        for _ in range(3):  # a new owner after each small turn
            with first.turn(timeout_ms=1000, max_records=2) as records:
                for record in records:
                    send_outputs(first, record)
            first.close()
            first = make()
        relay_all(first, len(NUMBERS) - 6)
    assert outputs(log) == each_once(NUMBERS)


def test_two_members_share_the_partitions(arena: Arena, log: Path, make: Make) -> None:
    with sending(arena, log):
        members = [make(), make()]
        done = 0
        while done < len(NUMBERS):
            for member in members:
                with member.turn(max_records=1) as records:
                    for record in records:
                        send_outputs(member, record)
                done += len(records)
        assert [len(member.consumer.assignment()) for member in members] == [1, 1]
    assert outputs(log) == each_once(NUMBERS)


def test_a_failed_output_is_raised_and_sent_again(
    arena: Arena, log: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise DeliveryFailedError("the sink refused it")

    with sending(arena, log):
        one = make()
        with monkeypatch.context() as patch:
            patch.setattr(relay, "_is_delivered", fail)
            with pytest.raises(DeliveryFailedError), one.turn(timeout_ms=1000) as records:
                send_outputs(one, records[0])
        relay_all(one, len(NUMBERS))
    assert outputs(log) == each_once(NUMBERS)


def test_outputs_whose_results_were_overwritten_are_looked_for_in_the_log(
    arena: Arena, log: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_is_delivered", lambda _future: False)
    with sending(arena, log):
        relay_all(make(), len(NUMBERS))
    assert outputs(log) == each_once(NUMBERS)


def test_an_output_without_a_result_that_is_not_in_the_log_is_not_committed(
    arena: Arena, log: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost:
        value = None

        def get(self, _timeout: float) -> None:
            raise ResultExpiredError("overwritten")

    with sending(arena, log):
        one = make()
        with monkeypatch.context() as patch, pytest.raises(ResultExpiredError), one.turn(timeout_ms=1000):
            patch.setattr(one, "_sent", [(Lost(), TopicPartition(INPUT, 0), 99, 0)])
        relay_all(one, len(NUMBERS))
    assert outputs(log) == each_once(NUMBERS)


def test_offsets_that_were_reset_repeat_the_outputs(arena: Arena, log: Path, make: Make) -> None:
    with sending(arena, log):
        one = make()
        relay_all(one, len(NUMBERS))
        one.close()
        with Consumer(log, group_id=GROUP) as admin:
            admin.commit({TopicPartition(INPUT, number): 0 for number in range(2)})
        relay_all(make(), len(NUMBERS))
    assert outputs(log) == each_once(NUMBERS) + each_once(NUMBERS)


def test_a_seek_back_repeats_the_outputs(arena: Arena, log: Path, make: Make) -> None:
    with sending(arena, log):
        one = make()
        relay_all(one, len(NUMBERS))
        one.consumer.seek_to_beginning()
        relay_all(one, len(NUMBERS))
    assert outputs(log) == each_once(NUMBERS) + each_once(NUMBERS)


def test_a_seek_back_repeats_outputs_that_an_earlier_turn_left_in_the_log(arena: Arena, log: Path, make: Make) -> None:
    with sending(arena, log):
        one = make()
        cut_short(one, 6)
        for _ in range(2):
            with one.turn(timeout_ms=1000, max_records=1) as records:
                send_outputs(one, records[0])
        before = outputs(log)
        one.consumer.seek_to_beginning()
        relay_all(one, len(NUMBERS))
    assert outputs(log) == before + each_once(NUMBERS)
    assert before.total() > 6


def test_an_output_topic_that_was_created_again_is_read_from_its_start(arena: Arena, log: Path, make: Make) -> None:
    with sending(arena, log):
        one = make()
        relay_all(one, len(NUMBERS))
        one.close()
    with LogDirectory(log) as directory:
        directory.delete_topic(OUTPUT)
        directory.create_topic(OUTPUT)
        directory.partition(INPUT, 0).append([make_batch([b"10"])])
    with sending(arena, log):
        relay_all(make(), 1)
    assert outputs(log) == each_once(range(10, 11))


def test_a_quiet_partition_is_committed_again_now_and_then(
    arena: Arena, log: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "FULL_COMMIT_INTERVAL_S", 0.0)
    with sending(arena, log):
        one = make()
        relay_all(one, len(NUMBERS))
        take_turn(one)
        committed = one.consumer.committed(TopicPartition(INPUT, 0), metadata=True)
    assert isinstance(committed, OffsetAndMetadata)
    progress = RelayProgress.of(committed.metadata)
    assert progress is not None
    assert progress.ends == {TopicPartition(OUTPUT, 0): 10, TopicPartition(OUTPUT, 1): 10}


# --- refusals


def test_a_topic_that_is_no_output_and_a_record_of_another_turn_are_refused(
    arena: Arena, log: Path, make: Make
) -> None:
    with sending(arena, log):
        one = make()
        with one.turn(timeout_ms=1000) as records, pytest.raises(InvalidArgumentError, match="not an output"):
            one.send(records[0], "payments", b"")
        with pytest.raises(ConsumerStateError, match="not a record of this turn"):
            one.send(records[0], OUTPUT, b"")


def test_a_forked_child_sends_nothing(arena: Arena, log: Path, make: Make) -> None:
    with sending(arena, log):
        one = make()

        def send() -> None:
            with pytest.raises(ConsumerStateError, match="create a separate relay"):
                one.send(records[0], OUTPUT, b"")

        with one.turn(timeout_ms=1000, max_records=1) as records:
            run_in_child(send)
    assert not outputs(log)


def test_without_a_sender_a_turn_ends_with_what_to_do(
    make: Make, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "TIMEOUT_S", 0.01)
    with pytest.raises(FlushTimeoutError, match="start one"), make().turn(timeout_ms=1000):
        raise AssertionError("no records are handed out")
    assert arena.native.state_counts()["READY"] == 0


def test_another_arena_and_another_log_are_refused_while_they_may_hold_outputs(
    arena: Arena, arena_name: str, log: Path, tmp_path: Path, make: Make
) -> None:
    with sending(arena, log), contextlib.closing(make()) as former:
        relay_all(former, len(NUMBERS))
    make_log(tmp_path / "other", range(0))
    with (
        sending(arena, tmp_path / "other"),
        contextlib.closing(make()) as second,
        pytest.raises(ConsumerStateError, match="give it the sink log:"),
    ):
        take_turn(second)
    path = tmp_path / "other.arena"
    with (
        Arena.create(path, buffer_memory="64KiB", batch_size="4KiB") as other,
        sending(other, log),
        Producer(other) as producer,
        make_relay(log, producer) as one,
        pytest.raises(ConsumerStateError, match=arena_name),
    ):
        take_turn(one)


def take_turn(relay: Relay) -> None:
    with relay.turn(timeout_ms=1000):
        pass


def test_a_sink_that_is_no_log_is_refused(arena: Arena, make: Make) -> None:
    with sending(arena, None), pytest.raises(ConsumerStateError, match="give the sender the sink log:DIR"):
        take_turn(make())


def test_a_removed_arena_ends_a_turn(arena: Arena, make: Make) -> None:
    one = make()
    Arena.remove(arena.name)
    with pytest.raises(ArenaRemovedError):
        take_turn(one)


@pytest.mark.parametrize("given", [[], "", [1]])
def test_outputs_are_names(log: Path, producer: Producer, given: object) -> None:
    with pytest.raises(InvalidArgumentError, match="names of the topics"):
        make_relay(log, producer, outputs=given)


def test_a_relay_commits_by_itself_alone(log: Path, producer: Producer) -> None:
    with pytest.raises(InvalidArgumentError, match="commits with its outputs"):
        make_relay(log, producer, enable_auto_commit=True)


def test_too_many_output_partitions_are_refused(
    arena: Arena, log: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "OUTPUT_PARTITIONS_MAX", 1)
    with sending(arena, log), pytest.raises(InvalidArgumentError, match="can store 1"):
        take_turn(make())


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", '{"arena": "a", "log": "l", "ends": {"t": 1}}', "[" * 100_000, "\x00"]
)
def test_the_metadata_of_others_are_no_progress(text: str) -> None:
    assert RelayProgress.of(text) is None


def test_progress_is_read_back() -> None:
    progress = RelayProgress("/dev/shm/a", "/log", {TopicPartition("t", 2): 7, TopicPartition("t", 0): 1})
    ends = {TopicPartition("t", 0): 1, TopicPartition("t", 1): 0, TopicPartition("t", 2): 7}
    assert RelayProgress.of(progress.text()) == RelayProgress("/dev/shm/a", "/log", ends)
