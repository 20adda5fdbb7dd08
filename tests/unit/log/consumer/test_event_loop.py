# SPDX-License-Identifier: Apache-2.0
"""A consumer in an event loop does not block the loop while it waits. A cancelled call loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum import Consumer, ConsumerStateError, GroupBusyError, InvalidArgumentError
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.consumer import group
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.log_watch import LogWatch
from shmaccum.log.groups.member_locks import MemberLocks
from tests.support.descriptors import await_no_other, open_descriptors
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.segment_log import TOPIC, make_batch, make_batches, open_log

PLACE = TopicPartition(TOPIC, 0)
FOREVER_MS = 3_600_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogDirectory]:
    """A log that is written while it is consumed: one topic with one partition."""
    with open_log(tmp_path) as directory:
        directory.partition(TOPIC, 0)
        yield directory


def consumer_of(log: LogDirectory, **options: Any) -> Consumer:
    return Consumer(log.path, TOPIC, auto_offset_reset="earliest", **options)


def append(log: LogDirectory, *values: bytes) -> None:
    log.partition(TOPIC, 0).append([make_batch(values)])


def run(work: Awaitable[Any]) -> Any:
    async def watched() -> Any:
        return await asyncio.wait_for(work, WATCHDOG_S)

    return asyncio.run(watched())


async def turns(count: int) -> None:
    """Runs every other task of the loop until its next wait."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_async_for_reads_all_records_and_ends_when_none_comes(log: LogDirectory) -> None:
    log.partition(TOPIC, 0).append(make_batches(3))

    async def read() -> list[int]:
        with consumer_of(log, consumer_timeout_ms=0) as consumer:
            found = [record.offset async for record in consumer]
            append(log, b"more")
            return found + [record.offset async for record in consumer]

    assert run(read()) == list(range(10))


@pytest.mark.parametrize("has_watch", [True, False], ids=["watch", "no watch"])
def test_the_loop_continues_while_a_call_waits_for_an_append(
    log: LogDirectory, monkeypatch: pytest.MonkeyPatch, has_watch: bool
) -> None:
    if not has_watch:
        monkeypatch.setattr(LogWatch, "add", lambda _self, _path: False)

    async def read() -> list[Any]:
        with consumer_of(log) as first, consumer_of(log, value_deserializer=int) as second:
            before = set(threading.enumerate())
            calls = [asyncio.create_task(one.apoll(FOREVER_MS)) for one in (first, second)]
            await turns(50)
            assert [call.done() for call in calls] == [False, False]
            assert set(threading.enumerate()) <= before
            append(log, b"1", b"2")
            return [[record.value for record in (await call)[PLACE]] for call in calls]

    assert run(read()) == [[b"1", b"2"], [1, 2]]


def test_batches_and_tables_are_awaited(log: LogDirectory) -> None:
    log.partition(TOPIC, 0).append(make_batches(2))

    async def read() -> tuple[list[int], int, int]:
        with consumer_of(log) as consumer:
            found = [batch.base_offset async for _, batch in consumer.abatches(timeout_ms=0)]
            call = asyncio.create_task(consumer.apoll_arrow(FOREVER_MS))
            await turns(50)
            assert not call.done()
            append(log, b"more", b"and more")
            return found, (await call).num_rows, (await consumer.apoll_arrow()).num_rows

    assert run(read()) == ([0, 3], 2, 0)


def test_a_cancelled_wait_for_a_table_loses_no_record(log: LogDirectory) -> None:
    async def read() -> list[int]:
        with consumer_of(log) as consumer:
            call = asyncio.create_task(consumer.apoll_arrow(FOREVER_MS))
            await turns(10)
            append(log, b"1")
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                return list((await call)["offset"].to_pylist())
            return list((await consumer.apoll_arrow(FOREVER_MS))["offset"].to_pylist())

    assert run(read()) == [0]


def test_a_task_beside_a_consumer_that_finds_records_at_once_has_its_turn(log: LogDirectory) -> None:
    log.partition(TOPIC, 0).append(make_batches(10))

    async def read() -> tuple[int, int]:
        count = 0

        async def tick() -> None:
            nonlocal count
            while True:
                count += 1
                await asyncio.sleep(0)

        with consumer_of(log) as consumer:
            beside = asyncio.create_task(tick())
            polls = 0
            while await consumer.apoll(max_records=1):
                polls += 1
            beside.cancel()
        return polls, count

    polls, count = run(read())
    assert polls == 30
    assert count >= polls


def test_cancelled_calls_lose_no_record(log: LogDirectory, seeded: Callable[[], random.Random]) -> None:
    chance = seeded()

    async def read() -> list[int]:
        found: list[int] = []
        written = 0
        with consumer_of(log) as consumer:
            while len(found) < 300:
                call = asyncio.create_task(consumer.apoll(FOREVER_MS, chance.randrange(1, 5)))
                await turns(chance.randrange(4))
                if written < 300:
                    append(log, *[b"%d" % number for number in range(written, written + 3)])
                    written += 3
                await turns(chance.randrange(4))
                if written < 300 or chance.random() < 0.5:
                    call.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    found += [int(record.value) for record in (await call).get(PLACE, [])]
        return found

    assert run(read()) == list(range(300))


def test_a_wait_ends_by_its_time_by_wakeup_and_by_close(log: LogDirectory) -> None:
    async def read() -> None:
        consumer = consumer_of(log)
        assert await consumer.apoll() == {}
        assert await consumer.apoll(5) == {}
        call = asyncio.create_task(consumer.apoll(FOREVER_MS))
        await turns(10)
        threading.Thread(target=consumer.wakeup).start()
        assert await call == {}
        call = asyncio.create_task(consumer.apoll(FOREVER_MS))
        await turns(10)
        consumer.close()
        with pytest.raises(ConsumerStateError, match="was closed"):
            await call
        with pytest.raises(ConsumerStateError):
            await consumer.apoll()

    run(read())


def test_the_descriptors_of_a_closed_consumer_are_free_for_the_loop(log: LogDirectory) -> None:
    async def read() -> None:
        before = open_descriptors()
        for _ in range(3):
            consumer = consumer_of(log)
            call = asyncio.create_task(consumer.apoll(FOREVER_MS))
            await turns(10)
            consumer.close()
            with pytest.raises(ConsumerStateError):
                await call
        await_no_other(before)

    run(read())


def test_wrong_calls_say_what_to_do(log: LogDirectory) -> None:
    async def read() -> None:
        with Consumer(log.path) as consumer:
            with pytest.raises(ConsumerStateError, match="neither a subscription nor an assignment"):
                await consumer.apoll()
            consumer.subscribe([TOPIC])
            with pytest.raises(InvalidArgumentError, match="1 or more"):
                await consumer.apoll(max_records=0)
            with pytest.raises(ConsumerStateError, match="set group_id"):
                await consumer.acommit()

    run(read())


def test_a_second_task_is_refused_while_one_waits(log: LogDirectory) -> None:
    async def read() -> None:
        with consumer_of(log) as consumer:
            call = asyncio.create_task(consumer.apoll(FOREVER_MS))
            await turns(10)
            with pytest.raises(ConsumerStateError, match="in one task at a time"):
                await consumer.apoll(FOREVER_MS)
            append(log, b"1")
            assert len((await call)[PLACE]) == 1

    run(read())


def test_the_loop_continues_while_another_member_writes(log: LogDirectory) -> None:
    append(log, b"1", b"2")

    async def read() -> None:
        other = MemberLocks(log.path, "g")
        with consumer_of(log, group_id="g", enable_auto_commit=False) as consumer:
            assert len((await consumer.apoll(FOREVER_MS))[PLACE]) == 2
            other.lock_offsets(0)
            with pytest.raises(GroupBusyError):
                await consumer.acommit(timeout_ms=5)
            call = asyncio.create_task(consumer.acommit())
            await turns(50)
            assert not call.done()
            other.unlock_offsets()
            await call
            assert consumer.committed(PLACE) == 2
        other.close()

    run(read())


def test_a_poll_finds_records_while_a_stopped_member_has_the_pen(log: LogDirectory) -> None:
    append(log, b"1")
    other = MemberLocks(log.path, "g")
    with consumer_of(log, group_id="g") as consumer:
        assert len(consumer.poll(timeout_ms=1000)[PLACE]) == 1
        with consumer_of(log, group_id="g"):
            pass  # another plan follows its join and its exit; it may have owned the partition in between
        other.lock_offsets(0)
        append(log, b"2")
        assert consumer.poll(timeout_ms=FOREVER_MS)[PLACE][-1].value == b"2"
        other.unlock_offsets()
    other.close()


def test_a_plan_that_no_member_replaces_is_reported(
    log: LogDirectory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "OUTDATED_S", 0.0)
    with contextlib.ExitStack() as stack:
        with contextlib.closing(MemberLocks(log.path, "g")) as other, other.planner():
            consumer = stack.enter_context(consumer_of(log, group_id="g"))
            assert consumer.poll() == {}
            assert "the plan of the group 'g' has been outdated" in caplog.text
            assert not consumer.assignment()
        wait_until(lambda: not consumer.poll() and consumer.assignment() == {PLACE}, "the consumer plans itself")
