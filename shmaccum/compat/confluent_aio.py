# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka's ``AIOProducer`` on an arena (confluent_kafka.aio.AIOProducer, confluent-kafka 2).

::

    produce        appends in the thread of the loop. A record that has to wait, for a buffer or for the partitions of
                   a new topic, waits in another thread, and later records wait until it is appended.
    results        wake the loop while a future waits (`LoopResults`), and a poll in the loop ends the futures
    other calls    are those of `Producer`, each in another thread
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, final

from shmaccum.common.background import log_exception
from shmaccum.common.packages import needed
from shmaccum.compat.confluent_errors import kafka_error
from shmaccum.compat.confluent_producer import Producer, settings_of
from shmaccum.exceptions import ResultPendingError
from shmaccum.producer.loop_results import LoopResults

if TYPE_CHECKING:
    from typing_extensions import Self

with needed("confluent-kafka", "confluent", "shmaccum.compat.confluent needs"):
    from confluent_kafka import KafkaError, KafkaException, Message

logger = logging.getLogger(__name__)

CALLBACKS = ("error_cb", "stats_cb", "throttle_cb")
T = TypeVar("T")


def _answer(future: asyncio.Future[Message], error: KafkaError | None, message: Message | None) -> None:
    if future.done():
        return
    if message is None or error is not None:
        future.set_exception(KafkaException(error))
    else:
        future.set_result(message)


def _in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[..., Awaitable[object]]) -> Callable[..., object]:
    """Returns a function for any thread, which starts a callback in the loop."""

    async def call(*arguments: Any) -> None:
        try:
            await callback(*arguments)
        except Exception:  # noqa: BLE001 - of user code
            log_exception(logger, "a callback of an AIOProducer failed")

    return lambda *arguments: asyncio.run_coroutine_threadsafe(call(*arguments), loop)


def _in_thread(method: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
    """Returns a method that calls one of `Producer` in another thread."""

    @functools.wraps(method)
    async def call(self: AIOProducer, *arguments: Any, **options: Any) -> T:
        return await self._call(functools.partial(method, await self._started(), *arguments, **options))

    return call


@final
class AIOProducer:
    """Sends records through the arena for these settings, with the API of confluent-kafka's AIOProducer.

    ::

        async with AIOProducer({"bootstrap.servers": "kafka1:9092"}) as producer:
            message = await (await producer.produce("flights", b"...", key=b"AA11"))

    It never blocks the event loop. When `produce` returns, the record outlives this process.

    Args:
        producer_conf: the options of `Producer`. ``error_cb`` and ``stats_cb`` are coroutine functions.
        max_workers: ignored, as are batch_size and buffer_timeout: records need no threads and no second queue.
        executor: runs the calls that wait. The default is the executor of the loop.

    Raises:
        KafkaException: an option is unknown, refused or invalid.
        RuntimeError: no event loop runs in this thread.
    """

    def __init__(
        self,
        producer_conf: Mapping[str, Any],
        max_workers: int = 4,
        executor: Executor | None = None,
        batch_size: int = 1000,
        buffer_timeout: float = 1.0,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        wrapped = {name: _in_loop(self._loop, producer_conf[name]) for name in CALLBACKS if producer_conf.get(name)}
        self._config = {**producer_conf, **wrapped}
        settings_of(self._config)  # invalid options raise here, and not in the thread that makes the producer
        self._executor = executor
        self._producer: Producer | None = None
        self._start_lock, self._produce_lock = asyncio.Lock(), asyncio.Lock()
        self._known_topics: set[str] = set()
        self._waiting: dict[asyncio.Future[Message], None] = {}
        self._listening = contextlib.ExitStack()
        self._is_closed = False

    async def _call(self, function: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._executor, function)

    async def _started(self) -> Producer:
        if self._is_closed:
            raise RuntimeError("Producer has been closed")
        async with self._start_lock:
            if self._producer is None:
                self._producer = await self._call(functools.partial(Producer, self._config))
        return self._producer

    # --- produce

    async def produce(self, topic: str, value: Any = None, key: Any = None, **options: Any) -> asyncio.Future[Message]:
        """Puts a record into the arena, and returns. A sender delivers it.

        Args:
            topic: the topic.
            value, key: bytes or str.
            options: ``partition``, ``timestamp`` and ``headers``.

        Returns:
            A future with the Message. If the record is rejected or not delivered, it has a KafkaException.
        """
        producer = await self._started()
        future: asyncio.Future[Message] = self._loop.create_future()
        answer: Any = functools.partial(self._loop.call_soon_threadsafe, _answer, future)  # type: ignore[arg-type]
        record = functools.partial(producer.produce, topic, value, key, on_delivery=answer, **options)
        self._watch(producer, future)
        try:
            async with self._produce_lock:
                await self._append(producer, topic, record)
        except KafkaException as error:
            _answer(future, error.args[0], None)
        except BufferError as error:
            _answer(future, KafkaError(KafkaError._QUEUE_FULL, str(error)), None)
        except BaseException:
            future.cancel()
            raise
        return future

    async def _append(self, producer: Producer, topic: str, record: Callable[[], None]) -> None:
        if topic in self._known_topics:
            try:
                record()
            except BufferError:
                await self._call(functools.partial(producer._wait_and_produce, record))
        else:
            await self._call(functools.partial(producer._wait_and_produce, record))
            self._known_topics.add(topic)

    # --- results

    def _watch(self, producer: Producer, future: asyncio.Future[Message]) -> None:
        if not self._waiting:
            results = LoopResults.of(producer._deliveries())
            self._listening.enter_context(results.listening(functools.partial(self._serve, producer)))
        self._waiting[future] = None
        future.add_done_callback(self._forget)

    def _forget(self, future: asyncio.Future[Message]) -> None:
        self._waiting.pop(future, None)
        if not self._waiting:
            self._listening.close()

    def _serve(self, producer: Producer) -> None:
        with contextlib.suppress(RuntimeError):  # another task has closed the producer
            producer.poll(0)

    def __len__(self) -> int:
        """The number of records without a result, and of callbacks that were not called yet."""
        return 0 if self._producer is None or self._is_closed else len(self._producer)

    def __bool__(self) -> bool:
        return True

    poll = _in_thread(Producer.poll)
    flush = _in_thread(Producer.flush)
    purge = _in_thread(Producer.purge)
    list_topics = _in_thread(Producer.list_topics)
    cluster_id = _in_thread(Producer.cluster_id)
    set_sasl_credentials = _in_thread(Producer.set_sasl_credentials)
    init_transactions = _in_thread(Producer.init_transactions)
    begin_transaction = _in_thread(Producer.begin_transaction)
    send_offsets_to_transaction = _in_thread(Producer.send_offsets_to_transaction)
    commit_transaction = _in_thread(Producer.commit_transaction)
    abort_transaction = _in_thread(Producer.abort_transaction)

    # --- end

    async def close(self) -> None:
        """Flushes, and rejects further records. The remaining records stay in the arena and will be sent.

        The future of a remaining record gets a KafkaException.
        """
        self._is_closed = True
        if self._producer is not None:
            await self._call(self._producer.close)
        for future in list(self._waiting):
            error = ResultPendingError("the producer was closed: the record is in the arena and will be sent")
            _answer(future, kafka_error(error, KafkaError._TIMED_OUT), None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
