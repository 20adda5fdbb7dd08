# SPDX-License-Identifier: Apache-2.0
"""``on_unusable`` gives a process another way to send when its arena is poisoned, removed or lost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from shmaccum import Producer, _native, aio
from shmaccum.arena import Arena
from shmaccum.exceptions import (
    ArenaPoisonedError,
    ArenaRemovedError,
    CorruptArenaError,
    InvalidArgumentError,
    ProducerClosedError,
    ResultExpiredError,
)
from shmaccum.logging import ArenaHandler
from shmaccum.observe.health import troubles
from shmaccum.observe.observation import Observer
from tests.support.arenas import SHARED_MEMORY
from tests.support.processes import run_in_child

TOPIC = "flights"


class Other:
    """A substitute for another library's producer."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.records: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def send(self, *arguments: Any, **named: Any) -> str:
        self.records.append((arguments, named))
        return f"answer {len(self.records)}"

    def flush(self, *arguments: Any) -> None:
        self.calls.append(("flush", *arguments))

    def close(self) -> None:
        self.calls.append(("close",))


@pytest.fixture
def lost(arena_name: str) -> Iterator[Arena]:
    """An arena that a test makes unusable, and that is not checked afterwards."""
    arena = Arena.create(
        arena_name, buffer_memory="64KiB", batch_size="4KiB", process_count=64, waiter_count=64, topics={TOPIC: 3}
    )
    yield arena
    gc.collect()
    arena.close()
    if Arena.exists(arena_name):
        Arena.remove(arena_name)


def poison(arena: Arena) -> None:
    """Write the status to the file, as the core does."""
    (place,) = (row[2] for row in _native.layout_fields() if row[:2] == ("globals", "poisoned_status"))
    with open(SHARED_MEMORY / arena.name, "r+b") as file:
        file.seek(arena.native.layout["globals"] + place)
        file.write((13).to_bytes(4, sys.byteorder))


def cut(arena: Arena) -> None:
    os.truncate(SHARED_MEMORY / arena.name, 0)


def remove(arena: Arena) -> None:
    Arena.remove(arena.name)
    arena.native.check_name()


WAYS = {"poison": (poison, ArenaPoisonedError), "cut": (cut, CorruptArenaError), "remove": (remove, ArenaRemovedError)}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[Callable[[Arena], None], type[Exception]]:
    found: tuple[Callable[[Arena], None], type[Exception]] = WAYS[request.param]
    return found


Way = tuple[Callable[[Arena], None], type[Exception]]


def test_records_go_to_the_object_as_they_were_given(lost: Arena, way: Way) -> None:
    other = Other()
    made: list[Other] = []

    def make() -> Other:
        made.append(other)
        return other

    producer = Producer(lost, on_unusable=make, value_serializer="str")
    producer.send(TOPIC, "before")
    assert made == []
    way[0](lost)
    assert producer.send(TOPIC, "a", b"k", None, 1, 5) == "answer 1"
    assert producer.send(topic=TOPIC, value="b", partition=2) == "answer 2"
    assert list(producer.send_many(TOPIC, iter(["c", "d"]), partition=0)) == ["answer 3", "answer 4"]
    assert made == [other]
    assert other.records[:2] == [
        ((TOPIC, "a", b"k", None, 1, 5), {}),
        ((), {"topic": TOPIC, "value": "b", "partition": 2}),
    ]
    assert [record[0][1] for record in other.records[2:]] == ["c", "d"]
    producer.flush(7)
    assert other.calls == [("flush", 7)]
    assert producer.metrics()["producer-metrics"]["fallback-record-send-total"] == 4
    producer.close(5)
    assert [call[0] for call in other.calls] == ["flush", "flush", "close"]
    with pytest.raises(ProducerClosedError):
        producer.send(TOPIC, "late")
    assert len(other.records) == 4


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ARROW_ROWS: list[dict[str, Any]] = [
    {
        "topic": TOPIC,
        "value": b"0",
        "key": b"k",
        "partition": 1,
        "timestamp": 5,
        "headers": [{"key": "h", "value": b"x"}],
    },
    {"topic": TOPIC, "value": None, "key": None, "partition": None, "timestamp": None, "headers": None},
    *({"topic": TOPIC, "value": b"%d" % number, "headers": []} for number in range(2, 500)),
]


def arrow_table() -> pa.Table:
    schema = pa.schema(
        {
            "topic": pa.string(),
            "value": pa.binary(),
            "key": pa.binary(),
            "partition": pa.int32(),
            "timestamp": pa.int64(),
            "headers": HEADERS,
        }
    )
    return pa.Table.from_pylist(ARROW_ROWS, schema)


def sent_values(other: Other) -> list[Any]:
    return [arguments[1] for arguments, _ in other.records]


def test_rows_of_arrow_go_to_the_object(lost: Arena, way: Way) -> None:
    other = Other()
    producer = Producer(lost, on_unusable=lambda: other)
    way[0](lost)
    assert list(producer.append_arrow(arrow_table())) == [f"answer {number}" for number in range(1, 501)]
    assert sent_values(other) == [row["value"] for row in ARROW_ROWS]
    assert other.records[0][0] == (TOPIC, b"0", b"k", [("h", b"x")], 1, 5)
    assert other.records[1][0] == (TOPIC, None, None, None, None, None)
    other.records.clear()
    producer.append_arrow(arrow_table().select(["value"]).to_batches()[0], topic="others")
    assert {arguments[0] for arguments, _ in other.records} == {"others"}
    assert producer.metrics()["producer-metrics"]["fallback-record-send-total"] == 1000
    producer.close(5)


def test_a_stream_of_arrow_that_was_read_in_part_continues_in_the_object(lost: Arena, way: Way) -> None:
    """A stream can be read only once. Records that are already in the arena are not sent again."""
    other = Other()
    producer = Producer(lost, on_unusable=lambda: other)

    def batches() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(arrow_table().to_batches(max_chunksize=100)):
            if number == 2:
                way[0](lost)
            yield batch

    producer.append_arrow(pa.RecordBatchReader.from_batches(arrow_table().schema, batches()))
    assert sent_values(other) == [row["value"] for row in ARROW_ROWS[200:]]
    producer.close(5)


def test_a_wrong_row_of_arrow_is_named_where_rows_would_go_to_the_object(lost: Arena) -> None:
    other = Other()
    producer = Producer(lost, on_unusable=lambda: other)
    cut(lost)
    with pytest.raises(InvalidArgumentError, match="has no topic"):
        producer.append_arrow(arrow_table().select(["value"]))
    with pytest.raises(InvalidArgumentError, match="partition"):
        producer.append_arrow(pa.table({"value": pa.array([b"v"], pa.binary()), "partition": [-5]}), topic=TOPIC)
    with pytest.raises(TypeError):
        producer.append_arrow([b"v"], topic=TOPIC)
    assert other.records == []
    with pytest.raises(CorruptArenaError):
        producer.close(0)


def test_without_the_function_and_with_none_it_raises(lost: Arena, way: Way) -> None:
    count = 0

    def make() -> None:
        nonlocal count
        count += 1

    plain, none = Producer(lost), Producer(lost, on_unusable=make)
    way[0](lost)
    for _ in range(3):
        with pytest.raises(way[1]):
            plain.send(TOPIC, b"")
        with pytest.raises(way[1]):
            none.send(TOPIC, b"")
    assert count == 1
    for producer in (plain, none):
        with contextlib.suppress(way[1]):
            producer.close(0)


def test_a_function_that_fails_is_named_with_its_cause(lost: Arena, way: Way) -> None:
    def fail() -> None:
        raise LookupError("no broker")

    failing, wrong = Producer(lost, on_unusable=fail), Producer(lost, on_unusable=lambda: 3)
    way[0](lost)
    for _ in range(2):  # each loss raises, with the same reason
        with pytest.raises(way[1], match=r"on_unusable .* raised LookupError: no broker"):
            failing.send(TOPIC, b"")
        with pytest.raises(way[1], match=r"on_unusable .* returned 3, which has no send\(\)"):
            wrong.send(TOPIC, b"")
    for producer in (failing, wrong):
        with contextlib.suppress(way[1]):
            producer.close(0)


def test_a_wrong_record_is_no_reason(lost: Arena) -> None:
    producer = Producer(lost, on_unusable=Other)
    with pytest.raises(TypeError):
        producer.send(TOPIC, 3)
    with pytest.raises(TypeError):
        producer.send(TOPIC, vaule=b"")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        producer.send(TOPIC, b"", b"", None, 1, 2, 3, 4)  # type: ignore[call-arg]
    producer.close(0)


def test_a_new_topic_is_not_waited_for_in_an_arena_that_cannot_be_used(lost: Arena, way: Way) -> None:
    """The partition count is unknown, but without an arena no sender can supply it."""
    other = Other()
    producer = Producer(lost, on_unusable=lambda: other, max_block_ms=600_000)
    way[0](lost)
    assert producer.send("new", b"v") == "answer 1"
    producer.send_many("newer", [b"w"])
    producer.append_arrow(pa.table({"value": pa.array([b"x"], pa.binary())}), topic="newest")
    assert sent_values(other) == [b"v", b"w", b"x"]
    producer.close(5)


def test_the_function_may_use_the_producer_which_raises_there(lost: Arena) -> None:
    seen: list[BaseException] = []

    def make() -> Other:
        try:
            producer.send(TOPIC, b"within")
        except CorruptArenaError as error:
            seen.append(error)
        return Other()

    producer = Producer(lost, on_unusable=make)
    cut(lost)
    assert producer.send(TOPIC, b"") == "answer 1"
    assert len(seen) == 1
    producer.close(0)


def test_one_of_many_threads_calls_it_and_the_others_wait(lost: Arena) -> None:
    other, calls = Other(), []
    is_called, goes_on = threading.Event(), threading.Event()

    def make() -> Other:
        calls.append(threading.get_ident())
        is_called.set()
        assert goes_on.wait(60)
        return other

    producer = Producer(lost, on_unusable=make)
    cut(lost)
    threads = [threading.Thread(target=producer.send, args=(TOPIC, b"")) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert is_called.wait(60)
    assert other.records == []
    goes_on.set()
    for thread in threads:
        thread.join(60)
    assert len(calls) == 1
    assert len(other.records) == 8
    producer.close(0)


def test_a_child_of_a_fork_calls_it_again(lost: Arena) -> None:
    made: list[int] = []

    def make() -> Other:
        made.append(os.getpid())
        return Other()

    producer = Producer(lost, on_unusable=make)
    cut(lost)
    producer.send(TOPIC, b"")
    producer.send(TOPIC, b"")

    def send() -> list[Any]:
        answer = producer.send(TOPIC, b"")
        return [answer, made[-1] == os.getpid(), len(made)]

    assert run_in_child(send) == repr(["answer 1", True, 2])
    assert made == [os.getpid()]
    producer.close(0)


def test_a_pickled_producer_does_not_keep_it(lost: Arena) -> None:
    producer = Producer(lost.name, on_unusable=Other)
    copy = pickle.loads(pickle.dumps(producer))
    cut(lost)
    assert producer.send(TOPIC, b"") == "answer 1"
    with pytest.raises(CorruptArenaError):
        copy.send(TOPIC, b"")
    producer.close(0)
    with pytest.raises(CorruptArenaError):
        copy.close(0)


def test_transactions_and_wrong_functions_are_refused(lost: Arena, tmp_path: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="a function without arguments"):
        Producer(lost, on_unusable=3)  # type: ignore[arg-type]
    name = str(tmp_path / "transactional")
    Arena.create(name, buffer_memory="64KiB", batch_size="4KiB", transactional_id="t").close()
    with pytest.raises(InvalidArgumentError, match="cannot be used with transactions"):
        Producer(name, on_unusable=Other)
    with Arena.attach(name) as arena:
        assert sum(process["alive"] for process in arena.native.processes()) == 1
    Arena.remove(name)


def test_the_switch_is_logged_once_and_shown_to_others(lost: Arena, caplog: pytest.LogCaptureFixture) -> None:
    watcher = Observer(Arena.open_read_only(lost.name))
    other = Producer(Arena.attach(lost.name), on_unusable=Other)
    remove(lost)
    assert not any(process.is_on_fallback for process in watcher.observe().processes)
    with caplog.at_level(logging.ERROR, "shmaccum.producer.fallback"):
        other.send(TOPIC, b"")
        other.send(TOPIC, b"")
    assert len([each for each in caplog.records if each.name == "shmaccum.producer.fallback"]) == 1
    seen = watcher.observe()
    assert [process.pid for process in seen.processes if process.is_on_fallback] == [os.getpid()]
    assert any(trouble.kind == "fallback" and str(os.getpid()) in trouble.sentence for trouble in troubles(seen))
    other.close(0)
    other.arena.close()
    watcher.arena.close()


class OtherHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.is_closed = False

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def close(self) -> None:
        self.is_closed = True
        super().close()


def test_a_log_handler_hands_its_records_over(lost: Arena, way: Way) -> None:
    other = OtherHandler()
    handler = ArenaHandler(lost, TOPIC, on_unusable=lambda: other)
    handler.handle(logging.makeLogRecord({"name": "app", "msg": "before"}))
    way[0](lost)
    handler.handle(logging.makeLogRecord({"name": "app", "msg": "after"}))
    handler.flush()
    handler.close()
    assert other.messages == ["after"]
    assert other.is_closed
    assert handler.drop_count == 0


def test_a_log_handler_drops_where_there_is_no_other(lost: Arena, way: Way, capsys: Any) -> None:
    plain = ArenaHandler(lost, TOPIC)
    failing = ArenaHandler(lost, TOPIC, on_unusable=lambda: 3)
    way[0](lost)
    for handler in (plain, failing):
        handler.handle(logging.makeLogRecord({"name": "app", "msg": "lost"}))
        handler.close()
        assert handler.drop_count == 1
    assert "returned 3, which has no handle()" in capsys.readouterr().err


class OtherLoopProducer:
    def __init__(self) -> None:
        self.records: list[tuple[Any, ...]] = []
        self.is_stopped = False

    async def send(self, *record: Any) -> str:
        self.records.append(record)
        return f"answer {len(self.records)}"

    async def stop(self) -> None:
        self.is_stopped = True


def test_a_producer_of_a_loop_awaits_the_other_one(lost: Arena, way: Way) -> None:
    other = OtherLoopProducer()

    async def run() -> None:
        producer = aio.Producer(lost, on_unusable=lambda: other)
        await producer.start()
        await producer.send(TOPIC, b"before")
        way[0](lost)
        assert await producer.send(TOPIC, b"a", b"k", 1, 5) == "answer 1"
        answer: Any = await producer.send_and_wait(TOPIC, b"b")
        assert answer == "answer 2"
        assert list(await producer.send_many(TOPIC, [b"c", b"d"])) == ["answer 3", "answer 4"]
        await producer.flush()
        await producer.close(5)

    asyncio.run(run())
    assert [record[1] for record in other.records] == [b"a", b"b", b"c", b"d"]
    assert other.records[0] == (TOPIC, b"a", b"k", 1, 5, None)
    assert other.is_stopped


def test_a_task_that_awaits_a_result_learns_that_it_is_unknown(lost: Arena) -> None:
    async def run() -> None:
        producer = aio.Producer(lost, linger_ms=0)
        await producer.start()
        future = await producer.send(TOPIC, b"")
        asyncio.get_running_loop().call_later(0.05, cut, lost)
        with pytest.raises(ResultExpiredError, match="lost the memory of the arena"):
            await asyncio.wait_for(future, 30)
        with contextlib.suppress(CorruptArenaError):
            await producer.close(0)

    asyncio.run(run())


def test_callbacks_learn_that_the_result_is_unknown(lost: Arena) -> None:
    producer, told = Producer(lost), threading.Event()
    errors: list[BaseException] = []

    def note(error: BaseException) -> None:
        errors.append(error)
        told.set()

    future = producer.send(TOPIC, b"").add_errback(note)
    cut(lost)
    assert told.wait(30)
    assert isinstance(errors[0], ResultExpiredError)
    assert future.failed()
    with pytest.raises(ResultExpiredError, match="lost the memory of the arena"):
        future.get(30)
    with pytest.raises(CorruptArenaError):
        producer.close(0)
