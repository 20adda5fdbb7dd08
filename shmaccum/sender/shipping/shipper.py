# SPDX-License-Identifier: Apache-2.0
"""The shipper: sends a log's batches to Kafka unchanged, and stores positions in the log directory.

::

    round     1 read ─> 2 write positions ─> 3 send ─> 4 wait for acks ─> 5 settle ─> 2

    a death in      leaves                                          the next shipper
    1, 3            batches that the sink may or may not have       sends them again: same bytes, same sequences
    2               a position line that is whole or torn           truncates a torn line; the former position is valid
    4, 5            acks that were not recorded                     sends those batches again; the sink drops them

The sink drops a redelivered batch while it remembers the producer. A broker forgets a producer after
producer.id.expiration.ms (a day). So a shipper that was killed and restarts later than that may send the last few
batches of a partition twice.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

from shmaccum._native import run_batch_loop
from shmaccum.common import clock
from shmaccum.common.clock import NS_PER_S
from shmaccum.common.closing import ClosedOnExit
from shmaccum.common.durability import sync_folder
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import format_count
from shmaccum.config import SenderOptions, ShipperOptions
from shmaccum.exceptions import (
    InvalidArgumentError,
    LogBusyError,
    LogPartitionNotFoundError,
    NotALogError,
    OtherSinkError,
    ShmaccumError,
    UnknownTopicError,
)
from shmaccum.log.files import LogReader
from shmaccum.log.files.file_names import (
    LOCK_FILE,
    LOG,
    META_FILE,
    OVERFLOW_FOLDER,
    PARTITION_METADATA_FILE,
    SHIPPING_FOLDER,
    offsets_with,
)
from shmaccum.log.files.lock_file import LockFile
from shmaccum.log.files.log_watch import LogWatch
from shmaccum.log.files.permissions import make_folder
from shmaccum.log.files.shipping_positions import (
    PositionsFile,
    ShippedPosition,
    ShippedTo,
    forget_shipped,
    read_shipped,
)
from shmaccum.log.files.writer_level import WriterLevel
from shmaccum.sender.backoff import Backoff
from shmaccum.sender.batch_loop import BatchLoop
from shmaccum.sender.send_window import take_delivery
from shmaccum.sender.shipping.host import RateLimit, ShipperHost, logger
from shmaccum.sender.shipping.log_stream import LogStream, Route, resumed, topic_id_of
from shmaccum.sender.shipping.starts import Starts
from shmaccum.sender.sinks import open_sink
from shmaccum.sender.sinks.sink import IDENTITY_SIZE, Ack, Sink, Verdict, WireBatch, sockets_of
from shmaccum.sender.sinks.stream_end import StreamEnd

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from shmaccum.config.dicts import ShipperOptionsDict

CHECK_S = 1.0
"""The interval of scans for new partitions, and for appends that the kernel did not report."""
OPEN_STREAMS_MAX = 64
"""If there are more partitions than this, the files of each partition that is read to its end are closed."""
CLOSE_TIMEOUT_S = 5.0
LOOP_MS = 800
"""The native batch loop runs for this time, and an eighth of it after a stream has ended. Then other work follows."""
LOOP_MS_MIN = 100
"""The same time while Python has batches of other streams in flight."""


class ShippingProgress(NamedTuple):
    """The progress of a shipper."""

    record_count: int
    """Records that this shipper has shipped."""
    byte_count: int
    """Bytes of their batches."""
    left_record_count: int
    """Records of the log that are not shipped."""
    left_byte_count: int
    """Bytes of their segments, rounded up to whole batches."""
    damage_count: int
    """Places of the log that could not be read."""
    refusals: Mapping[TopicPartition, str]
    """Partitions that the sink does not take now, with its reason."""
    outage: str | None
    """Why nothing can be shipped at the moment; None if the sink works."""


@final
class Shipper(ClosedOnExit):
    """Ships a log directory, while it is written or not, to a Kafka cluster.

    ::

        with shmaccum.Shipper("/var/lib/events", "kafka:kafka:9092") as shipper:
            shipper.run()

    Batches are sent unchanged: nothing is decoded. Partition p of a topic is sent to partition p of the topic of the
    same name. A log has one shipper at a time, and one sink. Retention keeps records that are not shipped.

    One thread uses it. `progress` and `stop` may be called from others, `stop` from signal handlers, too.

    Args:
        directory: the log directory of a sender (``log:DIR``).
        to: ``kafka:HOST:PORT,...``, or ``log:DIR`` for another log; or a sink that is not open.
        topics: names of the topics to ship. If None, ship all topics, including later ones.
        rename: topic of the log -> topic at the sink, for topics that have another name there.
        start: where the present partitions begin if the log is shipped for the first time. It is "earliest", "latest",
            an offset, "-N" for the last N records, or "s@MS" for a timestamp. A mapping has one of these for
            "TOPIC:PARTITION", for "TOPIC" and for "" (all others). The batch with that record is sent whole. A later
            shipper continues at the positions of the former one.
        sink_options: options of the sink, if `to` is a text.
        options: those of `ShipperOptions`, in either spelling.

    Raises:
        InvalidArgumentError: an option, the sink or a topic is wrong.
        NotALogError: the directory is no log of shmaccum.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        to: str | Sink,
        *,
        topics: Iterable[str] | None = None,
        rename: Mapping[str, str] | None = None,
        start: str | int | Mapping[str, str | int] = "earliest",
        sink_options: Mapping[str, Any] | None = None,
        **options: Unpack[ShipperOptionsDict],
    ) -> None:
        self.options = ShipperOptions.parse(options)
        self.directory = os.path.abspath(os.fspath(directory).removeprefix("log:"))
        self._topics = None if topics is None else tuple(dict.fromkeys(topics))
        self._names = dict(rename or {})
        self._starts = Starts(start)
        self._level = WriterLevel(self.directory)
        self.sink = _sink_of(to, sink_options or {})
        self._check_arguments()
        self._refuse_overflow()
        self._reader = LogReader(self.directory, on_corrupt="skip")
        if not self._reader.is_gapless:
            raise NotALogError(
                f"{self.directory} is not the log of a sender of shmaccum: name the directory after --sink log:"
            )
        self.streams: list[LogStream] = []
        self._by_place: dict[TopicPartition, LogStream] = {}
        self._unidentified: dict[TopicPartition, str] = {}
        self._sources: dict[str, str] = {}
        self._answered: set[LogStream] = set()  # the sink has these partitions, as of the last check
        self._host = ShipperHost(self.streams, self.wake, self.directory, self._sender_options())
        self._backoff = Backoff(self.options.retry_backoff_ms, self.options.retry_backoff_max_ms)
        self._rate = RateLimit(self.options.rate_limit)
        self._lock: LockFile | None = None
        self._file: PositionsFile | None = None
        self._watch: LogWatch | None = None
        self._wake_read_fd = self._wake_write_fd = -1
        self._selector: selectors.BaseSelector | None = None
        self._checked_ns = 0
        self._no_loop_before_ns = 0
        self._sockets = sockets_of(self.sink) if self.options.rate_limit is None else None
        self._is_stopped = False
        self._is_ending = False
        self._is_sink_open = False

    def _refuse_overflow(self) -> None:
        if os.path.isdir(os.path.join(self.directory, OVERFLOW_FOLDER)):
            raise NotALogError(
                f"{self.directory} is the overflow of a sender: start it with --overflow log:{self.directory}, "
                "and it delivers each batch there once"
            )

    def _check_arguments(self) -> None:
        if self.sink.producer_ids is None:
            raise InvalidArgumentError(
                f"{self.sink.name or type(self.sink).__name__} does not recognise redelivered batches: ship to "
                "kafka:HOST:PORT or log:DIR"
            )
        if self.sink.name == f"log:{self.directory}":
            raise InvalidArgumentError(f"{self.directory} would be shipped to itself: name another sink")
        targets = list(self._names.values())
        if len(set(targets)) < len(targets):
            raise InvalidArgumentError("rename gives two topics one name: name each of them otherwise")
        if self._topics is not None and (strange := self._names.keys() - set(self._topics)):
            raise InvalidArgumentError(f"rename names {', '.join(sorted(strange))}, which topics leaves out")

    def _sender_options(self) -> SenderOptions:
        """Return the options that a sink reads from a sender."""
        options = self.options
        return SenderOptions(
            request_timeout_ms=options.request_timeout_ms,
            delivery_timeout_ms=max(options.request_timeout_ms + SenderOptions().linger_ms, 120_000),
            retry_backoff_ms=options.retry_backoff_ms,
            retry_backoff_max_ms=options.retry_backoff_max_ms,
            max_request_size=options.max_request_size,
        )

    # --- open

    def open(self) -> bool:
        """Take the lock, connect to the sink, and read the positions. Return False if it was stopped meanwhile.

        It waits for a sink that does not respond, however long that takes.

        Raises:
            LogBusyError: another process ships this log.
            OtherSinkError: the log was shipped to another sink.
            LogError: the positions are damaged.
            OffsetOutOfRangeError, InvalidArgumentError: a start is an offset or a partition that the log does not have.
            OSError, ShmaccumError: the sink or a file cannot be opened.
        """
        if self._file is not None:
            return True
        try:
            return self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> bool:
        self._lock = shipping_lock(self.directory)
        self._refuse_overflow()  # a sender may have created it meanwhile
        shipped = read_shipped(self.directory)
        self._wake_read_fd, self._wake_write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watch = LogWatch()
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._wake_read_fd, self._watch.descriptor):
            if descriptor >= 0:
                self._selector.register(descriptor, selectors.EVENT_READ)
        self._is_sink_open = True
        self.sink.open(self._host)
        identity = self._find_identity()
        if identity is None:
            return False
        known = shipped.shipped_to
        if known is not None and known.identity != identity:
            raise OtherSinkError(
                f"{self.directory} was shipped to {known.sink}, and {self.sink.name} is another sink: name that one, "
                "or forget the positions first (shmaccum ship DIR --forget)"
            )
        producer_id = self._producer_id() if known is None else known.producer_id
        if producer_id is None:
            return False
        shipped_to = ShippedTo(self.sink.name, identity, producer_id, self._topics)
        is_first = known is None
        if is_first:
            self._starts.check(self._places())
            shipped.positions = {place: self._first_position(place) for place in self._identified()}
        self._file = PositionsFile(self.directory, shipped, shipped_to)
        self._watch.add(self.directory)
        self._add_found()
        return True

    def _find_identity(self) -> str | None:
        """Return the identity of the sink in hexadecimal; None if the shipper was stopped while it waited."""
        while self.sink.identity == bytes(IDENTITY_SIZE):
            if self._is_stopped:
                return None
            self._poll(CHECK_S)
        return self.sink.identity.hex()

    def _producer_id(self) -> int | None:
        assert self.sink.producer_ids is not None
        while (answer := self.sink.producer_ids.new_producer_id()) is None:
            if self._is_stopped:
                return None
            self._poll(CHECK_S)
        return answer[0]

    # --- partitions

    def _places(self) -> list[TopicPartition]:
        found = self._reader.topic_partitions()
        return [place for place in found if self._topics is None or place.topic in self._topics]

    def _identified(self) -> list[TopicPartition]:
        """Return the partitions whose folder has the id of its topic, without which a position is ambiguous."""
        found: list[TopicPartition] = []
        self._unidentified.clear()
        for place in self._places():
            folder = os.path.join(self.directory, str(place))
            if place in self._by_place or topic_id_of(folder):
                found.append(place)
            elif os.path.isdir(folder) and offsets_with(folder, LOG):
                self._unidentified[place] = (
                    f"{folder} has no {PARTITION_METADATA_FILE}: the next writer of the log creates one"
                )
        return found

    def _first_position(self, place: TopicPartition) -> ShippedPosition:
        """Return the position at which a partition begins when the log is shipped for the first time."""
        partition = self._reader.partition(*place)
        offset = self._starts.offset_in(partition)
        return ShippedPosition(offset, origin=offset, topic_id=topic_id_of(partition.folder))

    def _add_found(self) -> None:
        """Create a stream for each partition that has none, or whose folder was replaced."""
        assert self._file is not None
        known = self._file.shipped.positions
        taken: dict[TopicPartition, ShippedPosition] = {}
        for place in self._identified():
            stream = self._by_place.get(place)
            if stream is not None and (
                stream.window.is_in_flight or not stream.is_gone or not topic_id_of(stream.folder)
            ):
                continue
            with contextlib.suppress(LogPartitionNotFoundError):
                partition = self._reader.partition(*place)
                position = known.get(place)
                if position is None:
                    start = partition.log_start_offset
                    taken[place] = ShippedPosition(start, origin=start, topic_id=topic_id_of(partition.folder))
                    continue
                taken[place], event = resumed(position, partition.folder, partition.log_end_offset)
                if event:
                    self._host.report(f"{place}: {event}")
        self._file.write({place: position for place, position in taken.items() if known.get(place) != position})
        for place, position in taken.items():
            self._add(place, position)

    def _add(self, place: TopicPartition, position: ShippedPosition) -> None:
        assert self._file is not None
        assert self._file.shipped.shipped_to is not None
        assert self._watch is not None
        former = self._by_place.get(place)
        index = len(self.streams) if former is None else former.route.index
        route = Route(
            index,
            self._names.get(place.topic, place.topic),
            self._file.shipped.shipped_to.producer_id,
            self.sink.limits.in_flight_max,
            self.sink.limits.takes_files,
        )
        stream = LogStream(self._reader, place, route, position, self._backoff, self._host.report, self._level)
        if former is None:
            self.streams.append(stream)
        else:
            former.window.rest()
            self.streams[index] = stream
            self._watch.remove(former.folder)
        self._by_place[place] = stream
        self._watch.add(stream.folder)
        if self._is_ending:
            stream.end_offset = stream.log_end_offset()

    # --- work

    def run(self, *, follow: bool = True) -> ShippingProgress:
        """Ship until it is stopped, then close.

        Args:
            follow: if False, return after everything is shipped that the log had at the start, except for partitions
                that the sink refuses.

        Returns:
            The progress.

        Raises:
            LogBusyError, OtherSinkError, LogError, OSError, ShmaccumError: as `open`.
        """
        try:
            if self.open():
                if not follow:
                    self.end_here()
                while not self._is_over:
                    self.run_once()
                self._finish()
            else:
                logger.info("the shipper was asked to stop before %s answered: it has sent nothing", self.sink.name)
            return self.progress()
        finally:
            self.close()

    def end_here(self) -> None:
        """Ship the present records of the log, and no later ones."""
        self._is_ending = True
        for stream in self.streams:
            stream.end_offset = stream.log_end_offset()
            stream.may_have_more = True

    @property
    def _is_over(self) -> bool:
        return self._is_stopped or (self._is_ending and self.is_done)

    @property
    def is_done(self) -> bool:
        """True if every partition is shipped as far as it was read to its end, or is refused by the sink."""
        return all(
            (stream.is_empty and not stream.may_have_more)
            or (stream.refusal is not None and not stream.window.is_in_flight)
            for stream in self.streams
        )

    def run_once(self, timeout_s: float = CHECK_S) -> None:
        """Run one round of `run`, which waits for at most the given time.

        Raises:
            NotALogError: it is not open.
        """
        if self._file is None:
            raise NotALogError("the shipper is not open: call open() or run()")
        self._find_work()
        self._ship_ordinary()
        self._read()
        self._write_positions()
        self._send()
        self._poll(min(timeout_s, self._rest_s()))
        self._write_positions()

    def _find_work(self) -> None:
        """Find new partitions, and partitions that may have new batches."""
        assert self._watch is not None
        changed = self._watch.changed()
        is_due = clock.monotonic_ns() - self._checked_ns >= CHECK_S * NS_PER_S
        if is_due:
            self._answered.clear()
            self._recreate_names()
        if is_due or self.directory in changed:
            self._guard(self._add_found)
            self._checked_ns = clock.monotonic_ns()
        for stream in self.streams:
            stream.may_have_more |= is_due or stream.folder in changed

    def _recreate_names(self) -> None:
        """Retake the lock and rewrite the positions if their files were removed or replaced.

        A missing directory is checked again later.

        Raises:
            LogBusyError: another process ships this log meanwhile.
        """
        assert self._lock is not None
        assert self._file is not None
        is_locked = self._lock.has_its_name
        if (is_locked and self._file.has_its_name) or not os.path.exists(os.path.join(self.directory, META_FILE)):
            return
        self._host.report(f"the positions of {self.directory} were removed or replaced: they are recreated")
        try:
            if not is_locked:
                self._lock.release()
                self._lock = shipping_lock(self.directory)
        except OSError as error:
            self._host.report(_words(error))
        else:
            self._file.appended(self._file.shipped.size, {})

    def _ship_ordinary(self) -> None:
        """Ship batches of the streams that need no work in Python (`LogStream.is_ordinary`), in a native call."""
        assert self._file is not None
        now_ns = clock.monotonic_ns()
        sockets = self._sockets
        if sockets is None or self._is_over or now_ns < self._no_loop_before_ns:
            return
        ready = {stream.index: stream for stream in self.streams if self._may_loop(stream, now_ns)}
        if not (ready and (handed_over := self._guard(lambda: sockets.hand_over(list(ready))))):
            return
        is_alone = all(stream.is_empty or stream.index in ready for stream in self.streams)
        loop = BatchLoop(sockets, handed_over, ready, self._take_positions)
        native_call = functools.partial(
            run_batch_loop,
            positions=self._file.descriptor,
            positions_size=self._file.shipped.size,
            positions_size_max=self._file.size_max,
            wake_fd=self._wake_read_fd,
            time_ms=LOOP_MS if is_alone else LOOP_MS_MIN,
            answer_time_ms=self.options.request_timeout_ms,
        )
        loop.run(native_call, self.sink.limits.request_size_max)
        if loop.has_failed:
            self._host.report(f"the positions of {self.directory} cannot be written: check the free space of its disk")
            self._no_loop_before_ns = clock.monotonic_ns() + int(CHECK_S * NS_PER_S)

    def _may_loop(self, stream: LogStream, now_ns: int) -> bool:
        return stream.may_have_more and stream.is_empty and stream.is_ordinary(now_ns)

    def _take_positions(self, ends: Mapping[LogStream, StreamEnd], size: int) -> bool:
        """Apply the positions that the native batch loop has written. Return False if the file is not in its place."""
        assert self._file is not None
        moved = {stream.place: stream.position for stream, end in ends.items() if end.delivered.record_count}
        return self._file.appended(size, moved)

    def _read(self) -> None:
        now_ns = clock.monotonic_ns()
        left = self.options.read_ahead_bytes - sum(stream.memory_size for stream in self.streams)
        for stream in self.streams:
            if not stream.may_have_more or (stream.refusal is not None and not stream.is_empty):
                continue
            if self._sockets is not None and not stream.is_empty and stream.is_ordinary(now_ns):
                continue  # the native batch loop sends it when its window is empty
            former = stream.memory_size

            def has_room(size: int, most: int = left + former) -> bool:
                return size < most

            try:
                stream.read(has_room)
            except (OSError, ShmaccumError) as error:
                self._host.report(f"{stream.place} cannot be read now: {_words(error)}")
                stream.may_have_more = False  # the next scan tries again
                stream.window.rest()
            if not stream.may_have_more and len(self.streams) > OPEN_STREAMS_MAX:
                stream.window.rest()
            left -= stream.memory_size - former

    def _write_positions(self) -> None:
        """Write the positions that have changed, and advance the streams."""
        assert self._file is not None
        due = [(stream, position) for stream in self.streams if (position := stream.due_position()) is not None]
        try:
            self._file.write({stream.place: position for stream, position in due})
        except OSError as error:
            self._host.report(f"the positions of {self.directory} cannot be written: {_words(error)}")
            return
        for stream, position in due:
            stream.advance(position)
            stream.may_have_more = True

    def _guard(self, action: Any) -> Any:
        """Call a function. A failure is reported, and retried in a later round."""
        try:
            return action()
        except (OSError, ShmaccumError) as error:
            self._host.report(_words(error))
            return None

    # --- send

    def _send(self) -> None:
        while ready := self._ready():
            count = 0
            for planned in self._guard(lambda: self.sink.plan(ready)) or ():
                count += self._deliver(self._wires(planned))
            if not count:
                return

    def _ready(self) -> list[int]:
        now_ns = clock.monotonic_ns()
        if self._rate.wait_ns(now_ns):
            return []
        waiting = [stream for stream in self.streams if stream.next_to_send(now_ns) is not None]
        return [stream.index for stream in waiting if stream in self._answered or self._sink_has_partition(stream)]

    def _sink_has_partition(self, stream: LogStream) -> bool:
        """True if the sink has this partition. It is asked until it responds, and again periodically."""
        try:
            count = self.sink.partition_count(stream.route.topic)
        except UnknownTopicError as error:
            stream.refuse(str(error))
            return False
        except (OSError, ShmaccumError) as error:
            self._host.report(_words(error))
            return False
        if count is not None and stream.place.partition >= count:
            stream.refuse(
                f"the topic {stream.route.topic} has {count} partitions there, so none with the number "
                f"{stream.place.partition}: give it more"
            )
            return False
        source = self._sources.setdefault(stream.route.topic, stream.place.topic)
        if source != stream.place.topic:
            stream.refuse(f"the topic {source} of the log is shipped to {stream.route.topic}, too: rename one of them")
            return False
        if count is None:
            return False
        self._answered.add(stream)
        return True

    def _wires(self, planned: Sequence[int]) -> list[WireBatch]:
        """Return the batches of one delivery, which are in flight from now on."""
        now_ns = clock.monotonic_ns()
        wires = take_delivery([self.streams[index] for index in planned], self.sink.limits.request_size_max, now_ns)
        self._rate.spend(sum(wire.size for wire in wires), now_ns)
        return wires

    def _deliver(self, wires: list[WireBatch]) -> int:
        if not wires:
            return 0
        try:
            self.sink.deliver(wires)
        except (OSError, ShmaccumError) as error:
            for wire in wires:
                self.streams[wire.partition_index].settle(Ack(wire, Verdict.RETRY, message=_words(error)))
            return 0
        return len(wires)

    # --- wait

    def _rest_s(self) -> float:
        """Return the longest wait of this round."""
        if self._is_over or any(stream.wants_reading for stream in self.streams):
            return 0.0
        now_ns = clock.monotonic_ns()
        pauses = [stream.window.resume_ns - now_ns for stream in self.streams if stream.window.resume_ns > now_ns]
        if wait_ns := self._rate.wait_ns(now_ns):
            pauses.append(wait_ns)
        return min([CHECK_S, *(pause / NS_PER_S for pause in pauses)])

    def _poll(self, timeout_s: float) -> None:
        """Wait for acks, for appends or for `wake`, and settle the acks."""
        assert self._selector is not None
        wake_fd: int = self._selector.fileno()  # type: ignore[attr-defined] # that of epoll
        acks = self._guard(lambda: self.sink.poll(timeout_s, wake_fd)) or ()
        for ack in acks:
            if isinstance(ack, Ack):
                self.streams[ack.wire.partition_index].settle(ack)
            else:
                for wire in ack.wires:
                    self.streams[wire.partition_index].settle_delivered(wire)
        if self._wake_read_fd >= 0:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read_fd, 4096)

    def wake(self) -> None:
        """End the wait of a round. May be called from any thread, and from signal handlers."""
        if self._wake_write_fd >= 0:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake_write_fd, b"\0")

    def stop(self) -> None:
        """Make `run` return after the batches in flight are acked. Safe in any thread, and in signal handlers."""
        self._is_stopped = True
        self.wake()

    def _finish(self) -> None:
        """Wait briefly for batches in flight: the next shipper sends them again, and the sink drops duplicates."""
        deadline_s = clock.monotonic() + CLOSE_TIMEOUT_S
        if self._is_stopped:
            in_flight = format_count(
                sum(stream.window.is_in_flight for stream in self.streams), "partition has", "partitions have"
            )
            logger.info(
                "the shipper was asked to stop, and %s batches in flight: it waits for them for at most %g s, and the "
                "next shipper continues from there",
                in_flight,
                CLOSE_TIMEOUT_S,
            )
        while any(stream.window.is_in_flight for stream in self.streams) and clock.monotonic() < deadline_s:
            self._poll(deadline_s - clock.monotonic())
            self._write_positions()
        self._write_positions()

    # --- progress and close

    def progress(self) -> ShippingProgress:
        """Return the progress. It reads the log, so call it once in a second rather than in each round."""
        streams = list(self.streams)  # another thread may ask while the shipper finds a partition
        left = {stream.place: max(stream.log_end_offset() - stream.position.offset, 0) for stream in streams}
        return ShippingProgress(
            sum(stream.record_count for stream in streams),
            sum(stream.byte_count for stream in streams),
            sum(left.values()),
            sum(stream.left_size() for stream in streams if left[stream.place]),
            sum(stream.damage_count for stream in streams),
            {
                **self._unidentified,
                **{stream.place: stream.refusal for stream in streams if stream.refusal is not None},
            },
            self.sink.peer.outage if self._is_sink_open else None,
        )

    def close(self) -> None:
        """Cancel batches in flight, and release all resources. A second call has no effect."""
        with contextlib.ExitStack() as all_of_them:
            if self._lock is not None:
                all_of_them.callback(self._lock.release)
            if self._file is not None:
                all_of_them.callback(self._file.close)
                self._file = None
            if self._selector is not None:
                all_of_them.callback(self._close_wake_fds)
            for stream in self.streams:
                all_of_them.callback(stream.window.rest)
            if self._is_sink_open:
                self._is_sink_open = False
                all_of_them.callback(self.sink.close, 0.0)

    def _close_wake_fds(self) -> None:
        assert self._selector is not None
        assert self._watch is not None
        read_fd, write_fd, self._wake_read_fd, self._wake_write_fd = self._wake_read_fd, self._wake_write_fd, -1, -1
        self._selector.close()
        self._selector = None
        self._watch.close()
        os.close(read_fd)
        os.close(write_fd)

    def __repr__(self) -> str:
        return f"<Shipper of {self.directory!r} to {self.sink.name}>"


def _sink_of(to: str | Sink, options: Mapping[str, Any]) -> Sink:
    if isinstance(to, str):
        if options.get("compression_type", options.get("compression.type", "none")) != "none":
            raise InvalidArgumentError("batches are shipped as they are: leave compression_type out")
        return open_sink(to, **options)
    if not isinstance(to, Sink):
        raise TypeError(f"a sink is a Sink or a str such as 'kafka:localhost:9092', not {type(to).__name__}")
    return to


def shipping_lock(directory: str) -> LockFile:
    """Return the lock of a log directory, which one shipper has at a time.

    Raises:
        LogBusyError: another living process has it.
        OSError: the folder cannot be written.
    """
    folder = os.path.join(directory, SHIPPING_FOLDER)
    make_folder(folder)
    sync_folder(directory)
    try:
        lock = LockFile(os.path.join(folder, LOCK_FILE))
    except LogBusyError as error:
        raise LogBusyError(
            f"{directory} is shipped by another process (pid {error.pid or 'unknown'}): a log has one shipper at a "
            "time; stop that one first",
            pid=error.pid,
        ) from None
    lock.write_holder()
    return lock


def forget(directory: str) -> bool:
    """Delete a log's shipping positions, so that retention may delete all segments. Return False if there were none.

    Raises:
        LogBusyError: a shipper is running.
        OSError: the positions are still there.
    """
    lock = shipping_lock(directory)
    try:
        return forget_shipped(directory)
    finally:
        lock.release()


def _words(error: Exception) -> str:
    """Return the message of an exception, for people."""
    return str(error) or type(error).__name__
