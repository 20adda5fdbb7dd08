# SPDX-License-Identifier: Apache-2.0
"""Traces that continue after a record: a span for each `send`, and its context in the headers of the record.

::

    producer = shmaccum.Producer("events", interceptors=[shmaccum.tracing.TracingInterceptor()])

The headers are those of OpenTelemetry's global propagator: ``traceparent`` and ``tracestate`` of W3C Trace Context and
``baggage``, unless the program chose others. A consumer reads them as OpenTelemetry's instrumentations of Kafka clients
do. The sender does not read records, so it adds no span.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmaccum import __version__
from shmaccum.exceptions import PackageMissingError
from shmaccum.producer.pipeline import ProducerRecord

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


class TracingInterceptor:
    """Gives each record of a producer its own span, and the headers that identify the span.

    The span begins and ends with `on_send`. It has the kind PRODUCER, the name ``send TOPIC``, and the system and the
    operation of OpenTelemetry's conventions for messaging. It replaces an existing header of the same name.

    Args:
        tracer_provider: makes the tracer. The default is OpenTelemetry's global one.

    Raises:
        PackageMissingError: the package opentelemetry-api is not installed.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError as error:
            raise PackageMissingError(
                "spans need the package opentelemetry-api: pip install opentelemetry-api"
            ) from error
        self._tracer = trace.get_tracer("shmaccum", __version__, tracer_provider)
        self._kind = trace.SpanKind.PRODUCER
        self._inject = propagate.inject

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Returns the record with the headers of its span."""
        carrier: dict[str, str] = {}
        attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
        }
        with self._tracer.start_as_current_span(f"send {record.topic}", kind=self._kind, attributes=attributes):
            self._inject(carrier)
        others = [header for header in record.headers or () if header[0] not in carrier]
        return record._replace(headers=[*others, *((name, value.encode()) for name, value in carrier.items())])
