# SPDX-License-Identifier: Apache-2.0
"""A relay consumes records and sends what a program makes of them, each output exactly once.

::

    log ──> turn: records ──> the program ──> send ──> arena ──> sender ──> log of the outputs
             ^                                                                  │
             └── 3. commit, with the ends of the output topics <────── 2. all are delivered

Rules: each output has a header that identifies its input (`origin`). The offset of an input is committed when all its
outputs are in the log, never before. A new owner of a partition sends no output that is already in the log.

Procedure: a turn returns records. At its end, the relay waits until all outputs are delivered. Then it commits the
positions after the records, together with the end offsets of the output topics. A relay that becomes the owner of a
partition first waits until all records sent before have left the arena. Then it reads the output topics from the end
offsets in the last commit on, and remembers the outputs that it finds.

Deaths: if a member dies between two sends, or before the commit, its outputs are in the arena or in the log. The sender
delivers those in the arena, and the next owner finds all of them. If it dies during the commit, the torn commit is
ignored. If the sender dies, its successor delivers, and the log drops duplicates. If the arena is lost (a reboot), its
outputs were not committed, so they are made again. If a new owner dies, only its commit of the end offsets remains.

Why it is safe: the byte of a partition has one owner (`shmaccum.log.groups`), so no other process sends outputs of its
records. A record is in the arena whole or not at all, and it survives the process that sent it.
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
FULL_COMMIT_INTERVAL_S = 60.0
"""The interval at which every partition is committed again, so that a successor has little to read."""

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

    If a program or a sender is killed at any moment, no output is lost or duplicated.
    Any number of members may share the topics. The outputs are sent through an arena whose sender delivers to a log on
    this host, which may be the log of the inputs. If a program makes the outputs of a record again, it must make
    the same number of them, in the same order.

    Like a consumer, a relay is not thread-safe.

    Args:
        log: the log directory of the inputs, as ``log:DIR`` or as a path.
        topics: topics to consume.
        group_id: the group whose members share the partitions. Two groups that send to one topic need two names.
        producer: the producer of the outputs. The caller closes it.
        outputs: every topic that `send` may name, with at most 200 partitions in total.
        options: options of `ConsumerOptions`. The default of auto_offset_reset is "earliest".

    Attributes:
        consumer: the consumer of the inputs, for its assignment, its metrics and `Consumer.seek`.

    Raises:
        InvalidArgumentError: if an option is invalid, or enable_auto_commit is set.
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
            raise InvalidArgumentError("a relay commits with its outputs: remove enable_auto_commit")
        self._group_id = group_id
        self._directory = os.fspath(log).removeprefix("log:")
        self._producer = producer
        self._outputs = _names(outputs)
        self._inputs: dict[TopicPartition, Input] = {}
        self._counts: dict[tuple[str, int, int], int] = {}
        self._sent: list[Sent] = []
        self._ends: dict[TopicPartition, int] = {}
        self._full_commit_s = clock.monotonic() + FULL_COMMIT_INTERVAL_S
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
        """The next records, to be processed within the block. Its end commits them when their outputs are in the log.

        If the block or its end raises, nothing is committed, and the next turn returns these records again. Outputs
        that are in the log by then are not sent again.

        Args:
            timeout_ms: the time to wait for records.
            max_records: the maximum number of records. Default: max_poll_records.

        Raises:
            DeliveryError: if an output was not delivered.
            FlushTimeoutError: if outputs, including those of a former owner in the arena, were not delivered within two
                minutes.
            ConsumerStateError: if the group sends through another arena, the sender does not deliver to a log, or the
                block gave up a partition of the turn.
            ConsumerError, LogError: as `Consumer.poll` and `Consumer.commit`.
        """
        self._counts.clear()
        self._sent.clear()
        polled = self.consumer.poll(timeout_ms, max_records)
        try:
            self._recover_new_inputs(polled)
            records = [record for found in polled.values() for record in found]
            self._counts.update(dict.fromkeys(map(_key, records), 0))
            yield records
            self._wait_for_deliveries()
            self._commit(polled)
        except BaseException:
            self._seek_to_committed(polled)
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
        """Send an output of a record of this turn, unless it is already in the log from an earlier attempt.

        Args:
            record: the input.
            topic: one of the outputs of this relay.
            value, key, partition, timestamp_ms: as for `Producer.send`.
            headers: the headers. One more is added, which identifies the input.

        Raises:
            InvalidArgumentError: if the topic is not one of the outputs.
            ConsumerStateError: if the record does not belong to this turn, its partition was given up in the block,
                or the turn belongs to the process that forked this one.
            Exception: as `Producer.send`.
        """
        if topic not in self._outputs:
            raise InvalidArgumentError(f"{topic!r} is not an output of this relay: name it in outputs=[...]")
        origin = _key(record)
        number = self._counts.get(origin)
        if number is None or self._pid != os.getpid():
            raise self._turn_error(record)
        place = TopicPartition(record.topic, record.partition)
        one = self._input(place)
        if (record.offset, number) not in one.known:
            header = one.header(record.offset, number)
            future = self._producer.send(topic, value, key, [*headers, header], partition, timestamp_ms)
            self._sent.append((future, place, record.offset, number))
        self._counts[origin] = number + 1

    def _input(self, place: TopicPartition) -> Input:
        """Returns the state of a partition of this turn.

        Raises:
            ConsumerStateError: if the block has given the partition up, so another member may have it.
        """
        found = self._inputs.get(place)
        if found is None:
            raise ConsumerStateError(
                f"this relay gave up {place.topic}-{place.partition} within the turn, so another member may have it: "
                "subscribe, unsubscribe and poll outside the block of turn()"
            )
        return found

    def _turn_error(self, record: ConsumerRecord) -> ConsumerStateError:
        if self._pid != os.getpid():
            return ConsumerStateError(
                f"this relay belongs to process {self._pid}, which forked this one: create a separate relay"
            )
        return ConsumerStateError(
            f"offset {record.offset} of {record.topic}-{record.partition} is not a record of this turn: send within "
            "the block of turn(), and pass the record that the output was made from"
        )

    # --- the end of a turn

    def _wait_for_deliveries(self) -> None:
        """Wait until every output of this turn is in the log.

        Raises:
            DeliveryError, FlushTimeoutError: if one is not.
        """
        if not self._sent:
            return
        self._producer.flush(TIMEOUT_S)
        unknown = [sent for sent in self._sent if not _is_delivered(sent[0])]
        if unknown:
            self._search_log(unknown)
        self._advance_ends()

    def _search_log(self, unknown: Sequence[Sent]) -> None:
        """Search the log for outputs whose results were overwritten before they were read.

        Raises:
            ResultExpiredError: if one of them is not there.
        """
        found = {place: Input(one.prefix, one.position, self._ends) for place, one in self._inputs.items()}
        find_outputs(self._log, ends_of(self._log, self._outputs), list(found.values()))
        for future, place, offset, number in unknown:
            if (offset, number) not in found[place].known:
                future.get(0)

    def _advance_ends(self) -> None:
        """Raise the known end offsets past the outputs of this turn. The next commit contains them."""
        for future, *_ in self._sent:
            written = future.value
            if written is not None and written.offset >= 0:
                place = written.topic_partition
                self._ends[place] = max(self._ends.get(place, 0), written.offset + 1)

    def _commit(self, polled: Polled) -> None:
        for place in polled:
            self._input(place).advance(self.consumer.position(place))
        places = set(polled)
        if clock.monotonic() >= self._full_commit_s:
            self._ends = ends_of(self._log, self._outputs)
            self._full_commit_s = clock.monotonic() + FULL_COMMIT_INTERVAL_S
            places = set(self._inputs)
        self._commit_inputs(places)

    def _commit_inputs(self, places: Iterable[TopicPartition]) -> None:
        """Commit the positions of inputs. An input with known outputs keeps its end offsets, which are below them."""
        offsets = {}
        for place in places:
            one = self._inputs[place]
            if not one.known:
                one.ends = dict(self._ends)
            text = RelayProgress(self._producer.arena.path, self._log.path, one.ends).text()
            offsets[place] = OffsetAndMetadata(one.position, text)
        if offsets:
            self.consumer.commit(offsets)

    def _seek_to_committed(self, polled: Polled) -> None:
        """Seek to the committed positions. The next turn determines which outputs are in the log."""
        self._inputs.clear()
        for place in set(polled) & self.consumer.assignment():
            committed = self.consumer.committed(place)
            self.consumer.seek(place, committed if isinstance(committed, int) else polled[place][0].offset)

    # --- partitions

    def on_partitions_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Called by the consumer. Forget these partitions, because another member may have had them."""
        for place in partitions:
            self._inputs.pop(place, None)

    on_partitions_revoked = on_partitions_assigned

    def _recover_new_inputs(self, polled: Polled) -> None:
        """Recover the partitions that are new to this relay, and handle a seek back to earlier records."""
        fresh = sorted(self.consumer.assignment() - set(self._inputs))
        if fresh:
            self._log = wait_for_deliveries(self._producer.arena, TIMEOUT_S)
            self._check_levels()
            position = self.consumer.position
            self._recover({place: polled[place][0].offset if place in polled else position(place) for place in fresh})
        for place, records in polled.items():
            one = self._inputs[place]
            if records[0].offset < one.position:
                one.known.clear()  # a user has called seek: these outputs must be made again

    def _check_levels(self) -> None:
        """Check that the outputs are as durable as the commits, which have the level of the inputs' log.

        Raises:
            ConsumerStateError: if a power cut could keep a commit, but lose the outputs before it.
        """
        inputs, outputs = WriterLevel(self._directory).level, WriterLevel(self._log.path).level
        if LOG_LEVELS.index(outputs) < LOG_LEVELS.index(inputs):
            raise ConsumerStateError(
                f"{self._log.path} has sync={outputs}, but the commits of {self._directory} have sync={inputs}, "
                "so a power cut could lose outputs of committed records: send through an arena with "
                f"durability=sync, or give its sender the option sync={inputs}"
            )

    def _recover(self, firsts: Mapping[TopicPartition, int]) -> None:
        """Find the outputs of new partitions in the log, and commit the end offsets from which they were searched.

        Raises:
            ConsumerStateError: if the group sends through another arena, or to another log.
            InvalidArgumentError: if the outputs have too many partitions.
        """
        ends = ends_of(self._log, self._outputs)
        if len(ends) > OUTPUT_PARTITIONS_MAX:
            raise InvalidArgumentError(
                f"the outputs have {len(ends)} partitions, but a commit can store {OUTPUT_PARTITIONS_MAX}: name "
                "fewer topics in outputs=[...]"
            )
        found = {place: self._committed(place, first, ends) for place, first in firsts.items()}
        find_outputs(self._log, ends, list(found.values()))
        self._inputs.update(found)
        self._ends = ends
        self._commit_inputs(firsts)

    def _committed(self, place: TopicPartition, first: int, ends: Ends) -> Input:
        """The input with the state of its last commit. After a commit that no relay made, there are no outputs."""
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
        """Check the arena and the log. Outputs in another place would be missed, and made again."""
        own = self._producer.arena.path
        if progress.arena != own and os.path.exists(progress.arena):
            raise ConsumerStateError(
                f"the group {self._group_id!r} sends its outputs through {progress.arena}, which may still contain "
                f"some: use that arena instead of {own}, or remove it after its sender has delivered them"
            )
        if progress.log != self._log.path:
            raise ConsumerStateError(
                f"the outputs of the group {self._group_id!r} are in {progress.log}, but the sender of {own} delivers "
                f"to {self._log.path}: give it the sink log:{progress.log}, or reset the offsets of the group "
                "(shmaccum groups)"
            )

    # --- the end

    def close(self) -> None:
        """Leave the group. The producer stays open. A second call does nothing."""
        self.consumer.close()

    def __repr__(self) -> str:
        return f"<Relay {self._group_id!r} to {', '.join(sorted(self._outputs))} by {self._producer.arena.name!r}>"


def _names(outputs: Iterable[str]) -> frozenset[str]:
    names: frozenset[Any] = frozenset([outputs] if isinstance(outputs, str) else outputs)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidArgumentError(f"outputs must be the names of the topics that the relay sends to, not {outputs!r}")
    return names


def _key(record: ConsumerRecord) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset


def _is_delivered(future: DeliveryFuture) -> bool:
    """True if the record is in the log, or False if its result was overwritten.

    Raises:
        DeliveryError: if it was not delivered.
    """
    try:
        future.get(0)
    except ResultExpiredError:
        return False
    return True
