# SPDX-License-Identifier: Apache-2.0
"""Real runs of `WORKER_COUNT` workers on Apache Kafka. They give the prices, and are compared with the simulation.

``python -m bench.fleet.check`` runs both designs at several rates, and writes the results to ``measured.json``. Records
and batches are counted in the broker's files, and requests by the sender's metrics. The kernel counts the processor
time of the broker and of the clients, and the waits of their threads for a core: a scheduler shares cores by threads,
and the designs have different numbers of them. Runs on a mock cluster come first (`mock`); they have no prices.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bench.fleet import mock
from bench.harness.machine import machine
from bench.parts.apache_kafka import LINGER_MS
from bench.parts.kafka_fleet import BATCH_SIZE, KEYS, Fleet, Job, arena_fleet, client_fleet, cluster, core_wait_s
from bench.parts.mock_cluster import mock_cluster
from bench.parts.sending import VALUE
from tests.kafka.broker import free_port

MEASURED = Path(__file__).with_name("measured.json")
WORKER_COUNT = 8
RATES = (250, 1_000, 4_000, 0)
"""Records a second of each worker; 0 means without a pause."""
SECONDS = 3
FLAT_OUT = Job(seconds=5)
STATISTICS_MS = 200
STATISTICS_RECORDS = 1_000

CountRequests = Callable[[], float]


def job_of(rate: int) -> Job:
    """Return the job of a worker at a rate."""
    return Job(rate * SECONDS, rate) if rate else FLAT_OUT


def client_batches_per_request() -> float:
    """Return the batches per request of confluent-kafka, according to its own statistics with the mock cluster."""
    import confluent_kafka

    told: list[dict[str, Any]] = []
    options = {"bootstrap.servers": mock_cluster(), "linger.ms": LINGER_MS, "statistics.interval.ms": STATISTICS_MS}
    producer = confluent_kafka.Producer({**options, "stats_cb": lambda text: told.append(json.loads(text))})
    for number in range(STATISTICS_RECORDS):
        producer.produce("fleet", VALUE, KEYS[number & 255])
        producer.poll(0.001)
    producer.flush()
    seen = len(told)
    while len(told) == seen:
        producer.poll(1)
    batches = sum(each["topics"]["fleet"]["batchcnt"]["cnt"] for each in told if "fleet" in each["topics"])
    requests = sum(broker["req"].get("Produce", 0) for broker in told[-1]["brokers"].values())
    return float(batches / requests)


@contextlib.contextmanager
def clients() -> Iterator[tuple[Fleet, CountRequests | None]]:
    """Yield workers with a confluent-kafka producer each."""
    with client_fleet(WORKER_COUNT, **{"batch.size": BATCH_SIZE}) as fleet:
        yield fleet, None


@contextlib.contextmanager
def arena() -> Iterator[tuple[Fleet, CountRequests]]:
    """Yield workers that share an arena, and the count of requests in the metrics of its sender."""
    place = f"127.0.0.1:{free_port()}"

    with arena_fleet(WORKER_COUNT, BATCH_SIZE, f"metrics_listen={place}") as fleet:
        yield fleet, partial(mock.requests_of, place)


def _broker_s() -> float:
    times = psutil.Process(cluster().brokers[0].process.pid).cpu_times()
    return times.user + times.system


def _waits_s(fleet: Fleet) -> tuple[float, float]:
    """Return the waits for a core of the client's side and of the broker."""
    return fleet.core_wait_s(), core_wait_s([cluster().brokers[0].process])


def run(design: str, rate: int, fleet: Fleet, count: CountRequests | None) -> dict[str, Any]:
    """Do one run. If requests are not counted, their number is that of the batches divided by
    `client_batches_per_request`.
    """
    waits_s = _waits_s(fleet)
    begin_s, broker_s, requests = time.perf_counter(), _broker_s(), count() if count else 0.0
    measured = fleet.run(job_of(rate))
    seconds = time.perf_counter() - begin_s
    client_wait_s, broker_wait_s = (now - then for now, then in zip(_waits_s(fleet), waits_s, strict=True))
    record_count = round(measured["record_count"])
    batch_count = record_count / measured["records_per_batch"]
    return {
        "design": design,
        "rate": rate,
        "seconds": seconds,
        "work_s": record_count / measured["records_per_s"],
        "record_count": record_count,
        "batch_count": batch_count,
        "request_count": count() - requests if count else batch_count,
        "broker_s": _broker_s() - broker_s,
        "client_s": measured["cpu_us_per_record"] * record_count / 1e6,
        "broker_wait_s": broker_wait_s,
        "client_wait_s": client_wait_s,
        "connection_count": measured["connections"],
    }


def mock_runs(batches_per_request: float) -> list[dict[str, Any]]:
    """Run both designs in turn on the mock cluster."""
    found: list[dict[str, Any]] = []
    with (
        mock.clients(WORKER_COUNT, batches_per_request) as clients_run,
        mock.arena(WORKER_COUNT) as arena_run,
    ):
        for rate in RATES:
            for design, run_one in (("clients", clients_run), ("arena", arena_run)):
                found.append({"design": design, "rate": rate, **run_one(job_of(rate))})
                print(found[-1], flush=True)
    return found


def main() -> None:
    """Measure both designs in turn. A first run of each warms the broker up and is discarded."""
    batches_per_request = client_batches_per_request()
    on_the_mock = mock_runs(batches_per_request)
    found: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        designs = {"clients": stack.enter_context(clients()), "arena": stack.enter_context(arena())}
        for design, (fleet, count) in designs.items():
            run(design, 0, fleet, count)
        for rate in RATES:
            for design, (fleet, count) in designs.items():
                found.append(run(design, rate, fleet, count))
                print(found[-1], flush=True)
        begin_s, broker_s = time.perf_counter(), _broker_s()
        time.sleep(SECONDS)
        idle_share = (_broker_s() - broker_s) / (time.perf_counter() - begin_s)
    facts = {"client_batches_per_request": batches_per_request, "idle_share": idle_share}
    text = json.dumps({"machine": machine(), **facts, "runs": found, "mock_runs": on_the_mock}, indent=1) + "\n"
    MEASURED.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
