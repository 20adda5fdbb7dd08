# SPDX-License-Identifier: Apache-2.0
"""The sink delivers to a scripted cluster: every error, version and kind of disconnection."""

from __future__ import annotations

import contextlib
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
from kafka.protocol.producer import ProduceRequest

from shmaccum._native import Token
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.config import SenderOptions
from shmaccum.exceptions import UnknownTopicError
from shmaccum.sender import Sender
from shmaccum.sender.sinks import open_sink
from shmaccum.sender.sinks.compression import Compressor, Form
from shmaccum.sender.sinks.kafka.errors import TREATMENTS, Action
from shmaccum.sender.sinks.kafka.library import connections
from shmaccum.sender.sinks.sink import Verdict
from tests.kafka.broker import LOOPBACK
from tests.kafka.conftest import OpenFake, OpenLoop
from tests.kafka.fake_broker import Arrived, Cut, FakeBroker, FakeCluster, Reply, Silence, bound_socket
from tests.kafka.loop import Loop, wire_of
from tests.kafka.scripting import HOSTILE, RawAnswer, Script, values_of
from tests.support.accumulator import Accumulator
from tests.support.processes import WATCHDOG_S, wait_until

TOPIC = "flights"
CORRUPT_MESSAGE = 2
RETRIED = [code for code, row in TREATMENTS.items() if row.action is Action.RETRY]
REFUSED = [code for code, row in TREATMENTS.items() if row.action is Action.REFUSE]


def append(arena: Arena, *values: bytes, partition: int = 0, topic: str = TOPIC) -> None:
    """Append each value in a batch of its own."""
    for value in values:
        with Accumulator(arena) as accumulator:
            accumulator.append(topic, partition, None, None, value)
            accumulator.flush_begin()


# --- versions


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_arrives_bit_for_bit(
    version: int, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake(topics={TOPIC: 2, "hops": 1}, versions={0: (3, version)})
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    append(arena, b"b", partition=1)
    append(arena, b"c", topic="hops")
    loop.run_until_idle()
    assert sorted((one.topic, one.partition, one.version) for one in cluster.arrived) == [
        (TOPIC, 0, version),
        (TOPIC, 1, version),
        ("hops", 0, version),
    ]
    assert sorted(map(str, values_of(cluster.arrived))) == ["b'a'", "b'b'", "b'c'"]


def test_without_a_topic_id_the_newest_version_that_takes_names_is_used(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake(versions={3: (0, 9)})
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    loop.run_until_idle()
    assert [one.version for one in cluster.arrived] == [12]


def test_a_broker_that_is_too_old_is_reported_and_nothing_is_lost(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake(versions={0: (0, 2)})
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    loop.run_until(lambda: any("too old" in report for report in loop.reports))
    assert cluster.arrived == []
    assert loop.accumulator.statistics()["queued_count"] == 1
    cluster.versions[0] = (0, 13)
    cluster.brokers[0].cut()
    loop.run_until_idle()
    assert values_of(cluster.arrived) == [b"a"]


# --- errors


@pytest.mark.parametrize("code", RETRIED)
def test_a_retriable_error_sends_the_same_bytes_again(
    code: int, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    cluster.on_produce = Script(Reply(code), Reply(code), Reply(0, 42))
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    loop.run_until_idle()
    assert [ack.verdict for ack in loop.acks] == [Verdict.RETRY, Verdict.RETRY, Verdict.DELIVERED]
    assert [ack.error_code for ack in loop.acks] == [code, code, 0]
    assert TREATMENTS[code].name in loop.acks[0].message
    assert loop.acks[-1].base_offset == 42
    assert len({one.wire_bytes for one in cluster.arrived}) == 1
    assert len(cluster.arrived) == 3


@pytest.mark.parametrize("code", RETRIED)
def test_metadata_are_asked_for_where_an_error_reports_that_another_may_lead(
    code: int, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    loop = open_loop(cluster.bootstrap, reconnect_backoff_ms=1)
    append(arena, b"a")
    loop.run_until_idle()
    asked_count = cluster.metadata_count
    cluster.on_produce = Script(Reply(code))
    append(arena, b"b")
    loop.run_until_idle()
    if TREATMENTS[code].is_metadata_stale:
        loop.run_until(lambda: cluster.metadata_count > asked_count, "metadata are asked for")
    else:
        for _ in range(5):
            loop.run_once(0.01)
        assert cluster.metadata_count == asked_count
    assert values_of(cluster.arrived) == [b"a", b"b", b"b"]


@pytest.mark.parametrize("code", [*REFUSED, 9_999])
def test_a_final_error_refuses_the_batch_with_the_words_of_the_broker(
    code: int, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    cluster.on_produce = Script(Reply(code, message="because I say so"))
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    loop.run_until_idle()
    (ack,) = loop.acks
    assert (ack.verdict, ack.error_code) == (Verdict.REFUSED, code)
    assert f"{TOPIC}-0" in ack.message
    assert "because I say so" in ack.message


def test_errors_of_single_records_name_them(arena: Arena, open_fake: OpenFake, open_loop: OpenLoop) -> None:
    cluster = open_fake(versions={0: (3, 8)})
    cluster.on_produce = Script(Reply(87, record_errors=[(1, "no key")], message="1 of 3 is wrong"))
    loop = open_loop(cluster.bootstrap)
    with Accumulator(arena) as accumulator:
        for value in (b"a", b"b", b"c"):
            accumulator.append(TOPIC, 0, None, None, value)
    loop.run_until_idle()
    (ack,) = loop.acks
    assert ack.record_errors == [1]
    assert "record 1: no key" in ack.message


def test_a_batch_that_is_too_large_is_for_the_sender_to_split(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    cluster.on_produce = Script(Reply(10))
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    loop.run_until_idle()
    assert [ack.verdict for ack in loop.acks] == [Verdict.TOO_LARGE]


def test_a_duplicate_counts_as_delivered(arena: Arena, open_fake: OpenFake, open_loop: OpenLoop) -> None:
    cluster = open_fake()
    cluster.on_produce = Script(Reply(46, base_offset=-1))
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    loop.run_until_idle()
    assert [(ack.verdict, ack.base_offset) for ack in loop.acks] == [(Verdict.DELIVERED, -1)]


def test_the_time_of_the_log_comes_through(arena: Arena, open_fake: OpenFake, open_loop: OpenLoop) -> None:
    cluster = open_fake()
    cluster.on_produce = Script(Reply(base_offset=5, log_append_time_ms=1_700_000_000_000))
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    loop.run_until_idle()
    assert (loop.acks[0].base_offset, loop.acks[0].log_append_time_ms) == (5, 1_700_000_000_000)


# --- sequences


@pytest.mark.parametrize("code", [code for code, row in TREATMENTS.items() if row.action is Action.SEQUENCE])
def test_out_of_sequence_after_nothing_is_a_gap(
    code: int, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    cluster.on_produce = Script(Reply(code))
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    loop.run_until_idle()
    assert [ack.verdict for ack in loop.acks] == [Verdict.OUT_OF_SEQUENCE]


def test_out_of_sequence_after_a_batch_that_comes_again_waits_for_it(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    loop = open_loop(cluster.bootstrap)
    append(arena, b"first")
    loop.run_until_idle()
    both_sent = threading.Event()

    def answer(arrived: Arrived) -> Reply:
        attempt = sum(one.wire_bytes == arrived.wire_bytes for one in cluster.arrived)
        if attempt > 1 or values_of([arrived]) == [b"first"]:
            return Reply()
        assert both_sent.wait(WATCHDOG_S)
        return Reply(19 if values_of([arrived]) == [b"a"] else 45)

    cluster.on_produce = answer
    append(arena, b"a", b"b")
    loop.run_until(lambda: loop.accumulator.statistics()["in_flight_count"] == 2)
    both_sent.set()
    loop.run_until_idle()
    assert [ack.verdict for ack in loop.acks[1:3]] == [Verdict.RETRY, Verdict.RETRY]
    assert values_of(cluster.arrived) == [b"first", b"a", b"b", b"a", b"b"]


def test_a_partition_has_one_batch_in_flight_until_the_first_is_acked(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    first_may_go = threading.Event()

    def answer(arrived: Arrived) -> Reply:
        if values_of([arrived]) == [b"a"]:
            assert first_may_go.wait(WATCHDOG_S)
        return Reply()

    cluster.on_produce = answer
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a", b"b", b"c")
    loop.run_until(lambda: len(cluster.arrived) == 1)
    for _ in range(20):
        loop.run_once(0.001)
    assert loop.accumulator.statistics()["in_flight_count"] == 1
    first_may_go.set()
    loop.run_until_idle()
    assert values_of(cluster.arrived) == [b"a", b"b", b"c"]


def test_a_producer_id_that_is_refused_is_asked_for_again(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    cluster.producer_id_error = 31
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    loop.run_until(lambda: any("CLUSTER_AUTHORIZATION_FAILED" in report for report in loop.reports))
    assert cluster.arrived == []
    cluster.producer_id_error = 0
    loop.run_until_idle()
    assert [one.sequence for one in cluster.arrived] == [(7_000, 0, 0)]


# --- connections


@pytest.mark.parametrize(("ending", "code", "timeout_ms"), [(Cut, 13, 1000 * WATCHDOG_S), (Silence, 7, 300)])
def test_a_connection_that_ends_without_an_answer_sends_the_same_bytes_again(
    ending: type[Exception], code: int, timeout_ms: float, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    """On a busy machine, a normal answer may also exceed the short timeout."""
    cluster = open_fake()
    cluster.on_produce = Script(ending)
    loop = open_loop(cluster.bootstrap, {"request_timeout_ms": timeout_ms})
    append(arena, b"a")
    loop.run_until_idle()
    first, *late, last = loop.acks
    assert (first.verdict, first.error_code) == (Verdict.RETRY, code)
    assert {(ack.verdict, ack.error_code) for ack in late} <= {(Verdict.RETRY, 7)}
    assert last.verdict is Verdict.DELIVERED
    assert len(cluster.arrived) > 1
    assert len({one.wire_bytes for one in cluster.arrived}) == 1


def test_a_request_larger_than_the_socket_is_written_in_parts(arena_name: str, open_fake: OpenFake) -> None:
    cluster = open_fake(receive_buffer=4096)
    sink = open_sink(f"kafka:{cluster.bootstrap}", send_buffer_bytes=4096)
    with Arena.create(arena_name, buffer_memory="2MiB", batch_size="512KiB") as arena, Loop(arena, sink) as loop:
        value = bytes(range(256)) * 1024
        append(arena, value, value[::-1])
        loop.run_until_idle()
    assert values_of(cluster.arrived) == [value, value[::-1]]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def open_tls(authority: trustme.CA, open_fake: OpenFake) -> Callable[[], FakeCluster]:
    """Starts a cluster that uses TLS and small reads."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(LOOPBACK).configure_cert(context)
    return lambda: open_fake(receive_buffer=4096, tls=context)


def open_secure_loop(arena: Arena, authority: trustme.CA, folder: Path, cluster: FakeCluster, **sender: Any) -> Loop:
    authority.cert_pem.write_to_path(folder / "ca.pem")
    of_tls = {"security_protocol": "SSL", "ssl_cafile": str(folder / "ca.pem")}
    return Loop(arena, open_sink(f"kafka:{cluster.bootstrap}", send_buffer_bytes=4096, **of_tls), **sender)


@pytest.mark.parametrize("size", [16_384 - 61, 16_384, 40_000, 500_000], ids=["a record", "more", "some", "many"])
def test_over_tls_a_request_is_written_in_records_and_in_parts_of_them(
    size: int, arena_name: str, authority: trustme.CA, tmp_path: Path, open_tls: Callable[[], FakeCluster]
) -> None:
    cluster = open_tls()
    values = [bytes([number]) * size for number in range(3)]
    with (
        Arena.create(arena_name, buffer_memory="2MiB", batch_size="512KiB") as arena,
        open_secure_loop(arena, authority, tmp_path, cluster) as loop,
    ):
        append(arena, *values)
        loop.run_until_idle()
        assert {ack.verdict for ack in loop.acks} == {Verdict.DELIVERED}
    assert values_of(cluster.arrived) == values


def test_over_tls_a_broker_that_stops_reading_gets_the_same_bytes_again(
    arena_name: str, authority: trustme.CA, tmp_path: Path, open_tls: Callable[[], FakeCluster]
) -> None:
    cluster = open_tls()
    is_over = threading.Event()

    def answer(arrived: Arrived) -> Reply:
        if len(cluster.arrived) > 1:
            return Reply()
        assert is_over.wait(WATCHDOG_S)
        raise Cut

    cluster.on_produce = answer
    values = [bytes([number]) * 100_000 for number in range(3)]
    with (
        Arena.create(arena_name, buffer_memory="2MiB", batch_size="512KiB") as arena,
        open_secure_loop(arena, authority, tmp_path, cluster, request_timeout_ms=1_000) as loop,
    ):
        append(arena, *values)
        loop.run_until_idle()
        is_over.set()
    arrived = values_of(cluster.arrived)
    assert arrived.count(values[0]) > 1
    assert list(dict.fromkeys(arrived)) == values


def test_an_oversized_record_goes_as_pieces_of_several_slots(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    loop = open_loop(cluster.bootstrap)
    value = bytes(range(256)) * 64
    append(arena, value)
    loop.run_until_idle()
    assert values_of(cluster.arrived) == [value]


def test_a_slow_broker_does_not_stall_another(arena: Arena, open_fake: OpenFake, open_loop: OpenLoop) -> None:
    cluster = open_fake(broker_count=2, topics={TOPIC: 2})
    slow_has_arrived, slow_may_go = threading.Event(), threading.Event()

    def answer(arrived: Arrived) -> Reply:
        if arrived.partition == 0:
            slow_has_arrived.set()
            assert slow_may_go.wait(WATCHDOG_S)
        return Reply()

    cluster.on_produce = answer
    loop = open_loop(cluster.bootstrap)
    append(arena, b"slow")
    loop.run_until(slow_has_arrived.is_set)
    for number in range(20):
        append(arena, b"%d" % number, partition=1)
        loop.run_until(lambda wanted=number + 1: len(loop.acks) == wanted)  # type: ignore[misc]
    assert loop.accumulator.statistics()["in_flight_count"] == 1
    slow_may_go.set()
    loop.run_until_idle()


def test_a_throttled_broker_gets_nothing_until_its_time_is_over(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    cluster.throttle_time_ms = 60_000
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    loop.run_until_idle()
    append(arena, b"b")
    for _ in range(20):
        loop.run_once(0.001)
    assert values_of(cluster.arrived) == [b"a"]
    assert loop.sink.metrics()["produce-throttle-time-max"] == 60_000


@pytest.mark.parametrize("field", ["throttle_time_ms", "metadata_throttle_ms"])
def test_no_answer_pauses_a_broker_for_days(
    field: str, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "THROTTLE_MAX_MS", 50)
    cluster = open_fake(topics={TOPIC: 1, "hops": 1})
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    loop.run_until_idle()
    setattr(cluster, field, 2**31 - 1)
    append(arena, b"b", topic="hops")
    loop.run_until(lambda: _is_paused(loop), "the broker is paused")
    setattr(cluster, field, 0)
    append(arena, b"c")
    loop.run_until_idle()
    assert values_of(cluster.arrived) == [b"a", b"b", b"c"]


def _is_paused(loop: Loop) -> bool:
    return bool(loop.sink._client._manager.connection(0).paused)  # type: ignore[attr-defined]


def test_at_most_so_many_requests_are_under_way_to_a_broker(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake(topics={TOPIC: 6})
    may_go = threading.Event()

    def answer(arrived: Arrived) -> Reply:
        assert may_go.wait(WATCHDOG_S)
        return Reply()

    cluster.on_produce = answer
    loop = open_loop(cluster.bootstrap, {"max_in_flight_requests_per_connection": 2})
    for partition in range(6):
        append(arena, b"%d" % partition, partition=partition)
        wanted = min(partition + 1, 2)
        loop.run_until(lambda wanted=wanted: loop.sink.metrics()["requests-in-flight"] == wanted)  # type: ignore[misc]
    for _ in range(20):
        loop.run_once(0.001)
    assert loop.sink.metrics()["requests-in-flight"] == 2
    was_full = loop.sink.peer.is_full
    may_go.set()
    loop.run_until_idle()
    assert (was_full, loop.sink.peer.is_full) == (True, False)
    assert sorted(map(str, values_of(cluster.arrived))) == [f"b'{partition}'" for partition in range(6)]


def test_a_delivery_that_no_plan_asked_for_waits_for_room_among_the_requests(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    """A pump leaves such batches while it has requests in flight."""
    cluster = open_fake(topics={TOPIC: 6})
    may_go = threading.Event()

    def answer(arrived: Arrived) -> Reply:
        assert may_go.wait(WATCHDOG_S)
        return Reply()

    loop = open_loop(cluster.bootstrap, {"max_in_flight_requests_per_connection": 2})
    append(arena, b"first")
    loop.run_until_idle()
    cluster.on_produce = answer
    for partition in range(6):
        append(arena, b"%d" % partition, partition=partition)
        ready, _ = loop.accumulator.ready(0, True)
        batches, _ = loop.accumulator.drain(ready, 1 << 20, 5)
        loop.sink.deliver([wire_of(batch) for batch in batches])
    for _ in range(20):
        loop.run_once(0.001)
        assert loop.sink.metrics()["requests-in-flight"] == 2
    may_go.set()
    loop.run_until_idle()
    assert [one.partition for one in cluster.arrived[1:]] == list(range(6))


# --- leaders


def move_leader(cluster: FakeCluster, node_id: int) -> None:
    cluster.leaders = dict.fromkeys(cluster.leaders, node_id)
    cluster.leader_epoch += 1


def test_the_hint_of_a_broker_is_followed_at_once(arena: Arena, open_fake: OpenFake, open_loop: OpenLoop) -> None:
    cluster = open_fake(broker_count=2)
    cluster.on_produce = Script(Reply(6, leader=(1, 5)))
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    loop.run_until_idle()
    assert [one.node_id for one in cluster.arrived] == [0, 1]
    assert loop.acks[0].retry_after_ms == 0


def test_a_hint_is_not_undone_by_metadata_that_are_older(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    """The broker that named the new leader still returns the former one in its metadata."""
    cluster = open_fake(broker_count=2)
    cluster.on_produce = Script(Reply(6, leader=(1, 5)))
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    loop.run_until(lambda: len(loop.acks) == 1)
    client = loop.sink._client  # type: ignore[attr-defined]
    hinted_count = client.metadata_count
    wait_until(lambda: client.poll(0.05, -1) or client.metadata_count > hinted_count, "metadata came")
    loop.run_until_idle()
    assert [one.node_id for one in cluster.arrived] == [0, 1]


def test_an_older_epoch_of_a_topic_that_was_created_again_is_new(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake(broker_count=2, versions={0: (3, 12)})
    cluster.leader_epoch = 7
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    loop.run_until_idle()
    cluster.topic_ids[TOPIC] = uuid.uuid4()
    cluster.leaders[TOPIC, 0], cluster.leader_epoch = 1, 0
    cluster.on_produce = lambda arrived: Reply(0 if arrived.node_id == 1 else 6)
    append(arena, b"b")
    loop.run_until_idle()
    assert cluster.arrived[-1].node_id == 1


class HeldMetadata:
    """Delays the answer to a Metadata request."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._is_asked, self._may_go = threading.Event(), threading.Event()
        self._cluster = cluster
        cluster.on_metadata = self._hold

    def _hold(self) -> None:
        self._is_asked.set()
        assert self._may_go.wait(WATCHDOG_S)

    def are_asked(self) -> bool:
        return self._is_asked.is_set()

    def let_go(self) -> None:
        self._cluster.on_metadata = lambda: None
        self._may_go.set()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_topic_that_is_named_while_metadata_are_under_way_is_asked_for_next(
    is_first: bool, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    """The pending answer lacks the topic, and the next regular request is minutes away."""
    cluster = open_fake(topics={TOPIC: 1, "late": 2})
    held = HeldMetadata(cluster) if is_first else None
    loop = open_loop(cluster.bootstrap)
    assert loop.sink.partition_count(TOPIC) is None
    if held is None:
        loop.run_until(lambda: loop.sink.partition_count(TOPIC) == 1, "the first topic is known")
        held = HeldMetadata(cluster)
        loop.sink._client.refresh_metadata()  # type: ignore[attr-defined]
    loop.run_until(held.are_asked, "metadata are asked for")
    assert loop.sink.partition_count("late") is None
    held.let_go()
    loop.run_until(lambda: loop.sink.partition_count("late") == 2, "the other topic is known")


def test_without_a_hint_metadata_end_the_pause(arena: Arena, open_fake: OpenFake, open_loop: OpenLoop) -> None:
    cluster = open_fake(broker_count=2, versions={0: (3, 9)})
    loop = open_loop(cluster.bootstrap)

    def answer(arrived: Arrived) -> Reply:
        if arrived.node_id == 1:
            return Reply()
        move_leader(cluster, 1)
        return Reply(6)

    cluster.on_produce = answer
    append(arena, b"a")
    loop.run_until_idle()
    assert cluster.arrived[-1].node_id == 1
    assert loop.acks[0].retry_after_ms is None


def test_a_partition_without_a_leader_waits_for_one(arena: Arena, open_fake: OpenFake, open_loop: OpenLoop) -> None:
    cluster = open_fake(topics={TOPIC: 2})
    cluster.leaders[TOPIC, 0] = -1
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    append(arena, b"b", partition=1)
    loop.run_until(lambda: len(loop.acks) == 1)
    assert values_of(cluster.arrived) == [b"b"]
    assert loop.unavailable == {loop.accumulator.partition_index(TOPIC, 0)}
    cluster.leaders[TOPIC, 0] = 0
    loop.run_until_idle()
    assert loop.unavailable == set()
    assert values_of(cluster.arrived) == [b"b", b"a"]


def test_a_cluster_that_has_moved_is_found_through_the_bootstrap_list(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    """KIP-1102. The new cluster has another topic of the same name."""
    former, listener = open_fake(), bound_socket()
    port = listener.getsockname()[1]
    loop = open_loop(f"{former.bootstrap},{LOOPBACK}:{port}", metadata_recovery_rebootstrap_trigger_ms=0)
    append(arena, b"a")
    loop.run_until_idle()
    former.close()
    moved = open_fake(listener=listener)
    append(arena, b"b")
    loop.run_until_idle()
    assert (values_of(former.arrived), values_of(moved.arrived)) == ([b"a"], [b"b"])
    assert any("looking for the cluster" in report for report in loop.reports)


# --- hostile answers


@pytest.mark.parametrize("case", HOSTILE)
def test_an_answer_that_cannot_be_read_is_not_waited_for(
    case: str, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, payload_of = HOSTILE[case]
    cluster = open_fake(versions={0: (3, version)})
    honest, hostile = cluster.answer, [RawAnswer(payload_of)]

    def answer(broker: FakeBroker, kind: Any, version: int, request: Any) -> Any:
        response = honest(broker, kind, version, request)
        return hostile.pop() if hostile and kind is ProduceRequest else response

    monkeypatch.setattr(cluster, "answer", answer)
    loop = open_loop(cluster.bootstrap, {"request_timeout_ms": 1000 * WATCHDOG_S})
    append(arena, b"a")
    loop.run_until_idle()
    assert [(ack.verdict, ack.error_code) for ack in loop.acks] == [(Verdict.RETRY, 13), (Verdict.DELIVERED, 0)]
    assert cluster.arrived[0].wire_bytes == cluster.arrived[1].wire_bytes


@pytest.mark.parametrize("version", [3, 13])
@pytest.mark.parametrize("reply", [Reply(base_offset=-2), Reply(base_offset=-(2**63)), Reply(log_append_time_ms=-2)])
def test_numbers_that_cannot_be_are_none(
    reply: Reply, version: int, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake(versions={0: (3, version)})
    cluster.on_produce = lambda _: reply
    loop = open_loop(cluster.bootstrap)
    append(arena, b"a")
    loop.run_until_idle()
    (ack,) = loop.acks
    assert (ack.verdict, ack.base_offset, ack.log_append_time_ms) == (Verdict.DELIVERED, max(reply.base_offset, -1), -1)


# --- expiry


def test_what_expired_while_it_was_compressed_is_not_sent(
    arena: Arena, open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = open_fake(topics={TOPIC: 2})
    has_begun, may_go = threading.Event(), threading.Event()
    compress = Compressor.compress

    def wait_and_compress(self: Compressor, pieces: Any) -> Form | None:
        has_begun.set()
        assert may_go.wait(WATCHDOG_S)
        return compress(self, pieces)

    monkeypatch.setattr(Compressor, "compress", wait_and_compress)
    now_ns = arena.native.now_ns()
    arena.native.set_manual_clock(now_ns)
    sink = open_sink(f"kafka:{cluster.bootstrap}", compression_type="gzip")
    options: dict[str, Any] = {"linger_ms": 0, "delivery_timeout_counts": "always"}
    with Sender(arena, sink, **options) as sender, Accumulator(arena) as accumulator:
        sender.open()

        def send(value: bytes, partition: int) -> Token:
            return accumulator.append(TOPIC, partition, None, None, value)

        def run_until(is_over: Callable[[], object], what: str) -> None:
            wait_until(lambda: sender.run_once() >= 0 and bool(is_over()), what)

        late = send(b"late", 0)
        run_until(has_begun.is_set, "it is being compressed")
        now_ns += SenderOptions().delivery_timeout_ms * 10**6
        arena.native.set_manual_clock(now_ns)
        run_until(lambda: accumulator.find(late), "it has expired")
        may_go.set()
        tokens = [send(b"after", 0), send(b"beside", 1)]
        run_until(lambda: all(accumulator.find(token) for token in tokens), "the others have arrived")
        found = [accumulator.find(token) for token in (late, *tokens)]
    assert [each and each.result for each in found] == [BatchResult.EXPIRED, *[BatchResult.SUCCEEDED] * 2]
    assert sorted(map(str, values_of(cluster.arrived))) == ["b'after'", "b'beside'"]


def test_a_batch_that_changes_before_it_is_compressed_is_quarantined(
    arena: Arena, open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new checksum of the compressed batch would hide the damage."""
    cluster = open_fake(topics={TOPIC: 1})
    cluster.on_damage = lambda arrived: Reply(CORRUPT_MESSAGE)  # noqa: ARG005
    compress = Compressor.compress
    tokens: list[Token] = []

    def scribble_and_compress(self: Compressor, pieces: Any) -> Form | None:
        monkeypatch.setattr(Compressor, "compress", compress)
        with Path(f"/dev/shm/{arena.name}").open("r+b") as file:
            file.seek(arena.native.layout["slot_data"] + tokens[0].slot_index * arena.geometry["slot_stride"] + 99)
            file.write(b"?")
        return compress(self, pieces)

    monkeypatch.setattr(Compressor, "compress", scribble_and_compress)
    sink = open_sink(f"kafka:{cluster.bootstrap}", compression_type="gzip")
    with Sender(arena, sink, linger_ms=0, retry_backoff_ms=0) as sender, Accumulator(arena) as accumulator:
        tokens.append(accumulator.append(TOPIC, 0, None, None, b"." * 1000))
        sender.open()
        wait_until(lambda: sender.run_once() >= 0 and accumulator.find(tokens[0]) is not None, "it has a result")
        found = accumulator.find(tokens[0])
        assert sender.metrics()["batch-quarantine-total"] == 1
    assert found is not None
    assert found.result is BatchResult.CORRUPT
    assert cluster.arrived == []


BULK = 900_000
"""More bytes than a pair of small sockets can buffer."""


class Stalled:
    """A broker that checks sequences and can stop reading, and a sender with a manual clock.

    Partitions 0 to 3 have received a batch each. The broker has stopped in the next batch of partition 0. A batch of
    partition 1 is half written, so later batches wait for the socket.

    Attributes:
        taken: values that the broker accepted, by partition.
    """

    def __init__(self, arena: Arena, cluster: FakeCluster, place: Mapping[str, Any], bulk: int, **options: Any) -> None:
        self.cluster = cluster
        self.taken: dict[int, list[bytes | None]] = {partition: [] for partition in range(4)}
        self.may_read = threading.Event()
        self._native = arena.native
        self._now_ns = arena.native.now_ns()
        self._next: dict[int, tuple[int, int]] = {}
        cluster.on_produce = self._answer
        arena.native.set_manual_clock(self._now_ns)
        sink = open_sink(f"kafka:{cluster.bootstrap}", send_buffer_bytes=4096, **place)
        # A broker that stopped reading is an outage. The delivery clock still runs, so that batches expire.
        self._sender = Sender(arena, sink, linger_ms=0, delivery_timeout_counts="always", **options)
        self._accumulator = Accumulator(arena)
        self._sender.open()
        self._stall(bulk)

    def _stall(self, bulk: int) -> None:
        self.may_read.set()
        warm = [self.send(b"warm", partition) for partition in range(4)]
        self.run_until(lambda: all(map(self._accumulator.find, warm)), "every partition has had a batch")
        wait_until(lambda: len(self.cluster.arrived) == 4, "the broker has read them")
        self.may_read.clear()
        self.send(b"stall", 0)
        self.run_until(lambda: len(self.cluster.arrived) == 5, "the broker has stopped")
        written = self.written
        self.bulk_token = self.send(b"x" * bulk, 1)
        self.run_until_sent(6)
        assert self.written < written + bulk

    def _answer(self, arrived: Arrived) -> Reply:
        assert self.may_read.wait(WATCHDOG_S)
        _, epoch, sequence = arrived.sequence
        count = arrived.wire_batch().record_count
        known_epoch, expected = self._next.get(arrived.partition, (epoch, 0))
        if epoch >= 0 and sequence != (expected if epoch == known_epoch else 0):
            return Reply(45)
        self._next[arrived.partition] = epoch, sequence + count
        self.taken[arrived.partition] += values_of([arrived])
        return Reply()

    @property
    def written(self) -> float:
        """Return the number of written bytes."""
        return self._sender.metrics()["outgoing-byte-total"]

    @property
    def in_flight_count(self) -> float:
        """Count the batches in flight."""
        return self._sender.metrics()["batches-in-flight"]

    @property
    def retried_count(self) -> float:
        """Count the records whose batch was retried."""
        return self._sender.metrics()["record-retry-total"]

    def send(self, value: bytes, partition: int) -> Token:
        """Append a record in its own batch, if earlier batches of the partition are in flight."""
        return self._accumulator.append(TOPIC, partition, None, None, value)

    def run_until(self, is_over: Callable[[], object], what: str) -> None:
        wait_until(lambda: self._sender.run_once() >= 0 and bool(is_over()), what)

    def run_until_sent(self, record_count: int) -> None:
        """Run until this many records were handed to the connection."""
        self.run_until(lambda: self._sender.metrics()["record-send-total"] == record_count, "all wait for the socket")

    def pass_time(self, share: float) -> None:
        """Advance the clock by a share of the delivery timeout."""
        self._now_ns += int(SenderOptions().delivery_timeout_ms * 10**6 * share)
        self._native.set_manual_clock(self._now_ns)

    def result(self, token: Token) -> BatchResult | None:
        found = self._accumulator.find(token)
        return None if found is None else BatchResult(found.result)

    def results(self, *tokens: Token) -> list[BatchResult | None]:
        """Let the broker read, and return the results."""
        self.may_read.set()
        self.run_until(lambda: all(map(self._accumulator.find, tokens)), "all have their results")
        return [self.result(token) for token in tokens]

    def abort(self) -> None:
        self._sender.abort()
        self._sender.run()

    def close(self) -> None:
        self.may_read.set()
        self._sender.close()
        self._accumulator.close()


WITHOUT_ACKS = {"acks": "0", "enable_idempotence": False, "retries": 0}
OpenStalled = Callable[..., Stalled]


@pytest.fixture(params=["plain", "TLS"])
def open_stalled(
    request: pytest.FixtureRequest, arena_name: str, authority: trustme.CA, tmp_path: Path, open_fake: OpenFake
) -> Iterator[OpenStalled]:
    """Open over plain text and TLS. ``options`` are the sender's."""
    place: dict[str, str] = {}
    tls = None
    if request.param == "TLS":
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(LOOPBACK).configure_cert(tls)
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        place = {"security_protocol": "SSL", "ssl_cafile": str(tmp_path / "ca.pem")}
    cluster = open_fake(topics={TOPIC: 4}, receive_buffer=4096, tls=tls)
    with contextlib.ExitStack() as stack:
        arena = stack.enter_context(Arena.create(arena_name, buffer_memory="8MiB", batch_size="1MiB"))

        def open_one(bulk: int = BULK, **options: Any) -> Stalled:
            stalled = Stalled(arena, cluster, place, bulk, **options)
            stack.callback(stalled.close)
            return stalled

        yield open_one


@pytest.mark.parametrize("options", [{}, WITHOUT_ACKS], ids=["acks", "no acks"])
def test_a_request_that_waits_is_withdrawn_when_all_of_it_expired(
    options: dict[str, Any], open_stalled: OpenStalled
) -> None:
    stalled = open_stalled(**options)
    begun_count = stalled.in_flight_count
    late = [stalled.send(b"late", 2), stalled.send(b"late", 3)]
    stalled.run_until_sent(8)
    stalled.pass_time(1)
    stalled.run_until(lambda: stalled.in_flight_count == begun_count, "their memory is free, the broker does not read")
    assert [stalled.result(token) for token in late] == [BatchResult.EXPIRED] * 2
    after = [stalled.send(b"after", 2), stalled.send(b"after", 3)]
    assert stalled.results(*after) == [BatchResult.SUCCEEDED] * 2
    wait_until(lambda: stalled.taken[2] == stalled.taken[3] == [b"warm", b"after"], "the others have arrived")
    assert b"late" not in values_of(stalled.cluster.arrived)


@pytest.mark.parametrize("options", [{}, WITHOUT_ACKS], ids=["acks", "no acks"])
def test_a_request_that_waits_goes_without_those_of_it_that_expired(
    options: dict[str, Any], open_stalled: OpenStalled
) -> None:
    """After an expired batch, its partition begins a new epoch. The others keep their sequences and order."""
    stalled = open_stalled(**options)
    begun_count = stalled.in_flight_count
    late = stalled.send(b"late", 2)
    stalled.pass_time(0.5)
    kept = [stalled.send(b"1", 3)]
    stalled.run_until_sent(8)
    kept += [stalled.send(b"2", 2), stalled.send(b"2", 3)]
    stalled.run_until_sent(10)
    stalled.pass_time(0.5)
    stalled.run_until(
        lambda: stalled.in_flight_count == begun_count + 3, "its memory is free, the broker does not read"
    )
    assert stalled.result(late) == BatchResult.EXPIRED
    assert stalled.results(*kept) == [BatchResult.SUCCEEDED] * 3
    wait_until(lambda: stalled.taken[2] == [b"warm", b"2"], "the other one of the partition has arrived")
    wait_until(lambda: stalled.taken[3] == [b"warm", b"1", b"2"], "those of the other one have arrived, in order")
    arrived = values_of(stalled.cluster.arrived)
    assert b"late" not in arrived
    assert arrived.count(b"1") == 1
    assert stalled.retried_count == (0 if options else 2)  # out of sequence twice, then in a new epoch


@pytest.mark.parametrize("bulk", [BULK, 16_000], ids=["many pieces", "a record of TLS"])
def test_a_request_that_is_half_written_is_finished_although_it_expired(bulk: int, open_stalled: OpenStalled) -> None:
    stalled = open_stalled(bulk)
    connection_count = stalled.cluster.brokers[0].connection_count
    stalled.pass_time(1)
    stalled.run_until(lambda: stalled.result(stalled.bulk_token) == BatchResult.EXPIRED, "it has expired")
    after = [stalled.send(b"after", partition) for partition in (1, 2)]
    assert stalled.results(*after) == [BatchResult.SUCCEEDED] * 2
    assert stalled.taken[1] == [b"warm", b"x" * bulk, b"after"]
    assert stalled.cluster.brokers[0].connection_count == connection_count


def test_a_request_that_waits_is_not_sent_after_an_abort(open_stalled: OpenStalled) -> None:
    stalled = open_stalled()
    late = stalled.send(b"late", 2)
    stalled.run_until_sent(7)
    stalled.abort()
    assert stalled.result(late) == BatchResult.ABORTED
    stalled.may_read.set()
    stalled.cluster.close()
    assert b"late" not in values_of(stalled.cluster.arrived)


# --- acks=0


def test_without_acks_a_batch_is_delivered_when_its_last_byte_is_written(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    loop = open_loop(cluster.bootstrap, {"acks": "0", "enable_idempotence": False})
    append(arena, b"a", b"b", b"c")
    loop.run_until_idle()
    loop.run_until(lambda: len(cluster.arrived) == 3)
    assert values_of(cluster.arrived) == [b"a", b"b", b"c"]
    assert {(ack.verdict, ack.base_offset) for ack in loop.acks} == {(Verdict.DELIVERED, -1)}


def test_without_acks_memory_is_not_freed_while_bytes_are_unwritten(arena_name: str, open_fake: OpenFake) -> None:
    """The broker does not read. Batches that do not fit into the sockets stay in flight and unchanged."""
    cluster = open_fake(receive_buffer=4096)
    may_read = threading.Event()

    def answer(arrived: Arrived) -> Reply:
        assert may_read.wait(WATCHDOG_S)
        return Reply()

    cluster.on_produce = answer
    with Arena.create(arena_name, buffer_memory="8MiB", batch_size="1MiB") as arena:
        sink = open_sink(f"kafka:{cluster.bootstrap}", send_buffer_bytes=4096)
        with Loop(arena, sink, acks="0", enable_idempotence=False) as loop:
            values = [bytes([number]) * 900_000 for number in range(7)]
            append(arena, *values)
            loop.run_until(lambda: len(cluster.arrived) == 1)
            for _ in range(20):
                loop.run_once(0.001)
            assert len(loop.acks) < 5
            may_read.set()
            loop.run_until_idle()
            loop.run_until(lambda: len(cluster.arrived) == 7)
    assert values_of(cluster.arrived) == values


def test_without_acks_a_broker_that_reads_nothing_is_left_in_time(arena_name: str, open_fake: OpenFake) -> None:
    cluster = open_fake(receive_buffer=4096)
    is_over = threading.Event()

    def answer(arrived: Arrived) -> Reply:
        assert is_over.wait(WATCHDOG_S)
        raise Cut

    cluster.on_produce = answer
    with Arena.create(arena_name, buffer_memory="8MiB", batch_size="1MiB") as arena:
        sink = open_sink(f"kafka:{cluster.bootstrap}", send_buffer_bytes=4096)
        with Loop(arena, sink, acks="0", enable_idempotence=False, request_timeout_ms=300) as loop:
            append(arena, *[b"x" * 900_000] * 7)
            loop.run_until(lambda: Verdict.RETRY in {ack.verdict for ack in loop.acks})
            is_over.set()


def test_without_acks_traffic_that_never_ends_leaves_time_for_metadata(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    loop = open_loop(cluster.bootstrap, {"acks": "0", "enable_idempotence": False}, metadata_max_age_ms=1)
    append(arena, b"a")
    loop.run_until_idle()
    asked_count = cluster.metadata_count

    def is_asked_again() -> bool:
        append(arena, b"a")
        return cluster.metadata_count > asked_count + 1

    loop.run_until(is_asked_again, "metadata are asked for again")


# --- topics


def reason_of_giving_up(loop: Loop, topic: str) -> str:
    """Runs rounds until the sink gives the topic up, and returns the reason."""
    reasons: list[str] = []

    def is_given_up() -> bool:
        try:
            assert loop.sink.partition_count(topic) is None
        except UnknownTopicError as error:
            reasons.append(str(error))
        return bool(reasons)

    loop.run_until(is_given_up)
    return reasons[0]


def test_an_unknown_topic_is_hoped_for_and_then_given_up(open_fake: OpenFake, open_loop: OpenLoop) -> None:
    cluster = open_fake()
    loop = open_loop(cluster.bootstrap, max_block_ms=300)
    assert loop.sink.partition_count("nowhere") is None

    assert "UNKNOWN_TOPIC_OR_PARTITION" in reason_of_giving_up(loop, "nowhere")


@pytest.mark.parametrize("code", [17, 29])
def test_a_topic_that_can_never_be_written_to_is_given_up_at_once(
    code: int, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    cluster.topic_errors[TOPIC] = code
    loop = open_loop(cluster.bootstrap)

    assert TREATMENTS[code].name in reason_of_giving_up(loop, TOPIC)


def test_a_name_no_topic_can_have_is_refused(open_fake: OpenFake, open_loop: OpenLoop) -> None:
    loop = open_loop(open_fake().bootstrap)
    with pytest.raises(UnknownTopicError, match="is not a valid topic name"):
        loop.sink.partition_count("no topic!")
