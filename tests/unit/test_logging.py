# SPDX-License-Identifier: Apache-2.0
"""The handler sends log records through the arena. A log call neither waits too long nor raises."""

from __future__ import annotations

import json
import logging
import logging.config
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files import LogReader
from shmaccum.logging import ArenaHandler, JsonFormatter, _Drops
from tests.support.arenas import Drainer
from tests.support.processes import WATCHDOG_S, run_in_child, wait_until

TOPIC = "logs"
LONG = "x" * 1000


@pytest.fixture
def topic(arena: Arena) -> Arena:
    """The arena, with a topic of one partition."""
    arena.native.set_topic_partition_count(TOPIC, 1)
    return arena


@pytest.fixture
def handler(topic: Arena) -> Iterator[ArenaHandler]:
    handler = ArenaHandler(topic, max_block_ms=0)
    yield handler
    handler.close()


@pytest.fixture
def log(handler: ArenaHandler) -> Iterator[logging.Logger]:
    """A logger with only that handler."""
    log = logging.getLogger(f"test-{os.getpid()}")
    log.propagate = False
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    yield log
    log.removeHandler(handler)


def delivered(arena: Arena) -> list[tuple[bytes | None, dict[str, Any]]]:
    """The keys and the parsed values of all records that the arena holds."""
    with Drainer(arena) as drainer:
        wait_until(
            lambda: arena.statistics().slots["READY"] == arena.statistics().slots["OPEN"] == 0, "all is delivered"
        )
    return [(key, json.loads(value or b"")) for key, value in drainer.records[TOPIC, 0]]


def fill(log: logging.Logger, handler: ArenaHandler) -> int:
    """Log until the arena is full. Return the number of its records."""
    count = 0
    while handler.drop_count == 0:
        log.info(LONG)
        count += 1
    return count - 1


# --- the record


def test_a_log_record_becomes_a_json_object(topic: Arena, log: logging.Logger) -> None:
    log.info("flight %s", "AA11", extra={"gate": 7, "where": {"at": "JFK"}})
    [(key, found)] = delivered(topic)
    assert key is None
    assert {name: found[name] for name in ("message", "level", "logger", "gate", "where", "process", "function")} == {
        "message": "flight AA11",
        "level": "INFO",
        "logger": log.name,
        "gate": 7,
        "where": {"at": "JFK"},
        "process": os.getpid(),
        "function": "test_a_log_record_becomes_a_json_object",
    }
    assert found["timestamp"].endswith("Z")
    assert abs(time.time() - time.mktime(time.strptime(found["timestamp"][:19], "%Y-%m-%dT%H:%M:%S"))) < 15 * 3600


@pytest.mark.parametrize(
    ("created", "timestamp"),
    [
        (0.0, "1970-01-01T00:00:00.000000Z"),
        (1_700_000_000.000001, "2023-11-14T22:13:20.000001Z"),
        (1_700_000_000.999999, "2023-11-14T22:13:20.999999Z"),
        (1_699_999_999.9999999, "2023-11-14T22:13:20.000000Z"),
    ],
)
def test_a_timestamp_has_microseconds(created: float, timestamp: str) -> None:
    record = logging.makeLogRecord({"msg": "a", "created": created})
    assert json.loads(JsonFormatter().format(record))["timestamp"] == timestamp


class _FormatterWithHost(JsonFormatter):
    """Adds a field to each record."""

    def more(self, record: logging.LogRecord) -> dict[str, Any]:
        return {"host": "a", **super().more(record)}


class _FormatterBelow(_FormatterWithHost):
    """Inherits the addition."""


@pytest.mark.parametrize("kind", [_FormatterWithHost, _FormatterBelow])
def test_a_formatter_of_the_program_adds_fields_to_each_record(kind: type[JsonFormatter]) -> None:
    plain, given = logging.makeLogRecord({"msg": "a"}), logging.makeLogRecord({"msg": "a", "gate": 7})
    assert json.loads(kind().format(plain))["host"] == "a"
    assert {"host": "a", "gate": 7}.items() <= json.loads(kind().format(given)).items()


def test_an_exception_and_a_stack_are_fields(topic: Arena, log: logging.Logger) -> None:
    try:
        raise LookupError("no gate")
    except LookupError:
        log.exception("failed", stack_info=True)
    [(_, found)] = delivered(topic)
    assert "LookupError: no gate" in found["exception"]
    assert "Stack (most recent call last)" in found["stack"]


@pytest.mark.parametrize(
    "extra",
    [{"ratio": float("nan")}, {"at": {(1, 2): 3}}, {"when": object()}, {"text": "\udc80"}],
    ids=["nan", "keys", "object", "surrogate"],
)
def test_an_extra_that_json_cannot_encode_is_still_written(
    topic: Arena, log: logging.Logger, extra: dict[str, Any]
) -> None:
    log.info("odd", extra=extra)
    [(_, found)] = delivered(topic)
    assert set(extra) < set(found)
    assert found["message"] == "odd"


def test_an_extra_takes_no_name_of_the_formatter(topic: Arena, log: logging.Logger) -> None:
    log.info("true", extra={"level": "SHOUT", "timestamp": 0})
    [(_, found)] = delivered(topic)
    assert found["level"] == "INFO"
    assert found["timestamp"] != 0


def test_a_record_names_its_key_headers_and_topic(topic: Arena, handler: ArenaHandler, log: logging.Logger) -> None:
    topic.native.set_topic_partition_count("audit", 1)
    log.info("a", extra={"kafka_key": "AA11", "kafka_headers": {"trace": "1", "none": None}})
    log.info("b", extra={"kafka_key": b"\xff", "kafka_headers": [("trace", b"2")], "kafka_topic": "audit"})
    with Drainer(topic) as drainer:
        wait_until(lambda: len(drainer.values()) == 2, "both are delivered")
    assert drainer.records[TOPIC, 0][0][0] == b"AA11"
    key, value = drainer.records["audit", 0][0]
    assert key == b"\xff"
    assert "kafka_key" not in json.loads(value or b"")


def test_headers_and_the_time_of_the_call_are_those_of_the_kafka_record(
    handler: ArenaHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[Any, ...]] = []
    monkeypatch.setattr(handler, "_producer", Recorder(sent))
    handler.emit(logging.makeLogRecord({"created": 1.5, "kafka_headers": {"trace": "é", 7: None}, "msg": "a"}))
    [(_, _, _, headers, _, timestamp_ms)] = sent
    assert headers == [("trace", "é".encode()), ("7", None)]
    assert timestamp_ms == 1500


class Recorder:
    """A producer that records the arguments of its calls."""

    def __init__(self, sent: list[tuple[Any, ...]]) -> None:
        self._sent = sent
        self.closed = True

    def send(self, *arguments: Any) -> None:
        self._sent.append(arguments)

    def will_be_delivered(self) -> bool:
        return False

    def close(self, timeout: float) -> None:
        """There is nothing to release."""


def test_another_formatter_writes_the_value(topic: Arena, handler: ArenaHandler, log: logging.Logger) -> None:
    handler.setFormatter(logging.Formatter('"%(levelname)s %(message)s"'))
    log.warning("plain")
    [(_, text)] = delivered(topic)
    assert str(text) == "WARNING plain"


# --- nothing reaches the caller


def test_a_record_that_cannot_be_formatted_obeys_raise_exceptions(
    topic: Arena, handler: ArenaHandler, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong_arguments = logging.makeLogRecord({"msg": "%d", "args": ("no number",)})
    handler.handle(wrong_arguments)
    assert "--- Logging error ---" in capsys.readouterr().err
    monkeypatch.setattr(logging, "raiseExceptions", False)
    handler.handle(wrong_arguments)
    handler.handle(logging.makeLogRecord({"msg": "wrong headers", "kafka_headers": 7}))
    assert capsys.readouterr().err == ""
    assert delivered(topic) == []


def test_what_the_arena_does_not_take_is_counted_and_reported_once_per_interval(
    topic: Arena, handler: ArenaHandler, log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = fill(log, handler)
    for _ in range(4):
        log.info(LONG)
    assert handler.drop_count == 5
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"shmaccum.logging: 1 log record for the arena {topic.name!r} had to be dropped: Failed to all"
    )
    assert len(delivered(topic)) == kept

    log.info("room again")
    told = delivered(topic)
    assert told[0][1]["message"] == "room again"
    assert told[1][1]["message"].startswith("5 log records for the arena")
    assert (told[1][1]["level"], told[1][1]["dropped_count"]) == ("WARNING", 5)
    assert len(told) == 2
    handler.close()
    assert capsys.readouterr().err.startswith("shmaccum.logging: 4 log records for the arena")


def test_a_topic_that_is_not_known_in_time_costs_the_record(arena: Arena, capsys: pytest.CaptureFixture[str]) -> None:
    handler = ArenaHandler(arena, "nowhere", max_block_ms=1)
    handler.handle(logging.makeLogRecord({"msg": "lost"}))
    assert handler.drop_count == 1
    assert "the partition count of topic 'nowhere' was not known" in capsys.readouterr().err
    handler.close()


def test_a_handler_waits_until_a_sender_has_reported_all_of_its_topics(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def is_known(_handler: ArenaHandler, topic: str) -> bool:
        asked.append(topic)
        return asked.count(topic) == 2

    monkeypatch.setattr("shmaccum.logging.START_TIMEOUT_S", WATCHDOG_S)
    monkeypatch.setattr(Producer, "will_be_delivered", lambda _producer: True)
    monkeypatch.setattr(ArenaHandler, "_is_known", is_known)
    handler = ArenaHandler(arena, TOPIC, topics=["audit"], max_block_ms=0)
    assert sorted(asked) == ["audit", "audit", TOPIC, TOPIC]
    handler.close()


def test_a_topic_is_known_when_a_sender_has_reported_its_partitions(topic: Arena, handler: ArenaHandler) -> None:
    assert (handler._is_known(TOPIC), handler._is_known("nowhere")) == (True, False)


def test_a_call_after_close_drops_and_does_not_raise(
    handler: ArenaHandler, log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    handler.close()
    log.info("late")
    handler.flush()
    handler.close()
    assert handler.drop_count == 1
    assert "the producer is closed" in capsys.readouterr().err


@pytest.mark.parametrize("error", [None, "closed"])
def test_a_process_without_stderr_drops_in_silence(
    handler: ArenaHandler, log: logging.Logger, monkeypatch: pytest.MonkeyPatch, error: str | None
) -> None:
    stream = open(os.devnull, "w")  # noqa: SIM115 - it is closed on purpose
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream if error else None)
    handler.close()
    log.info("late")
    assert handler.drop_count == 1


def test_threads_do_not_wait_for_each_other(
    topic: Arena, handler: ArenaHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both threads are in a send at the same time."""
    both = threading.Barrier(2)
    sent: list[tuple[Any, ...]] = []

    class Meeting(Recorder):
        def send(self, *arguments: Any) -> None:
            both.wait(WATCHDOG_S)
            super().send(*arguments)

    monkeypatch.setattr(handler, "_producer", Meeting(sent))
    threads = [threading.Thread(target=handler.handle, args=(logging.makeLogRecord({"msg": "a"}),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG_S)
    assert len(sent) == 2


def test_records_of_our_own_loggers_do_not_go_through_the_arena(
    topic: Arena, handler: ArenaHandler, capsys: pytest.CaptureFixture[str]
) -> None:
    own = logging.getLogger("shmaccum.producer")
    own.addHandler(handler)
    own.propagate = False
    try:
        own.warning("no sender runs")
        own.info("in order")
    finally:
        own.removeHandler(handler)
        own.propagate = True
    assert capsys.readouterr().err == "no sender runs\n"
    assert delivered(topic) == []
    assert handler.drop_count == 0


def test_a_filter_may_refuse_a_record(topic: Arena, handler: ArenaHandler, log: logging.Logger) -> None:
    handler.addFilter(lambda record: "secret" not in record.getMessage())
    log.info("secret")
    log.info("open")
    assert [found["message"] for _, found in delivered(topic)] == ["open"]


# --- processes


def test_a_forked_child_logs_and_counts_its_own_drops(
    topic: Arena, handler: ArenaHandler, log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    handler._drops.add("the parent's", 1000)

    def logs() -> tuple[int, int]:
        before = handler.drop_count
        log.info("child")
        return before, handler.drop_count

    assert run_in_child(logs) == "(0, 0)"
    assert handler.drop_count == 1
    assert [found["message"] for _, found in delivered(topic)] == ["child"]


def test_a_child_is_free_of_a_lock_that_a_thread_of_its_parent_held() -> None:
    drops = _Drops("arena")
    held, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with drops._lock:
            held.set()
            may_go.wait(WATCHDOG_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(WATCHDOG_S)
    try:
        run_in_child(drops.take_unreported)
    finally:
        may_go.set()
        thread.join(WATCHDOG_S)


PROGRAM = """
import logging.config, sys
logging.config.dictConfig({
    "version": 1,
    "handlers": {"arena": {
        "class": "shmaccum.logging.ArenaHandler", "level": "INFO", "arena": sys.argv[1], "topic": "logs",
        "sink": "log:" + sys.argv[2], "linger_ms": 50, "idle_exit_ms": "100ms",
        "arena_options": {"buffer_memory": "64KiB", "batch_size": "4KiB", "process_count": 64},
    }},
    "root": {"handlers": ["arena"], "level": "DEBUG"},
})
logging.getLogger("app").debug("not this")
logging.getLogger("app").info("the first of %d", 1)
"""


def test_dict_config_makes_arena_and_sender_and_the_end_of_the_process_delivers(arena_name: str, tmp_path: Any) -> None:
    log = tmp_path / "log"
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, arena_name, str(log)], capture_output=True, text=True, timeout=WATCHDOG_S
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    [record] = LogReader(log).partition("logs", 0).records()
    found = json.loads(record.value or b"")
    assert (found["logger"], found["level"], found["message"]) == ("app", "INFO", "the first of 1")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"max_block_ns": 1}, "max_block_ns"),
        ({"sink": "nowhere:x"}, "nowhere"),
        ({"arena_options": {"size": 1}}, "size"),
    ],
    ids=["option", "sink", "arena"],
)
def test_a_wrong_option_is_refused_before_there_is_an_arena(
    arena_name: str, options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=fault):
        ArenaHandler(arena_name, **options)
    assert not Arena.exists(arena_name)


def test_the_module_of_the_standard_library_keeps_its_name() -> None:
    assert logging.Handler.__module__ == "logging"
    assert JsonFormatter.__mro__[1] is logging.Formatter
