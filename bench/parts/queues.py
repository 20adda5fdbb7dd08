# SPDX-License-Identifier: Apache-2.0
"""Queues of bytes between processes. A product is a contender in every work that it supports."""

from __future__ import annotations

import abc
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

from bench.harness.pacing import RECORD_COUNT as PACED_COUNT
from bench.harness.pacing import age_ns, send_paced
from bench.harness.percentiles import percentiles
from bench.harness.question import Contender, Guarantees, Measurement
from bench.harness.stopwatch import Stopwatch
from bench.parts.receiving import PRODUCER_COUNT, forked, taken
from bench.parts.sending import VALUE, per_record

Send = Callable[[bytes], object]
SendMany = Callable[[list[bytes]], object]
Take = Callable[[], Sequence[bytes]]

JOIN_TIMEOUT_S = 60
ECHO_COUNT = 500


class Queue(abc.ABC):
    """One queue, created in the measuring process. The processes of a round are forked from it and open its ends."""

    @abc.abstractmethod
    def open_sender(self) -> AbstractContextManager[Send]:
        """Open the sending end in a sending process."""

    def open_many_sender(self) -> AbstractContextManager[SendMany]:
        """Open the sending end for calls of many records."""
        raise NotImplementedError

    @abc.abstractmethod
    def open_taker(self) -> AbstractContextManager[Take]:
        """Open the receiving end. A call waits for a record, and returns all records that it reads at once."""

    def close(self) -> None:  # noqa: B027 # optional
        """Release resources outside of the memory of processes."""


@dataclass(frozen=True)
class Product:
    """A product's queue as a contender.

    Attributes:
        name: the name of the product.
        make: creates a queue for a round.
        calls: the name of the call for each supported work of `bench.peers`.
        record_count: the number of records in a round of ``send``.
        call_size: the number of records in a call of many.
    """

    name: str
    make: Callable[[], Queue]
    calls: dict[str, str]
    version: Callable[[], str]
    guarantees: Guarantees
    record_count: int
    call_size: int = 1000

    def works(self) -> dict[str, Callable[[], list[Contender]]]:
        """Return the `WORKS` of a module of ``bench.peers``."""
        return {work: self._contenders(work) for work in self.calls}

    def _contenders(self, work: str) -> Callable[[], list[Contender]]:
        runs = {"send": _send, "send_many": _send_many, "drained": _drained, "latency": _latency, "echo": _echoed}
        name = f"{self.name} {self.calls[work]}".rstrip()
        contender = Contender(name, lambda: self._run(runs[work]), version=self.version, guarantees=self.guarantees)
        return lambda: [contender]

    def _run(self, work: Callable[[Product, Queue], Measurement]) -> Measurement:
        queue = self.make()
        try:
            return work(self, queue)
        finally:
            queue.close()


# --- one process sends, another one receives


def _send(product: Product, queue: Queue) -> Measurement:
    count = product.record_count
    with _receiver(_take_count, queue, count) as taker, queue.open_sender() as send:
        stopwatch = Stopwatch()
        for _ in range(count):
            send(VALUE)
        measured = per_record(stopwatch.elapsed(), count)
        taker.recv()
    return measured


def _send_many(product: Product, queue: Queue) -> Measurement:
    call = [VALUE] * product.call_size
    call_count = product.record_count // len(call)
    count = call_count * len(call)
    with _receiver(_take_count, queue, count) as taker, queue.open_many_sender() as send_many:
        stopwatch = Stopwatch()
        for _ in range(call_count):
            send_many(call)
        elapsed = stopwatch.elapsed()
        taker.recv()
    return {"records_per_s": count / elapsed.wall_s, "cpu_ns": elapsed.cpu_s * 1e9 / count}


def _take_count(queue: Queue, count: int, result: Connection) -> None:
    with queue.open_taker() as take:
        result.send(None)
        while count > 0:
            count -= len(take())
        result.send(None)
        # Some senders must live until all records are read, and some readers until the sender has ended.
        result.recv()


def _latency(_product: Product, queue: Queue) -> Measurement:
    with _receiver(_take_ages, queue, PACED_COUNT) as taker, queue.open_sender() as send:
        send_paced(send, PACED_COUNT)
        return percentiles(taker.recv())


def _take_ages(queue: Queue, count: int, result: Connection) -> None:
    ages_ns: list[int] = []
    with queue.open_taker() as take:
        result.send(None)
        while len(ages_ns) < count:
            ages_ns += [age_ns(record) for record in take()]
        result.send(ages_ns)
        result.recv()


def _echoed(product: Product, there: Queue) -> Measurement:
    """Send a record at a time to a process that sends it back through a second queue."""
    back = product.make()
    latencies_ns = []
    try:
        with (
            _receiver(partial(_echo, back), there, ECHO_COUNT + 1),
            back.open_taker() as take,
            there.open_sender() as send,
        ):
            for _ in range(ECHO_COUNT + 1):
                begin_ns = time.perf_counter_ns()
                send(VALUE)
                while not take():
                    pass
                latencies_ns.append(time.perf_counter_ns() - begin_ns)
    finally:
        back.close()
    return percentiles(latencies_ns[1:])


def _echo(back: Queue, there: Queue, count: int, result: Connection) -> None:
    with there.open_taker() as take, back.open_sender() as send:
        result.send(None)
        while count > 0:
            for record in take():
                send(record)
                count -= 1
        result.recv()


@contextmanager
def _receiver(work: Callable[[Queue, int, Connection], None], queue: Queue, count: int) -> Iterator[Connection]:
    """Run a process that opens the receiving end, works, and reports its result. It runs until the end of the block."""
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=work, args=(queue, count, theirs), daemon=True)
    process.start()
    theirs.close()
    mine.recv()
    yield mine
    mine.send(None)
    process.join(JOIN_TIMEOUT_S)
    if process.exitcode != 0:
        raise RuntimeError(f"the receiving process ended with {process.exitcode}")


# --- two processes send, this one receives


def _drained(product: Product, queue: Queue) -> Measurement:
    """Measure two senders. They run until all records are read, because some products lose the records of a sender that
    has ended.
    """
    call_count = product.record_count // product.call_size
    record_count = call_count * product.call_size * PRODUCER_COUNT
    is_taken = multiprocessing.get_context("fork").Event()
    work = _send_calls if "send_many" in product.calls else _send_each
    senders = forked(work, [(queue, call_count, product.call_size, is_taken)] * PRODUCER_COUNT)
    with queue.open_taker() as take:
        return taken(senders, _counted(take, record_count, is_taken.set), record_count)


def _counted(take: Take, left: int, on_last: Callable[[], None]) -> Callable[[], tuple[int, int]]:
    """Return a `take` that calls `on_last` after the last record."""

    def take_piece() -> tuple[int, int]:
        nonlocal left
        count = len(take())
        left -= count
        if left <= 0:
            on_last()
        return count, min(count, 1)

    return take_piece


def _send_each(queue: Queue, call_count: int, call_size: int, is_taken: Event) -> None:
    with queue.open_sender() as send:
        for _ in range(call_count * call_size):
            send(VALUE)
        is_taken.wait()


def _send_calls(queue: Queue, call_count: int, call_size: int, is_taken: Event) -> None:
    call = [VALUE] * call_size
    with queue.open_many_sender() as send_many:
        for _ in range(call_count):
            send_many(call)
        is_taken.wait()
