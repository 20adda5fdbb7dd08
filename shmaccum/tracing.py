# SPDX-License-Identifier: Apache-2.0
"""Spans of OpenTelemetry for records, which continue a trace from the producer to the consumer.

::

    ShmaccumInstrumentor().instrument()      all producers and consumers of this process that are created afterwards
    producer = Producer("events", interceptors=[TracingInterceptor()])                                  one producer

::

    create TOPIC   PRODUCER   from send() to the end of the append; its context is in the headers of the record
    send TOPIC     CLIENT     from the append to the result, with a link to "create TOPIC"
    poll TOPIC     CLIENT     the records of a topic that a poll returned, with links to "create TOPIC"
    process TOPIC  CONSUMER   a block of the program (`processing`), a child of "create TOPIC"

The names and attributes are those of OpenTelemetry's semantic conventions for messaging. The headers are those of its
global propagator: ``traceparent`` and ``tracestate`` of W3C Trace Context and ``baggage``, unless the program chose
others. Another consumer reads them as OpenTelemetry's instrumentations of Kafka clients do.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, final

from shmaccum import __version__
from shmaccum._native import DeliveryFuture
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.packages import needed
from shmaccum.exceptions import DeliveryError
from shmaccum.log.consumer.record import ConsumerRecord
from shmaccum.producer.delivery import RecordMetadata
from shmaccum.producer.pipeline import ProducerRecord

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider


_calls: ContextVar[tuple[list[tuple[Any, str]], ...]] = ContextVar("shmaccum_calls", default=())
"""The open spans of each call of `send` or `send_many` in this context. One call may be inside another one."""


def _attributes(topic: str, name: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }


@final
class TracingInterceptor:
    """Gives the records of a producer or of a consumer spans. A producer adds the headers that identify them.

    The span ``create TOPIC`` ends with the append, and has its error. The span ``send TOPIC`` ends with the result. If
    the process ends before, the record is delivered, and the second span is lost. Headers of the same names are
    replaced. Each poll of a consumer has a span for each partition, with links to the spans of the producers.

    Args:
        tracer_provider: makes the tracer. The default is OpenTelemetry's global one.

    Attributes:
        tracer: makes the spans.

    Raises:
        PackageMissingError: the package opentelemetry-api is not installed.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        with needed("opentelemetry-api", "opentelemetry", "spans need"):
            from opentelemetry import propagate, trace
        self._inject = propagate.inject
        self._trace = trace
        self.tracer: Tracer = trace.get_tracer("shmaccum", __version__, tracer_provider)

    def begin_call(self) -> None:
        """Begins a call that sends records."""
        _calls.set((*_calls.get(), []))

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Begins the span of a record, and returns the record with its headers."""
        attributes = _attributes(record.topic, "create", "create")
        if record.value is None:
            attributes["messaging.kafka.message.tombstone"] = True
        span = self.tracer.start_span(
            f"create {record.topic}", kind=self._trace.SpanKind.PRODUCER, attributes=attributes
        )
        calls = _calls.get()
        if calls:
            calls[-1].append((span, record.topic))
        carrier: dict[str, str] = {}
        self._inject(carrier, self._trace.set_span_in_context(span))
        others = [header for header in record.headers or () if header[0] not in carrier]
        return record._replace(headers=[*others, *((name, value.encode()) for name, value in carrier.items())])

    def end_call(self, futures: Mapping[int, DeliveryFuture], error: BaseException | None) -> None:
        """Ends the spans of the records of a call, and begins those of the deliveries."""
        *others, spans = _calls.get() or ([],)
        _calls.set(tuple(others))
        for number, (span, topic) in enumerate(spans):
            future = futures.get(number)
            if future is None:
                _fail(span, error)
            span.end()
            if future is not None:
                self._begin_delivery(future, span, topic)

    def _begin_delivery(self, future: DeliveryFuture, created: Span, topic: str) -> None:
        span = self.tracer.start_span(
            f"send {topic}",
            kind=self._trace.SpanKind.CLIENT,
            attributes=_attributes(topic, "send", "send"),
            links=[self._trace.Link(created.get_span_context())],
        )
        future.add_callback(_end_delivered, span)
        future.add_errback(_end_failed, span)

    def on_consume(
        self, records: Mapping[TopicPartition, Sequence[ConsumerRecord]]
    ) -> Mapping[TopicPartition, Sequence[ConsumerRecord]]:
        """Makes the spans, and returns the records unchanged."""
        now_ns = time.time_ns()
        for (topic, partition), found in records.items():
            contexts = (self._trace.get_current_span(_context_of(record)).get_span_context() for record in found)
            attributes = _attributes(topic, "poll", "receive") | {
                "messaging.destination.partition.id": str(partition),
                "messaging.batch.message_count": len(found),
            }
            self.tracer.start_span(
                f"poll {topic}",
                kind=self._trace.SpanKind.CLIENT,
                attributes=attributes,
                links=[self._trace.Link(context) for context in contexts if context.is_valid],
                start_time=now_ns,
            ).end()
        return records


def _end_delivered(span: Span, metadata: RecordMetadata) -> None:
    span.set_attribute("messaging.destination.partition.id", str(metadata.partition))
    if metadata.offset >= 0:
        span.set_attribute("messaging.kafka.offset", metadata.offset)
    span.end()


def _end_failed(span: Span, error: DeliveryError) -> None:
    _fail(span, error)
    span.end()


def _fail(span: Span, error: BaseException | None) -> None:
    from opentelemetry.trace import Status, StatusCode

    if error is not None:
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR, str(error)))


def _context_of(record: ConsumerRecord) -> Any:
    """Returns the context in the headers of a record. Without headers of the propagator, it is empty."""
    from opentelemetry import context, propagate

    carrier = {name: value.decode("utf-8", "replace") for name, value in record.headers if value is not None}
    return propagate.extract(carrier, context.Context())


@contextlib.contextmanager
def processing(record: ConsumerRecord, tracer_provider: TracerProvider | None = None) -> Iterator[Span]:
    """Processes a consumed record in a span of its own, which continues the trace of its producer.

    ::

        for record in consumer:
            with shmaccum.tracing.processing(record):
                ...

    Args:
        record: of shmaccum's consumer, or any object with its attributes, such as kafka-python's.
        tracer_provider: makes the tracer. The default is OpenTelemetry's global one.

    Raises:
        PackageMissingError: the package opentelemetry-api is not installed.
    """
    tracer = TracingInterceptor(tracer_provider).tracer
    from opentelemetry import trace

    attributes = _attributes(record.topic, "process", "process") | {
        "messaging.destination.partition.id": str(record.partition),
        "messaging.kafka.offset": record.offset,
    }
    with tracer.start_as_current_span(
        f"process {record.topic}",
        context=_context_of(record),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
    ) as span:
        yield span
