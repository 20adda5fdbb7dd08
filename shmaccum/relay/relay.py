# SPDX-License-Identifier: Apache-2.0
"""A relay consumes records and sends what a program makes of them, each output exactly once.

::

    log ──> turn: records ──> the program ──> send ──> arena ──> sender ──> log of the outputs
             ^                                                                  │
             └── 3. commit, with how far the outputs are written <── 2. all are delivered

Rules: each output has a header that names its input (`origin`). The offset of an input is committed when all its
outputs are in the log, never before. A new owner of a partition sends no output that the log has already.

Procedure: a turn hands out records. At its end the relay waits until the sinks have their outputs, then it commits
the positions behind the records, and with them how far the output topics are written. A relay that becomes the owner
of a partition first waits until the arena holds nothing that was sent before. Then it reads the output topics from
where the last commit saw their ends, and notes the outputs that are there.

Deaths: a member dies between two sends, or before the commit. Its outputs are in the arena or in the log. The sender
delivers those in the arena, and the next owner finds all of them. It dies within the commit: the torn commit counts for
nothing. The sender dies: its successor delivers, and the log drops what the dead one had written. The arena is lost (a
reboot): outputs in it were not committed, so they are made again. A new owner dies: nothing has changed but its pin.

Why it is safe: the byte of a partition has one owner (`shmaccum.log.groups`), so nobody else sends outputs of its
records. A record is in the arena whole or not at all, and it outlives the process that sent it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

from shmaccum._native import DeliveryFuture
from shmaccum.common import clock
from shmaccum.common.closing import ClosedOnExit
from shmaccum.common.durability import LOG_LEVELS
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import (
    ConsumerStateError,
    InvalidArgumentError,
    ResultExpiredError,
)
from shmaccum.log.consumer import Consumer, ConsumerRecord, OffsetAndMetadata
from shmaccum.log.files.writer_level import WriterLevel
from shmaccum.producer import Producer
from shmaccum.relay.deliveries import wait_for_deliveries
from shmaccum.relay.origin import OUTPUT_PARTITIONS_MAX, Ends, Input, RelayProgress, ends_of, find_outputs, prefix_of

TIMEOUT_S = 120.0
"""The longest time to wait for deliveries."""
PIN_INTERVAL_S = 60.0
"""So often every partition is committed anew, so that a successor has little to read."""

Polled = Mapping[TopicPartition, list[ConsumerRecord]]
Sent = tuple[DeliveryFuture, TopicPartition, int, int]


@final
class Relay(ClosedOnExit):
    """A member of a group that consumes records, and sends what a program makes of them, each output exactly once.

    ::

        with (
            shmaccum.Producer("events", sink="log:out/events") as producer,
            shmaccum.Relay(
                "log:out/events", "flights", group_id="delays", producer=producer, outputs=["delays"]
            ) as relay,
        ):
            while True:
                with relay.turn(timeout_ms=1000) as records:
                    for record in records:
                        relay.send(record, "delays", value=delay_of(record.value), key=record.key)

    A program that is killed at any moment, and a sender that is killed, lead neither to a lost nor to a second output.
    Any number of members may share the topics. The outputs go through an arena whose sender delivers to a log on this
    host, which may be the log of the inputs. A program that makes the outputs of a record a second time has to make
    as many of them, in the same order.

    Like a consumer, a relay is used by one thread at a time.

    Args:
        log: the log directory of the inputs, as ``log:DIR`` or as a path.
        topics: topics to consume.
        group_id: the group whose members share the partitions. Two groups that send to one topic have two names.
        producer: through which the outputs go; it stays the caller's.
        outputs: every topic that `send` may name, at most 200 partitions in all.
        options: those of `ConsumerOptions`; auto_offset_reset is "earliest" by default.

    Attributes:
        consumer: the consumer of the inputs, for its assignment, its metrics and `Consumer.seek`.

    Raises:
        InvalidArgumentError: an option is wrong, or commits are asked for that the relay does not make.
        NotALogError, GroupModeError, LogForbiddenError: as `Consumer`.
    """

    def __init__(
        self,
        log: str | os.PathLike[str],
        *topics: str,
        group_id: str,
        producer: Producer,
        outputs: Iterable[str],
        **options: Any,
    ) -> None:
        if options.get("enable_auto_commit"):
            raise InvalidArgumentError("a relay commits with its outputs: leave enable_auto_commit out")
        self._group_id = group_id
        self._directory = os.fspath(log).removeprefix("log:")
        self._producer = producer
        self._outputs = _names(outputs)
        self._inputs: dict[TopicPartition, Input] = {}
        self._counts: dict[tuple[str, int, int], int] = {}
        self._sent: list[Sent] = []
        self._ends: dict[TopicPartition, int] = {}
        self._pin_s = clock.monotonic() + PIN_INTERVAL_S
        self._pid = os.getpid()
        settings = {"auto_offset_reset": "earliest", **options, "enable_auto_commit": False, "group_id": group_id}
        self.consumer = Consumer(log, **settings)
        try:
            self.consumer.subscribe(topics, listener=self)
        except BaseException:
            self.consumer.close()
            raise

    # --- turns

    @contextlib.contextmanager
    def turn(self, timeout_ms: float = 0, max_records: int | None = None) -> Iterator[list[ConsumerRecord]]:
        """The next records, to be processed within the block. Its end commits them, when their outputs are in the log.

        When the block or its end raises, nothing is committed, and the next turn has these records again. Outputs that
        are in the log by then are not sent a second time.

        Args:
            timeout_ms: how long to wait for records.
            max_records: the most that are handed out; default: max_poll_records.

        Raises:
            DeliveryError: an output was not delivered.
            FlushTimeoutError: outputs were not delivered within two minutes, also those that a former owner left in
                the arena.
            ConsumerStateError: the group sends through another arena, or the sender delivers elsewhere than to a log.
            ConsumerError, LogError: as `Consumer.poll` and `Consumer.commit`.
        """
        self._counts.clear()
        self._sent.clear()
        polled = self.consumer.poll(timeout_ms, max_records)
        try:
            self._enter(polled)
            records = [record for found in polled.values() for record in found]
            self._counts.update(dict.fromkeys(map(_key, records), 0))
            yield records
            self._settle()
            self._commit(polled)
        except BaseException:
            self._give_back(polled)
            raise
        finally:
            self._counts.clear()

    def send(
        self,
        record: ConsumerRecord,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Sends an output that was made of a record of this turn, unless the log has it from an earlier attempt.

        Args:
            record: the input.
            topic: one of the outputs of this relay.
            value, key, partition, timestamp_ms: as for `Producer.send`.
            headers: one more is added, which names the input.

        Raises:
            InvalidArgumentError: the topic is none of the outputs.
            ConsumerStateError: the record is none of this turn, or the turn belongs to the process that forked this
                one.
            Exception: as `Producer.send`.
        """
        if topic not in self._outputs:
            raise InvalidArgumentError(f"{topic!r} is none of the outputs of this relay: name it in outputs=[...]")
        origin = _key(record)
        number = self._counts.get(origin)
        if number is None or self._pid != os.getpid():
            raise self._out_of_turn(record)
        place = TopicPartition(record.topic, record.partition)
        if (record.offset, number) not in self._inputs[place].known:
            header = self._inputs[place].header(record.offset, number)
            future = self._producer.send(topic, value, key, [*headers, header], partition, timestamp_ms)
            self._sent.append((future, place, record.offset, number))
        self._counts[origin] = number + 1

    def _out_of_turn(self, record: ConsumerRecord) -> ConsumerStateError:
        if self._pid != os.getpid():
            return ConsumerStateError(
                f"this relay belongs to process {self._pid}, which forked this one: make a relay of its own"
            )
        return ConsumerStateError(
            f"offset {record.offset} of {record.topic}-{record.partition} is no record of this turn: send within the "
            "block of turn(), and name the record that the output was made of"
        )

    # --- the end of a turn

    def _settle(self) -> None:
        """Waits until every output of this turn is in the log.

        Raises:
            DeliveryError, FlushTimeoutError: one is not.
        """
        if not self._sent:
            return
        self._producer.flush(TIMEOUT_S)
        unknown = [sent for sent in self._sent if not _is_delivered(sent[0])]
        if unknown:
            self._look_for(unknown)
        self._note_ends()

    def _look_for(self, unknown: Sequence[Sent]) -> None:
        """Reads the log for outputs whose results were overwritten before they were read.

        Raises:
            ResultExpiredError: one of them is not there.
        """
        found = {place: Input(one.prefix, one.position, self._ends) for place, one in self._inputs.items()}
        find_outputs(self._log, ends_of(self._log, self._outputs), list(found.values()))
        for future, place, offset, number in unknown:
            if (offset, number) not in found[place].known:
                future.get(0)

    def _note_ends(self) -> None:
        """Moves the known ends behind the outputs of this turn, which are committed next."""
        for future, *_ in self._sent:
            written = future.value
            if written is not None and written.offset >= 0:
                place = written.topic_partition
                self._ends[place] = max(self._ends.get(place, 0), written.offset + 1)

    def _commit(self, polled: Polled) -> None:
        for place in polled:
            self._inputs[place].advance(self.consumer.position(place))
        places = set(polled)
        if clock.monotonic() >= self._pin_s:
            self._ends = ends_of(self._log, self._outputs)
            self._pin_s = clock.monotonic() + PIN_INTERVAL_S
            places = set(self._inputs)
        self._pin(places)

    def _pin(self, places: Iterable[TopicPartition]) -> None:
        """Commits the positions of inputs. One that has known outputs keeps its ends, for they were seen from there."""
        offsets = {}
        for place in places:
            one = self._inputs[place]
            if not one.known:
                one.ends = dict(self._ends)
            text = RelayProgress(self._producer.arena.path, self._log.path, one.ends).text()
            offsets[place] = OffsetAndMetadata(one.position, text)
        if offsets:
            self.consumer.commit(offsets)

    def _give_back(self, polled: Polled) -> None:
        """Goes back to the committed positions; the next turn finds out what became of the outputs."""
        self._inputs.clear()
        for place in set(polled) & self.consumer.assignment():
            committed = self.consumer.committed(place)
            self.consumer.seek(place, committed if isinstance(committed, int) else polled[place][0].offset)

    # --- partitions

    def on_partitions_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """The consumer calls it. The relay forgets these partitions, for another member may have had them."""
        for place in partitions:
            self._inputs.pop(place, None)

    on_partitions_revoked = on_partitions_assigned

    def _enter(self, polled: Polled) -> None:
        """Looks at partitions that are new to this relay, and at those that went back."""
        fresh = sorted(self.consumer.assignment() - set(self._inputs))
        if fresh:
            self._log = wait_for_deliveries(self._producer.arena, TIMEOUT_S)
            self._check_levels()
            position = self.consumer.position
            self._recover({place: polled[place][0].offset if place in polled else position(place) for place in fresh})
        for place, records in polled.items():
            one = self._inputs[place]
            if records[0].offset < one.position:
                one.known.clear()  # somebody went back: these outputs are to be made again

    def _check_levels(self) -> None:
        """A commit is as durable as the log of the inputs, so the outputs have to be, too.

        Raises:
            ConsumerStateError: a power cut could keep a commit, and lose the outputs before it.
        """
        inputs, outputs = WriterLevel(self._directory).level, WriterLevel(self._log.path).level
        if LOG_LEVELS.index(outputs) < LOG_LEVELS.index(inputs):
            raise ConsumerStateError(
                f"{self._log.path} has sync={outputs}, and the commits of {self._directory} are made with "
                f"sync={inputs}, so a power cut could lose outputs of committed records: send through an arena with "
                f"durability=sync, or give its sender the option sync={inputs}"
            )

    def _recover(self, firsts: Mapping[TopicPartition, int]) -> None:
        """Reads which outputs of new partitions are in the log, and commits where that began.

        Raises:
            ConsumerStateError: the group sends through another arena, or to another log.
            InvalidArgumentError: the outputs have too many partitions.
        """
        ends = ends_of(self._log, self._outputs)
        if len(ends) > OUTPUT_PARTITIONS_MAX:
            raise InvalidArgumentError(
                f"the outputs have {len(ends)} partitions, and a commit has room for {OUTPUT_PARTITIONS_MAX}: name "
                "fewer topics in outputs=[...]"
            )
        found = {place: self._committed(place, first, ends) for place, first in firsts.items()}
        find_outputs(self._log, ends, list(found.values()))
        self._inputs.update(found)
        self._ends = ends
        self._pin(firsts)

    def _committed(self, place: TopicPartition, first: int, ends: Ends) -> Input:
        """An input as its last commit tells. Behind a commit that no relay made, there are no outputs to look for."""
        committed = self.consumer.committed(place, metadata=True)
        prefix = prefix_of(self._group_id, place)
        if not isinstance(committed, OffsetAndMetadata):
            return Input(prefix, first, ends)
        progress = RelayProgress.of(committed.metadata)
        if progress is None:
            return Input(prefix, committed.offset, ends)
        self._check(progress)
        return Input(prefix, committed.offset, progress.ends)

    def _check(self, progress: RelayProgress) -> None:
        """Outputs that are on another way would be missed, and made a second time."""
        own = self._producer.arena.path
        if progress.arena != own and os.path.exists(progress.arena):
            raise ConsumerStateError(
                f"the group {self._group_id!r} sends its outputs through {progress.arena}, which may hold some of "
                f"them: use that arena instead of {own}, or remove it when its sender has delivered them"
            )
        if progress.log != self._log.path:
            raise ConsumerStateError(
                f"the outputs of the group {self._group_id!r} are in {progress.log}, and the sender of {own} delivers "
                f"to {self._log.path}: give it the sink log:{progress.log}, or set the offsets of the group anew "
                "(shmaccum groups)"
            )

    # --- the end

    def close(self) -> None:
        """Leaves the group. The producer stays open. Doing it twice does nothing."""
        self.consumer.close()

    def __repr__(self) -> str:
        return f"<Relay {self._group_id!r} to {', '.join(sorted(self._outputs))} by {self._producer.arena.name!r}>"


def _names(outputs: Iterable[str]) -> frozenset[str]:
    names: frozenset[Any] = frozenset([outputs] if isinstance(outputs, str) else outputs)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidArgumentError(f"outputs must be the names of the topics that the relay sends to, got {outputs!r}")
    return names


def _key(record: ConsumerRecord) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset


def _is_delivered(future: DeliveryFuture) -> bool:
    """True when the record is in the log; False when its result was overwritten.

    Raises:
        DeliveryError: it was not delivered.
    """
    try:
        future.get(0)
    except ResultExpiredError:
        return False
    return True
