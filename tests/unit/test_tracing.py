# SPDX-License-Identifier: Apache-2.0
"""Spans of producers and consumers, and the headers with which a trace continues."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum import Consumer, Producer, Sender
from shmaccum.aio import Producer as LoopProducer
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.exceptions import InvalidArgumentError, PackageMissingError, RecordTooLargeError
from shmaccum.producer.pipeline import ProducerRecord
from shmaccum.tracing import TracingInterceptor, processing
from tests.support.accumulator import Accumulator
from tests.support.arenas import Drainer, drain
from tests.support.processes import wait_until

trace = pytest.importorskip("opentelemetry.trace")
sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

TOPIC = "flights"


class Spans:
    """The spans that ended, in a provider of OpenTelemetry's SDK."""

    def __init__(self) -> None:
        self.provider = sdk.TracerProvider()
        self._exporter = memory.InMemorySpanExporter()
        self.provider.add_span_processor(export.SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[Any]:
        """The ended spans with this name, in the order of their ends."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def await_named(self, name: str, count: int) -> list[Any]:
        """The same, when there are so many."""
        wait_until(lambda: len(self.named(name)) >= count, f"{count} spans {name!r} ended")
        return self.named(name)


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def instrumented(spans: Spans) -> Iterator[None]:
    instrumentation = pytest.importorskip("shmaccum.instrumentation", exc_type=PackageMissingError)
    instrumentor = instrumentation.ShmaccumInstrumentor()
    instrumentor.instrument(tracer_provider=spans.provider, skip_dep_check=True)
    yield
    instrumentor.uninstrument()


@contextlib.contextmanager
def sent_to(arena: Arena, log: Path) -> Iterator[Producer]:
    """A producer whose records are in a log at the end."""
    with Sender(arena, f"log:{log}") as sender:
        thread = threading.Thread(target=sender.run)
        thread.start()
        with Producer(arena) as producer:
            yield producer
        sender.stop()
        thread.join()


def traceparent(span: Any) -> tuple[str, bytes]:
    context = span.get_span_context()
    return "traceparent", b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)


def linked(span: Any) -> list[int]:
    return [link.context.span_id for link in span.links]


def ids(spans: list[Any]) -> list[int]:
    return [span.get_span_context().span_id for span in spans]


def test_each_record_has_a_span_of_its_append_and_a_linked_span_of_its_delivery(arena: Arena, spans: Spans) -> None:
    arena.declare_topic(TOPIC, 1)
    with Drainer(arena), Producer(arena, interceptors=[TracingInterceptor(spans.provider)]) as producer:
        future = producer.send(TOPIC, b"one", headers=[("own", b"1")])
        (created,) = spans.named(f"create {TOPIC}")
        assert future.headers_size == len("own") + 1 + sum(map(len, traceparent(created)))
        producer.send_many(TOPIC, [b"two", None], keys=[b"k", b"k"])
        producer.flush()
        sent = spans.await_named(f"send {TOPIC}", 3)
    created = spans.named(f"create {TOPIC}")
    sent.sort(key=lambda span: ids(created).index(*linked(span)))  # a known result ends a span at once
    assert [linked(span) for span in sent] == [[number] for number in ids(created)]
    assert {(span.kind, span.attributes["messaging.system"]) for span in created} == {
        (trace.SpanKind.PRODUCER, "kafka")
    }
    assert [span.attributes.get("messaging.kafka.message.tombstone") for span in created] == [None, None, True]
    assert {span.kind for span in sent} == {trace.SpanKind.CLIENT}
    assert {span.attributes["messaging.destination.partition.id"] for span in sent} == {"0"}
    assert all(append.end_time <= send.end_time for append, send in zip(created, sent, strict=True))


def test_a_span_has_the_error_of_its_append(arena: Arena, spans: Spans) -> None:
    arena.declare_topic(TOPIC, 1)
    with Drainer(arena), Producer(arena, interceptors=[TracingInterceptor(spans.provider)]) as producer:
        with pytest.raises(RecordTooLargeError):
            producer.send(TOPIC, bytes(1 << 30))
        with pytest.raises(TypeError):
            producer.send_many(TOPIC, [b"appended", 7])
    large, appended, wrong = spans.named(f"create {TOPIC}")
    assert large.attributes["error.type"] == "RecordTooLargeError"
    assert not large.status.is_ok
    assert not wrong.status.is_ok
    assert appended.status.is_ok


def test_the_span_of_a_delivery_has_its_error(arena: Arena, spans: Spans) -> None:
    arena.declare_topic(TOPIC, 1)
    with Producer(arena, interceptors=[TracingInterceptor(spans.provider)]) as producer:
        producer.send(TOPIC, b"v")
        with Accumulator(arena) as sender:
            sender.become_sender()
            for batch in drain(sender):
                sender.complete(batch, BatchResult.ABORTED)
        (sent,) = spans.await_named(f"send {TOPIC}", 1)
    assert sent.attributes["error.type"] == "DeliveryAbortedError"


def test_a_serializer_that_sends_is_inside_the_span_of_its_record(arena: Arena, spans: Spans) -> None:
    arena.declare_topic(TOPIC, 1)
    arena.declare_topic("audit", 1)

    def serialize(value: bytes) -> bytes:
        if value != b"seen":
            producer.send("audit", b"seen")
        return value

    interceptors = [TracingInterceptor(spans.provider)]
    with Drainer(arena), Producer(arena, value_serializer=serialize, interceptors=interceptors) as producer:
        producer.send_many(TOPIC, [b"1", b"2"])
        assert len(spans.named("create audit")) == len(spans.named(f"create {TOPIC}")) == 2


@pytest.mark.usefixtures("instrumented")
def test_tasks_of_an_event_loop_have_their_own_spans(arena: Arena, spans: Spans) -> None:
    arena.declare_topic(TOPIC, 1)

    async def main() -> None:
        async with LoopProducer(arena) as producer:
            await asyncio.gather(
                *(producer.send(TOPIC, b"v") for _ in range(5)), producer.send_many(TOPIC, [b"v"] * 2000)
            )
            await producer.flush()
            await asyncio.to_thread(spans.await_named, f"send {TOPIC}", 2005)

    with Drainer(arena):
        asyncio.run(main())
    sent = spans.named(f"send {TOPIC}")
    assert sorted(number for span in sent for number in linked(span)) == sorted(ids(spans.named(f"create {TOPIC}")))


@pytest.mark.usefixtures("instrumented")
def test_a_consumer_continues_the_trace(arena: Arena, spans: Spans, tmp_path: Path) -> None:
    with sent_to(arena, tmp_path / "log") as producer:
        producer.send_many(TOPIC, [b"1", b"2"], keys=[b"k", b"k"])
    created = spans.named(f"create {TOPIC}")
    with Consumer(tmp_path / "log", TOPIC, auto_offset_reset="earliest") as consumer:
        (records,) = consumer.poll(60_000).values()
        (polled,) = spans.named(f"poll {TOPIC}")
        with processing(records[1], spans.provider) as current:
            assert trace.get_current_span() is current
    assert linked(polled) == ids(created)
    assert polled.attributes["messaging.batch.message_count"] == 2
    (processed,) = spans.named(f"process {TOPIC}")
    assert processed.parent.span_id == ids(created)[1]
    assert processed.context.trace_id == created[1].context.trace_id
    assert processed.attributes["messaging.kafka.offset"] == 1


@pytest.mark.usefixtures("instrumented")
def test_a_child_of_a_fork_has_spans(arena: Arena, spans: Spans) -> None:
    arena.declare_topic(TOPIC, 1)
    with Drainer(arena), Producer(arena) as producer:
        producer.send(TOPIC, b"parent")
        child = os.fork()
        if child == 0:
            try:
                producer.send(TOPIC, b"child")
                producer.flush(60)
                created = ids(spans.named(f"create {TOPIC}"))[-1:]
                wait_until(lambda: created in map(linked, spans.named(f"send {TOPIC}")), "the child's record is sent")
                os._exit(0)
            except BaseException:  # noqa: BLE001 - the child must not return into pytest
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        producer.flush()
        assert linked(spans.await_named(f"send {TOPIC}", 1)[0]) == ids(spans.named(f"create {TOPIC}"))


@pytest.mark.usefixtures("instrumented")
def test_arrow_data_have_no_spans_and_are_sent(arena: Arena, spans: Spans) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    arena.declare_topic(TOPIC, 1)
    with Drainer(arena), Producer(arena) as producer:
        assert len(producer.append_arrow(pyarrow.table({"value": [b"1", b"2"]}), topic=TOPIC)) == 2
    assert not spans.named(f"create {TOPIC}")


def test_nothing_is_instrumented_any_more_after_uninstrument(arena: Arena, spans: Spans, instrumented: None) -> None:
    from shmaccum.instrumentation import ShmaccumInstrumentor

    arena.declare_topic(TOPIC, 1)
    ShmaccumInstrumentor().uninstrument()
    with Drainer(arena), Producer(arena) as producer:
        assert producer._pipeline is None
        assert producer.send(TOPIC, b"v").headers_size == -1
    assert not spans.named(f"create {TOPIC}")


def test_records_without_a_trace_are_not_linked(arena: Arena, spans: Spans, tmp_path: Path) -> None:
    with sent_to(arena, tmp_path) as producer:
        producer.send(TOPIC, b"v", headers=[("traceparent", None), ("other", b"\xff")])
    interceptors = [TracingInterceptor(spans.provider)]
    with Consumer(tmp_path, TOPIC, auto_offset_reset="earliest", interceptors=interceptors) as consumer:
        consumer.poll(60_000)
    (polled,) = spans.named(f"poll {TOPIC}")
    assert linked(polled) == []


def test_headers_of_the_same_name_are_replaced_and_others_stay(spans: Spans) -> None:
    interceptor = TracingInterceptor(spans.provider)
    interceptor.begin_call()
    headers = [("traceparent", b"old"), ("own", b"1")]
    records = [interceptor.on_send(ProducerRecord(TOPIC, b"v", headers=given)) for given in (headers, None)]
    interceptor.end_call({}, None)
    first, second = map(traceparent, spans.named(f"create {TOPIC}"))
    assert [record.headers for record in records] == [[("own", b"1"), first], [second]]


def test_without_the_package_the_error_reports_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(InvalidArgumentError, match=r"opentelemetry-api: pip install '\.\[opentelemetry\]'"):
        TracingInterceptor()


# --- metrics


def test_the_metrics_of_an_arena_are_exported_by_the_sdk(arena: Arena) -> None:
    instrumentation = pytest.importorskip("shmaccum.instrumentation", exc_type=PackageMissingError)
    sdk_metrics = pytest.importorskip("opentelemetry.sdk.metrics")
    reader = pytest.importorskip("opentelemetry.sdk.metrics.export").InMemoryMetricReader()
    from shmaccum.observe.prometheus import ArenaCollector

    provider = sdk_metrics.MeterProvider([reader])
    arena.declare_topic(TOPIC, 1)
    instrumentation.export_metrics(ArenaCollector(arena), provider)

    def exported() -> dict[str, Any]:
        scopes = reader.get_metrics_data().resource_metrics[0].scope_metrics
        return {metric.name: metric.data.data_points for scope in scopes for metric in scope.metrics}

    def appended() -> float:
        (point,) = exported()["shmaccum_appended_records"]
        assert dict(point.attributes) == {"arena": arena.name}
        return float(point.value)

    assert appended() == 0
    with Drainer(arena), Producer(arena) as producer:
        producer.send_many(TOPIC, [b"v"] * 3)
        assert appended() == 3
    names = {family.name for family in ArenaCollector(arena).collect() if family.samples}
    assert names <= set(exported())
    states = {point.attributes["state"]: point.value for point in exported()["shmaccum_slots"]}
    assert sum(states.values()) == 16
    provider.shutdown()
