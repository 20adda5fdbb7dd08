# SPDX-License-Identifier: Apache-2.0
"""Every peer is known, a missing one is named, and the output of their own programs is parsed."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import pkgutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from bench import peers
from bench.harness import jvm, packages
from bench.harness.machine import machine
from bench.harness.measuring import measure
from bench.harness.question import Contender, Figure, Guarantees, Question, UnavailableError
from bench.harness.results import Answer, answer, from_json, to_json
from bench.harness.table import render
from bench.parts.queues import Product, Queue, Send, SendMany, Take
from bench.peers import kafka_java, multiprocessing_queue

WORKS = {"send", "send_many", "drained", "append", "kafka", "latency", "echo"}
GUARANTEES = Guarantees(record="copy", order="queue", checksum="none", kill="lost")

# --- all of them


@pytest.mark.parametrize("work", sorted(WORKS))
def test_every_contender_reports_its_version_and_what_it_guarantees(work: str) -> None:
    products = [contender for contender in peers.of(work) if not contender.name.startswith("floor: ")]
    assert products
    for contender in products:
        assert contender.version is not None, contender.name
        assert contender.guarantees is not None, contender.name


def test_no_two_contenders_of_a_work_have_the_same_name() -> None:
    for work in WORKS:
        names = [contender.name for contender in peers.of(work)]
        assert len(names) == len(set(names)), names


def test_a_peer_does_only_works_that_are_known() -> None:
    for module in pkgutil.iter_modules(peers.__path__):
        works = __import__(f"bench.peers.{module.name}", fromlist=["WORKS"]).WORKS
        assert works
        assert set(works) <= WORKS, module.name


def test_what_is_guaranteed_is_kept_with_the_results_and_shown() -> None:
    contender = Contender("one", lambda: {"x": 1.0}, version=lambda: "1.2.3", guarantees=GUARANTEES)
    answered = _answered([contender, Contender("floor", lambda: {"x": 2.0})])
    read = from_json(to_json(answered))
    assert [series.guarantees for series in read.series] == [GUARANTEES, None]
    assert _shown(read).count("queue") == 1
    assert "1.2.3" in _shown(read)


def _answered(contenders: list[Contender]) -> Answer:
    figure = Figure("x", "x", 1, "lower")
    question = Question("a question", [figure], lambda: contenders, contenders[0].name)
    return answer("question", question, machine(), measure(contenders, question.peer, 3, 1))


def _shown(answered: Answer) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(render(answered))
    return captured.get()


def test_the_floor_of_a_send_is_below_any_send() -> None:
    for contender in peers.of("send"):
        if contender.name.startswith("floor: "):
            assert 0 < contender.run()["cpu_ns_per_record"] < 10_000


# --- missing ones


def test_a_package_that_is_missing_is_named_with_the_reason_pip_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = tmp_path / "not-installed.json"
    reasons.write_text(json.dumps({"no-such-peer": "error: no C++ compiler"}))
    monkeypatch.setattr(packages, "REASONS", reasons)
    missing = Contender("peer", lambda: {"x": float(packages.load("no_such_peer", "no-such-peer").x)})
    answered = _answered([Contender("one", lambda: {"x": 1.0}), missing])
    assert "no-such-peer is not installed" in answered.missing["peer"]
    assert "no C++ compiler" in answered.missing["peer"]
    assert "missing: peer: no-such-peer" in _shown(answered)


def test_packages_are_installed_one_by_one_when_not_all_can_be() -> None:
    calls: list[list[str]] = []

    def install(wanted: Sequence[str]) -> str | None:
        calls.append(list(wanted))
        return "no wheel" if "b>=2" in wanted else None

    assert packages.install(["a", "b>=2", "c"], install) == {"b": "no wheel"}
    assert calls == [["a", "b>=2", "c"], ["a"], ["b>=2"], ["c"]]


def test_nothing_is_tried_again_when_all_can_be_installed() -> None:
    calls: list[Sequence[str]] = []
    assert packages.install(["a", "b"], calls.append) == {}
    assert calls == [["a", "b"]]


def test_the_packages_are_those_of_the_extra() -> None:
    assert any(requirement.startswith("faster-fifo") for requirement in packages.requirements())
    assert not any("extra" in requirement or "ruff" in requirement for requirement in packages.requirements())


@pytest.mark.parametrize(("present", "missing"), [("", "java"), ("java", "mvn")])
def test_java_peers_without_java_or_maven_say_what_to_install(
    present: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if present:
        program = tmp_path / present
        program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match=f"`{missing}` is missing: install"):
        jvm.Jmh("Nothing.nothing", 1).run()


# --- JMH


def test_measured_iterations_are_read_and_warm_up_is_not() -> None:
    assert jvm.iteration("Iteration   1: 766828.242 ops/s") == 766828.242
    assert jvm.iteration("Iteration  12: 35663105.179 ops/s") == 35663105.179
    assert jvm.iteration("# Warmup Iteration   1: 327336.484 ops/s") is None
    assert jvm.iteration("# Measurement: 3 iterations, 500 ms each") is None


def test_lines_come_whole_until_the_end() -> None:
    read, write = os.pipe()
    lines = jvm.Lines(read)
    os.write(write, b"one\ntw")
    deadline_s = time.monotonic() + 60
    assert lines.next(deadline_s) == "one"
    os.write(write, b"o\nthr")
    assert lines.next(deadline_s) == "two"
    os.close(write)
    assert lines.next(deadline_s) is None
    os.close(read)


def test_a_program_that_reports_nothing_is_given_up_at_the_deadline() -> None:
    read, write = os.pipe()
    assert jvm.Lines(read).next(time.monotonic() - 1) is None
    os.close(read)
    os.close(write)


def test_the_pom_names_the_versions() -> None:
    for name in ("kafka", "aeron", "disruptor", "jmh"):
        assert jvm.pom_version(name)[0].isdigit()


# --- kafka-producer-perf-test

PERFORMANCE_TEST_SAID = """\
1301 records sent, 260.1 records/sec (0.02 MB/sec), 3.2 ms avg latency, 210.0 ms max latency.
1000000 records sent, 512345.3 records/sec (48.86 MB/sec), 12.34 ms avg latency, 300.00 ms max latency, \
5 ms 50th, 120 ms 95th, 200 ms 99th, 250 ms 99.9th.
"""


def test_the_total_of_the_performance_test_is_read() -> None:
    assert kafka_java.total_records_per_s(PERFORMANCE_TEST_SAID) == 512345.3


def test_a_performance_test_that_did_not_end_has_no_total() -> None:
    with pytest.raises(ValueError, match="no total"):
        kafka_java.total_records_per_s(PERFORMANCE_TEST_SAID.splitlines()[0])


# --- queues


class PipeQueue(Queue):
    """Sends records through a pipe, to check that works count them."""

    def __init__(self) -> None:
        self._taking, self._sending = multiprocessing.Pipe(duplex=False)
        self._lock = multiprocessing.get_context("fork").Lock()

    @contextmanager
    def open_sender(self) -> Iterator[Send]:
        def send(record: bytes) -> None:
            with self._lock:
                self._sending.send_bytes(record)

        yield send

    @contextmanager
    def open_many_sender(self) -> Iterator[SendMany]:
        with self.open_sender() as send:
            yield lambda records: [send(record) for record in records]

    @contextmanager
    def open_taker(self) -> Iterator[Take]:
        yield lambda: [self._taking.recv_bytes()]


def test_a_queue_does_every_work() -> None:
    calls = {"send": "put", "send_many": "put_many", "drained": "put_many", "latency": "put"}
    product = Product("pipe", PipeQueue, calls, lambda: "1", GUARANTEES, record_count=300, call_size=30)
    found = {work: contenders()[0].run() for work, contenders in product.works().items()}
    assert set(found["send"]) == {"ns_per_record", "cpu_ns_per_record"}
    assert set(found["send_many"]) == {"records_per_s", "cpu_ns"}
    assert {"records_per_s", "cpu_per_record_s"} <= set(found["drained"])
    assert 0 < found["latency"]["p50_ns"] <= found["latency"]["p99_ns"] <= found["latency"]["p999_ns"]
    assert all(value > 0 for measurement in found.values() for value in measurement.values())


def test_the_standard_librarys_queue_is_among_them() -> None:
    small = dataclasses.replace(multiprocessing_queue.PRODUCT, record_count=1000)
    (contender,) = small.works()["drained"]()
    assert contender.name == "multiprocessing.Queue"
    assert contender.run()["records_per_s"] > 0
