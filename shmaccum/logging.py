# SPDX-License-Identifier: Apache-2.0
"""A handler for the standard library's ``logging`` that sends log records through an arena.

::

    logging.config.dictConfig({
        "version": 1,
        "handlers": {"arena": {"class": "shmaccum.logging.ArenaHandler", "arena": "logs", "sink": "kafka:broker:9092"}},
        "root": {"handlers": ["arena"], "level": "INFO"},
    })

A log call takes some microseconds and never raises an exception. When it returns, the record survives the death of its
process. If the arena is full, the handler drops the record after a short wait and counts it. It reports dropped records
on stderr, and in the topic itself when the arena has space again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import operator
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from shmaccum.arena import Arena
from shmaccum.common import clock
from shmaccum.common.background import listed
from shmaccum.common.units import format_count
from shmaccum.config import ArenaOptions, ProducerOptions
from shmaccum.exceptions import PartitionCountUnknownError, ShmaccumError
from shmaccum.producer.fallback import Fallback, OnUnusable
from shmaccum.producer.producer import EXIT_TIMEOUT_S, close_timeout_s
from shmaccum.supervisor.kept_producer import Producer, split_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from shmaccum.config.dicts import ArenaOptionsDict, KeptProducerOptionsDict

OWN_LOGGER = "shmaccum"
MAX_BLOCK_DEFAULT = "10ms"
START_TIMEOUT_S = 2.0
START_SLICE_S = 0.005

TOPIC, KEY, HEADERS = "kafka_topic", "kafka_key", "kafka_headers"
"""The attributes of a log record that name the topic, key and headers of its Kafka record."""

_OF_PLACE = ("level", "logger", "file", "line", "function", "process", "thread")
"""The fields of a JSON object that are the same for all calls from one place."""

_values_of_place = operator.itemgetter("levelname", "name", "pathname", "lineno", "funcName", "process", "threadName")
"""Reads these fields from the attributes of a log record."""

_PLAIN = tuple(vars(logging.makeLogRecord({})))
"""The attributes of a log record without ``extra=``, in their order."""
_PLAIN_COUNT, _PLAIN_LAST = len(_PLAIN), _PLAIN[-1]
_MICROSECONDS = 1_000_000

_STANDARD = frozenset({*_PLAIN, *_OF_PLACE, TOPIC, KEY, HEADERS, "message", "asctime", "taskName", "timestamp"})
"""The attributes of a log record that are not from ``extra=``, or that have their own field."""


class JsonFormatter(logging.Formatter):
    """Formats a log record as one JSON object.

    Its fields are ``timestamp`` (ISO 8601, UTC), ``message``, ``level``, ``logger``, ``file`` (a path), ``line``,
    ``function``, ``process`` (a number), ``thread`` (a name), and the fields of `more`.
    """

    _has_own_more: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Makes sure that `more` of a subclass is called for each record."""
        super().__init_subclass__(**options)
        cls._has_own_more = cls.more is not JsonFormatter.more

    def more(self, record: logging.LogRecord) -> dict[str, Any]:
        """Returns additional fields. A subclass may return others.

        They are ``exception`` and ``stack``, if the record has them, and the fields that the program gave in
        ``extra=``, except names that are already in each object.
        """
        given = vars(record)
        fields = {name: given[name] for name in given.keys() - _STANDARD} if _has_extra(given) else {}
        if record.exc_text or (record.exc_info and record.exc_info[0]):
            fields["exception"] = record.exc_text or self.formatException(record.exc_info)  # type: ignore[arg-type]
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        return fields

    def format(self, record: logging.LogRecord) -> str:
        """Returns the object in one line. A value that JSON does not support becomes its ``str``."""
        given = record.__dict__
        second, microsecond = divmod(int(record.created * _MICROSECONDS), _MICROSECONDS)
        timestamp = f"{_second(second)}.{str(microsecond + _MICROSECONDS)[1:]}Z"
        rest = _place(_values_of_place(given))
        if (self._has_own_more or not _is_plain(given)) and (more := self.more(record)):
            rest = f"{rest}, {_members(more)}"
        return f'{{"timestamp": "{timestamp}", "message": {_quoted(record.getMessage())}, {rest}}}'


@functools.lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    """Formats a second since 1970 as in ISO 8601, in UTC. Many records share one."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _has_extra(given: dict[str, Any]) -> bool:
    """False if no program added attributes to a log record. Added attributes come last."""
    return len(given) != _PLAIN_COUNT or next(reversed(given)) != _PLAIN_LAST


def _is_plain(given: dict[str, Any]) -> bool:
    """True for a log record without ``extra=``, exception and stack."""
    has_trace = given["exc_info"] or given["exc_text"] or given["stack_info"]
    return not has_trace and not _has_extra(given)


@functools.lru_cache(maxsize=4096)
def _place(values: tuple[object, ...]) -> str:
    """Returns the members for the place, process and thread of a call. Calls from one place share them."""
    return _members(dict(zip(_OF_PLACE, values, strict=True)))


def _members(fields: Mapping[str, object]) -> str:
    """Returns the members of a JSON object, without its braces."""
    try:
        return _encode(fields)[1:-1]
    except (TypeError, ValueError, RecursionError):  # a key that is not a string, a NaN, a cycle
        return _encode({str(name): repr(value) for name, value in fields.items()})[1:-1]


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=str).encode
_quoted = json.encoder.encode_basestring


class ArenaHandler(logging.Handler):
    """Sends log records to a topic through an arena, which is created if it does not exist.

    A formatter makes the value of a Kafka record, `JsonFormatter` by default. The timestamp is that of the log call.
    ``extra={"kafka_key": ..., "kafka_headers": ..., "kafka_topic": ...}`` of a log call gives its record a key, headers
    (pairs or a mapping) and another topic. A str is encoded as UTF-8.

    All threads can use a handler, without waiting for each other, and so can a forked child. Records of the logger
    ``shmaccum`` and its children are about this handler, so they do not pass through it: WARNING and above go to
    stderr.

    Args:
        arena: the name or path of an arena, or an Arena, which the caller owns.
        topic: the topic of all records that name no other topic.
        topics: other topics that records name by ``kafka_topic``. The first record to a topic that is not listed here
            is dropped if the sender needs more than ``max_block_ms`` to find the topic.
        sink: the sink of the sender that this process then supervises, as for `shmaccum.Producer`. None for no sender.
        level: the level of the handler, as in ``logging``.
        arena_options: the options of `shmaccum.config.ArenaOptions`, for an arena that is created here.
        on_unusable: called without arguments, once in each process, when the arena is poisoned or removed, or its
            memory is lost. It returns another handler, which gets the failed log record and all later ones, and which
            this handler flushes and closes. If it returns None, the records are dropped and counted, as by default.
        options: the options of `shmaccum.Producer`. ``max_block_ms``, the longest time that a log call waits for a
            buffer, is 10 ms by default. Use 0 in an event loop.

    Raises:
        ArenaError: see `Arena.attach_or_create`.
        InvalidArgumentError: an option is unknown or out of bounds.
        SenderNotStartedError: there is no sender, and none could be started. The message has the reason.
        OtherSinkError: the living sender delivers to another sink.
    """

    report_interval_s: ClassVar[float] = 10.0
    """The minimum interval between reports of dropped records on stderr."""

    def __init__(
        self,
        arena: str | os.PathLike[str] | Arena,
        topic: str = "logs",
        *,
        topics: Iterable[str] = (),
        sink: str | None = None,
        level: int | str = logging.NOTSET,
        arena_options: ArenaOptionsDict | None = None,
        on_unusable: OnUnusable | None = None,
        **options: Unpack[KeptProducerOptionsDict],
    ) -> None:
        options.setdefault("max_block_ms", MAX_BLOCK_DEFAULT)
        self._producer = _producer(arena, arena_options or {}, sink, options)
        try:
            self._fallback = None if on_unusable is None else Fallback(on_unusable, ("handle",), self._producer.arena)
        except BaseException:
            self._producer.close(0)
            raise
        self.topic = topic
        self._drops = _Drops(self._producer.arena.name)
        super().__init__(level)
        self.setFormatter(JsonFormatter())
        self._wait_for_partitions({topic, *topics})

    def _wait_for_partitions(self, topics: set[str]) -> None:
        """Waits briefly until a new sender knows the topics, so that the first records are not dropped."""
        deadline_s = clock.monotonic() + START_TIMEOUT_S
        while topics and self._producer.will_be_delivered() and clock.monotonic() < deadline_s:
            topics = {topic for topic in topics if not self._is_known(topic)}
            time.sleep(START_SLICE_S if topics else 0)

    def _is_known(self, topic: str) -> bool:
        """True if the sender has reported the partitions of the topic. Asks for them, for at most ``max_block_ms``."""
        try:
            return bool(self._producer.partitions_for(topic))
        except PartitionCountUnknownError:
            return False

    @property
    def drop_count(self) -> int:
        """The number of records that this process has dropped."""
        return self._drops.count

    # --- a record

    def handle(self, record: logging.LogRecord) -> Any:
        """Handles a record without the lock of the base class, so that no thread waits for another one."""
        passed: Any = self.filter(record)
        if passed:
            self.emit(passed if isinstance(passed, logging.LogRecord) else record)
        return passed

    def emit(self, record: logging.LogRecord) -> None:
        """Sends or drops a record. Never raises. A record that cannot be formatted goes to `handleError`."""
        if str(record.name).startswith(OWN_LOGGER) and record.name.partition(".")[0] == OWN_LOGGER:
            if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
            return
        try:
            self._send(record)
        except ShmaccumError as error:
            self._hand_over(record, error)
        except Exception:  # noqa: BLE001 - a log call must not fail because of its handler
            self.handleError(record)
        else:
            if self._drops.unreported_count:
                self._send_drops()

    def _hand_over(self, record: logging.LogRecord, error: ShmaccumError) -> None:
        """Passes a record that could not be sent to the handler of `on_unusable`, or drops it."""
        try:
            if self._fallback is None:
                self._drops.add(str(error), self.report_interval_s)
            else:
                self._fallback.send(error, lambda handler: handler.handle(record))
        except ShmaccumError as refusal:
            self._drops.add(str(refusal), self.report_interval_s)
        except Exception:  # noqa: BLE001 - of the other handler
            self.handleError(record)

    def _send(self, record: logging.LogRecord) -> None:
        value = _bytes(self.format(record))
        timestamp_ms = int(record.created * 1000)
        given = record.__dict__
        if TOPIC in given or KEY in given or HEADERS in given:
            key, headers = given.get(KEY), given.get(HEADERS)
            self._producer.send(
                given.get(TOPIC) or self.topic,
                value,
                None if key is None else _bytes(key),
                None if headers is None else _headers(headers),
                None,
                timestamp_ms,
            )
        else:
            self._producer.send(self.topic, value, None, None, None, timestamp_ms)

    def _send_drops(self) -> None:
        """Sends a record that reports the dropped ones."""
        count, sentence = self._drops.take_unreported()
        facts = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": sentence}
        notice = logging.makeLogRecord({**facts, "dropped_count": count})
        try:
            self._send(notice)
        except ShmaccumError:
            self._drops.add_unreported(count)
        except Exception:  # noqa: BLE001 - a user's formatter may raise anything
            self.handleError(notice)

    # --- end

    def flush(self) -> None:
        """Waits at most ``close_timeout_ms`` until the sink has the records of this process, if a sender runs.

        Never raises. The remaining records stay in the arena and will be delivered.
        """
        if self._fallback is not None:
            self._fallback.call("flush")
        with contextlib.suppress(ShmaccumError):
            self._producer.flush(self._patience_s)

    def close(self) -> None:
        """Reports drops that were not reported yet, and closes the producer, which waits as `flush`. Never raises.

        ``logging`` calls it at the end of the process.
        """
        if self._drops.unreported_count:
            self._send_drops()
        self._drops.report()
        if self._fallback is not None:
            self._fallback.call("close")
        with contextlib.suppress(ShmaccumError):
            self._producer.close(self._patience_s)
        super().close()

    @property
    def _patience_s(self) -> float:
        """The time to wait for deliveries. Without a sender it is 0."""
        return close_timeout_s(self._producer.options, EXIT_TIMEOUT_S) if self._producer.will_be_delivered() else 0.0


class _Drops:
    """The records that this process has dropped, and how many of them were not reported. A forked child has none."""

    def __init__(self, arena_name: str) -> None:
        self._arena_name = arena_name
        self.begin()
        _all_drops.add(self)

    def begin(self) -> None:
        """Starts without dropped records. `unreported_count` counts the records that the topic has no report of."""
        self._lock = threading.RLock()  # a signal handler may log
        self.count = 0
        self._unreported_count = 0
        self.unreported_count = 0
        self._reason = ""
        self._report_at_s = 0.0

    def add(self, reason: str, report_interval_s: float) -> None:
        """Counts a dropped record, and reports on stderr if the last report is old enough."""
        now_s = clock.monotonic()
        with self._lock:
            self.count += 1
            self._unreported_count += 1
            self.unreported_count += 1
            self._reason = reason
            is_due = now_s >= self._report_at_s
            if is_due:
                self._report_at_s = now_s + report_interval_s
        if is_due:
            self.report()

    def report(self) -> None:
        """Writes on stderr how many records were dropped since the last report, if any."""
        with self._lock:
            count, self._unreported_count = self._unreported_count, 0
        if count:
            with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):  # no stderr, or a closed one
                sys.stderr.write(f"{__name__}: {self._sentence(count)}\n")

    def take_unreported(self) -> tuple[int, str]:
        """Returns the number of records that the topic has no report of, and a sentence about them."""
        with self._lock:
            count, self.unreported_count = self.unreported_count, 0
            return count, self._sentence(count)

    def add_unreported(self, count: int) -> None:
        """Counts records again whose report could not be sent."""
        with self._lock:
            self.unreported_count += count

    def _sentence(self, count: int) -> str:
        return (
            f"{format_count(count, 'log record')} for the arena {self._arena_name!r} had to be dropped: {self._reason}"
        )


_all_drops: weakref.WeakSet[_Drops] = weakref.WeakSet()


def _begin_in_child() -> None:
    for drops in listed(_all_drops):
        drops.begin()


os.register_at_fork(after_in_child=_begin_in_child)


class _LogProducer(Producer):
    """A producer that the standard library closes while it holds its lock, which a callback may need."""

    __slots__ = ()

    _callbacks_patience_s = 0.5


def _producer(
    arena: str | os.PathLike[str] | Arena,
    arena_options: ArenaOptionsDict,
    sink: str | None,
    options: KeptProducerOptionsDict,
) -> _LogProducer:
    """Makes the producer of a handler. An invalid option is rejected before the arena is created."""
    own, recipe = ({**options}, None) if sink is None else split_options(sink, options)
    ProducerOptions.parse(own)
    if isinstance(arena, Arena):
        return _LogProducer(arena, sink=recipe, **own)
    with Arena.attach_or_create(arena, **arena_options):
        mode = ArenaOptions.parse(arena_options).mode
    return _LogProducer(arena, mode=mode, sink=recipe, **own)


def _bytes(given: object) -> bytes:
    """Encodes a key, a value or a header. A lone surrogate of a str becomes its escape, as in JSON."""
    if isinstance(given, bytes):
        return given
    text = given if isinstance(given, str) else str(given)
    return text.encode("utf-8", "backslashreplace")


def _headers(given: Mapping[str, object] | Iterable[tuple[str, object]]) -> list[tuple[str, bytes | None]]:
    pairs = given.items() if isinstance(given, Mapping) else given
    return [(str(name), None if value is None else _bytes(value)) for name, value in pairs]
