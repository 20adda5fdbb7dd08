# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry's instrumentor of this library, and the metrics of an arena for OpenTelemetry's SDK.

::

    opentelemetry-instrument python worker.py                    spans (the instrumentor is an entry point)
    export_metrics(ArenaCollector(arena))                        metrics, for example over OTLP
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

from shmaccum import __version__
from shmaccum.common.packages import needed
from shmaccum.log.consumer import consumer
from shmaccum.producer import pipeline
from shmaccum.tracing import TracingInterceptor

with needed("opentelemetry-instrumentation", "opentelemetry", "the instrumentor needs"):
    from opentelemetry import metrics
    from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

    from shmaccum.observe.prometheus import ArenaCollector


@final
class ShmaccumInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Gives the records of all producers and consumers of this process spans (`shmaccum.tracing`).

    Producers include those of `shmaccum.compat` and of `shmaccum.aio`. `instrument` takes ``tracer_provider``. It
    affects the producers and consumers that are created afterwards, and `uninstrument` does as well. Rows of
    `Producer.append_arrow` and of Spark have no spans.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Returns the package that is instrumented."""
        return ("shmaccum",)

    def _instrument(self, **options: Any) -> None:
        interceptor = TracingInterceptor(options.get("tracer_provider"))
        pipeline.default_interceptors.append(interceptor)
        consumer.default_interceptors.append(interceptor)

    def _uninstrument(self, **_options: Any) -> None:
        for interceptors in (pipeline.default_interceptors, consumer.default_interceptors):
            interceptors[:] = [each for each in interceptors if not isinstance(each, TracingInterceptor)]


def export_metrics(collector: ArenaCollector, meter_provider: MeterProvider | None = None) -> None:
    """Gives the metrics of an arena to OpenTelemetry's SDK, which exports them periodically.

    The names, labels and descriptions are those for Prometheus (docs/reference/metrics.rst). Counters are observable
    counters, and all others observable gauges. One process of a host exports the metrics of an arena.

    Args:
        collector: reads the arena, which must stay open.
        meter_provider: makes the meter. The default is OpenTelemetry's global one.
    """
    meter = metrics.get_meter("shmaccum", __version__, meter_provider)
    scrapes = _Scrapes(collector)
    for family in collector.collect():
        is_counter = family.type == "counter"
        create = meter.create_observable_counter if is_counter else meter.create_observable_gauge
        create(family.name, [partial(scrapes.read, family.name)], description=family.documentation)


class _Scrapes:
    """Reads the arena once for all instruments of one export."""

    def __init__(self, collector: ArenaCollector) -> None:
        self._collector = collector
        self._lock = threading.Lock()
        self._families: dict[str, Sequence[Any]] = {}

    def read(self, name: str, _options: CallbackOptions) -> Iterable[Observation]:
        """Returns the values of one metric. If they were read already, the arena is read again."""
        with self._lock:
            if name not in self._families:
                self._families = {family.name: family.samples for family in self._collector.collect()}
            samples = self._families.pop(name)
        return [metrics.Observation(sample.value, sample.labels) for sample in samples]
