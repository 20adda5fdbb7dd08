# SPDX-License-Identifier: Apache-2.0
"""Spans of a producer, and the headers with which a consumer continues the trace."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.producer.pipeline import ProducerRecord
from shmaccum.tracing import TracingInterceptor
from tests.support.arenas import Drainer

trace = pytest.importorskip("opentelemetry.trace")

TRACE = 0x0AF7651916CD43DD8448EB211C80319C


class Spans(trace.TracerProvider, trace.Tracer):  # type: ignore[misc, name-defined]
    """A provider and its tracer, which records the started spans."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, Any, Any]] = []

    def get_tracer(self, *_arguments: Any, **_options: Any) -> Spans:
        return self

    def start_span(self, name: str, *_arguments: Any, kind: Any, attributes: Any, **_options: Any) -> Any:
        self.begun.append((name, kind, attributes))
        context = trace.SpanContext(TRACE, len(self.begun), is_remote=False, trace_flags=trace.TraceFlags(1))
        return trace.NonRecordingSpan(context)

    @contextlib.contextmanager
    def start_as_current_span(self, name: str, *arguments: Any, **options: Any) -> Iterator[Any]:
        with trace.use_span(self.start_span(name, *arguments, **options)) as span:
            yield span


def traceparent(number: int) -> tuple[str, bytes]:
    return "traceparent", b"00-%032x-%016x-01" % (TRACE, number)


def test_each_record_has_a_span_and_the_headers_that_name_it(arena: Arena) -> None:
    arena.declare_topic("flights", 1)
    spans = Spans()
    with Drainer(arena), Producer(arena, interceptors=[TracingInterceptor(spans)]) as producer:
        plain = len("own") + 1
        future = producer.send("flights", b"one", headers=[("own", b"1")])
        assert future.headers_size == plain + sum(map(len, traceparent(1)))
        producer.send_many("flights", [b"two", b"three"])
        producer.flush()
    assert [name for name, _, _ in spans.begun] == ["send flights"] * 3
    assert {kind for _, kind, _ in spans.begun} == {trace.SpanKind.PRODUCER}
    assert spans.begun[0][2]["messaging.system"] == "kafka"


def test_headers_of_the_same_name_are_replaced_and_others_stay() -> None:
    interceptor = TracingInterceptor(Spans())
    record = interceptor.on_send(ProducerRecord("t", b"v", headers=[("traceparent", b"old"), ("own", b"1")]))
    assert record.headers == [("own", b"1"), traceparent(1)]
    assert interceptor.on_send(ProducerRecord("t")).headers == [traceparent(2)]


def test_without_the_package_the_error_reports_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(InvalidArgumentError, match="pip install opentelemetry-api"):
        TracingInterceptor()
