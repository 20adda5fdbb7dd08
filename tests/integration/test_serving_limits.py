# SPDX-License-Identifier: Apache-2.0
"""Limits of a server: hostile frames and slow, silent or too many clients affect no other client."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from shmaccum.common import descriptors
from shmaccum.log.files import codecs, record_times
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.log_file import FileRange
from shmaccum.log.server import LogServer, acceptor, dispatch, produced
from shmaccum.log.server import produce as produce_module
from shmaccum.log.server.client_connection import ClientConnection
from shmaccum.log.server.connection import READ_SIZE
from tests.support.log_server import (
    DEADLINE_S,
    address_of,
    answer_of,
    api,
    consume_with_kafka_python,
    fetch,
    produce,
    running,
    served,
    stranger,
    string,
)
from tests.support.segment_log import TOPIC, make_batch

NAME = TOPIC.encode()


def wait_until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def produce_request(records: bytes) -> bytes:
    """A Produce of version 3 to the first partition."""
    data = string(NAME) + struct.pack(">iii", 1, 0, len(records)) + records
    return api(0, 3, struct.pack(">hhii", -1, -1, 1000, 1) + data)


# --- hostile frames


HOSTILE = {
    "an array of a million names": api(3, 1, struct.pack(">i", 500_000) + bytes(1_000_000)),
    "a compact array of a million": api(3, 12, b"\0\x80\x89\x7a" + bytes(1_000_000)),
    "a fetch of a million topics": api(1, 12, bytes(25) + b"\x80\x89\x7a" + bytes(900_000)),
    "a million tags in a header": api(18, 3, b"\x80\x89\x7a" + bytes(1_000_000)),
    "a million tags in a body": api(18, 3, b"\0\1\1\x80\x89\x7a" + bytes(1_000_000)),
    "tags without an end": api(18, 3, b"\0\1\1\xff\xff\xff\xff\x0f"),
    "a name of 32 KiB in 10 bytes": api(3, 1, struct.pack(">ih", 1, 32_767) + bytes(10)),
    "a name that is no text": api(3, 1, struct.pack(">i", 1) + string(b"\xff\xfe")),
    "a number without an end": api(18, 3, b"\0" + b"\xff" * 20),
    "a partition array of 2 GiB": api(2, 1, struct.pack(">ii", -1, 1) + string(NAME) + struct.pack(">i", 2**31 - 1)),
    "a null where none may be, in an array of arrays": bytes.fromhex(
        "0000003c0009000600000009000466757a7a000104086d697373696e670100086d697373696e67"
        "04fffffffe00000002fffffffe00086d697373000000000000"
    ),
    "a null among the states of a list of groups": api(16, 4, b"\0\2\0\0"),
    "a null among the types of a list of groups": api(16, 5, b"\0\1\2\0\0"),
    "a null among the groups to describe": api(15, 0, struct.pack(">ih", 1, -1)),
    "a null among the groups to delete": api(42, 2, b"\0\2\0\0"),
    "a null of all topics to delete": bytes.fromhex("00000015001400040000001f000466757a7a0000000000000000"),
    "a negative version": api(3, -1),
    "no header": struct.pack(">ih", 2, 3),
    "an empty frame": struct.pack(">i", 0) + bytes(10),
    "records of 2 GiB": api(
        0, 3, struct.pack(">hhii", -1, -1, 1, 1) + string(NAME) + struct.pack(">iii", 1, 0, 2**31 - 1)
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_frame_ends_its_connection_at_once(tmp_path: Path, name: str) -> None:
    with served(tmp_path / "log") as address, stranger(address) as good:
        with stranger(address) as hostile, contextlib.suppress(ConnectionError):
            hostile.sendall(HOSTILE[name])
            assert hostile.recv(1) == b""
        good.sendall(api(18, 0))
        assert answer_of(good)


@pytest.mark.parametrize("records", [b"", bytes(100), b"\xff" * 61, make_batch([b"x"]).wire[:-1]])
def test_records_that_are_none_are_refused_and_the_connection_continues(tmp_path: Path, records: bytes) -> None:
    with served(tmp_path / "log") as address, stranger(address) as client:
        produce(address, range(3))
        client.sendall(produce_request(records))
        error = struct.unpack_from(">h", answer_of(client), 8 + 2 + len(NAME) + 8)[0]
        assert error == confluent_kafka.KafkaError.INVALID_MSG
        assert sorted(consume_with_kafka_python(address, 3)) == [0, 1, 2]


BOMB_SIZE = 90_000_000


def produce_bomb(address: str) -> Any:
    """Produce a few kilobytes that decompress to 90 MB. Return the error."""
    errors: list[Any] = []
    options = {"bootstrap.servers": address, "compression.type": "zstd", "message.max.bytes": 100_000_000}
    producer = confluent_kafka.Producer(options)
    producer.produce(TOPIC, bytes(BOMB_SIZE), partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0
    return errors[0]


def listed_offset(address: str, timestamp_ms: int) -> int:
    asked = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp_ms}]
    topics = [{"name": TOPIC, "partitions": asked}]
    with ClientConnection(address) as asking:
        answer = asking.ask(2, 7, {"replica_id": -1, "isolation_level": 0, "topics": topics})
    return int(answer.topics[0].partitions[0].offset)


def test_a_compressed_bomb_is_judged_and_looked_up_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = codecs.stream

    def noted(*arguments: Any, **options: Any) -> Iterator[bytes]:
        for piece in real(*arguments, **options):
            sizes.append(len(piece))
            yield piece

    monkeypatch.setattr(record_times, "stream", noted)
    with served(tmp_path / "log", max_message_bytes="1MiB") as address:
        assert produce_bomb(address) is None
        assert sum(sizes) > BOMB_SIZE
        assert listed_offset(address, 1) == listed_offset(address, -3) == 0
        assert max(sizes) <= 8 << 20


def test_a_compressed_bomb_that_stands_for_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_times, "STREAMED_SIZE_MAX", BOMB_SIZE // 2)
    with served(tmp_path / "log", max_message_bytes="1MiB") as address:
        assert produce_bomb(address).code() == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE


def test_a_look_up_in_a_bomb_that_is_in_the_log_leads_to_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "log", max_message_bytes="1MiB") as address:
        assert produce_bomb(address) is None
        monkeypatch.setattr(record_times, "STREAMED_SIZE_MAX", 4096)
        monkeypatch.setattr(record_times, "AT_ONCE_SIZE_MAX", 4096)
        assert listed_offset(address, 1) == listed_offset(address, -3) == 0


def test_compressed_records_are_judged_while_others_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, threads = threading.Event(), []

    def judge_slowly(*arguments: Any) -> Any:
        if arguments[2].left > produced.AT_ONCE_SIZE_MAX:
            threads.append(threading.current_thread().name)
            assert may_go_on.wait(DEADLINE_S)
        return judge(*arguments)

    judge = produced.validate_batches
    monkeypatch.setattr(produce_module, "validate_batches", judge_slowly)
    delivered: list[Any] = []
    with running(tmp_path / "log") as server, stranger(address_of(server)) as other:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": address_of(server), "compression.type": "lz4", "message.max.bytes": 100_000_000}
        )
        producer.produce(TOPIC, bytes(1_000_000), partition=0)
        assert producer.flush(DEADLINE_S) == 0
        assert threads == [], "it is judged at once"
        producer.produce(TOPIC, bytes(1_100_000), partition=0, on_delivery=lambda *found: delivered.append(found))
        wait_until(lambda: producer.poll(0) == 0 and bool(threads))
        for _ in range(10):
            other.sendall(api(18, 0))
            assert answer_of(other)
        assert delivered == []
        may_go_on.set()
        assert producer.flush(DEADLINE_S) == 0
        assert [error for error, _ in delivered] == [None]
        assert all(name.startswith("shmaccum-judging") for name in threads)


def test_equal_correlation_ids_are_answered_each(tmp_path: Path) -> None:
    with served(tmp_path / "log") as address, stranger(address) as client:
        client.sendall(api(18, 0) * 3)
        assert [answer_of(client)[:4] for _ in range(3)] == [struct.pack(">i", 7)] * 3


def test_requests_after_the_end_of_a_client_are_answered_and_do_no_harm(tmp_path: Path) -> None:
    with running(tmp_path / "log") as server, stranger(address_of(server)) as client:
        client.sendall(api(18, 0))
        client.shutdown(socket.SHUT_WR)
        wait_until(lambda: not server._dispatcher.connections)


# --- slow clients


def test_a_sender_of_single_bytes_delays_no_other(tmp_path: Path) -> None:
    request = api(18, 0)
    with served(tmp_path / "log") as address, stranger(address) as slow, stranger(address) as quick:
        for position in range(len(request)):
            slow.sendall(request[position : position + 1])
            quick.sendall(request)
            assert answer_of(quick)
        assert answer_of(slow)


def test_a_reader_that_never_reads_holds_no_records_in_memory_and_delays_no_other(tmp_path: Path) -> None:
    with running(tmp_path / "log") as server, stranger(address_of(server)) as lazy:
        producer = confluent_kafka.Producer({"bootstrap.servers": address_of(server)})
        for _ in range(40):
            producer.produce(TOPIC, bytes(900_000), partition=0)
        assert producer.flush(DEADLINE_S) == 0
        lazy.sendall(b"".join(fetch(0, max_wait_ms=0, number=number) for number in range(1000)))
        wait_until(lambda: any(each.wants_to_write for each in server._dispatcher.connections))
        (connection,) = (each for each in server._dispatcher.connections if each.wants_to_write)
        assert len(connection._received) < 2 * READ_SIZE
        assert sum(len(piece) for piece in connection._to_send if not isinstance(piece, FileRange)) < 1000
        with stranger(address_of(server)) as other:
            for _ in range(100):
                other.sendall(api(18, 0))
                assert answer_of(other)
        assert answer_of(lazy)[:4] == struct.pack(">i", 0)


def test_a_client_that_breaks_off_while_nothing_is_read_of_it_is_closed(tmp_path: Path) -> None:
    with running(tmp_path / "log") as server:
        produce(address_of(server), range(3))
        wait_until(lambda: not server._dispatcher.connections)
        with stranger(address_of(server)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(fetch(1000, max_wait_ms=0))
            answer_of(client)
            client.sendall(fetch(0, max_wait_ms=3_600_000, min_bytes=1 << 30) + api(18, 0) * (2 * READ_SIZE // 14))
            wait_until(lambda: any(not each.wants_to_read for each in server._dispatcher.connections))
        wait_until(lambda: not server._dispatcher.connections)


def memory_of_requests(server: LogServer) -> int:
    return server._limits._memory


def test_large_requests_share_their_memory(tmp_path: Path) -> None:
    large = produce_request(bytes(3_000_000))
    with running(tmp_path / "log", request_memory_max="2MiB") as server:
        produce(address_of(server), range(3))
        with stranger(address_of(server)) as first, stranger(address_of(server)) as second:
            first.sendall(large[:1_000_000])
            wait_until(lambda: memory_of_requests(server) == 1_000_000)
            writer = threading.Thread(target=second.sendall, args=(large,))
            writer.start()
            wait_until(lambda: len(server._dispatcher._starved) == 1)
            assert sum(len(each._received) for each in server._dispatcher.connections) < 3_000_000
            first.sendall(large[1_000_000:])
            assert answer_of(first)
            writer.join()
            assert answer_of(second)
        wait_until(lambda: not server._dispatcher.connections)
        assert memory_of_requests(server) == 0


def test_a_request_that_was_announced_has_the_memory_of_what_came_of_it(tmp_path: Path) -> None:
    with running(tmp_path / "log") as server, many(server, 3) as idle:
        for client in idle:
            client.sendall(struct.pack(">ihhi", 100 << 20, 0, 3, 1) + bytes(300_000))
        wait_until(lambda: memory_of_requests(server) > 900_000)
        with stranger(address_of(server)) as another:
            another.sendall(api(3, 1, struct.pack(">i", 1) + string(NAME)))
            assert answer_of(another)
            another.sendall(produce_request(bytes(1_000_000)))
            assert answer_of(another)
        assert len(server._dispatcher.connections) >= 3


def test_requests_that_do_not_arrive_are_given_up_where_others_wait_for_their_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "STALLED_S", 0.2)
    with running(tmp_path / "log", request_memory_max="1MiB") as server, many(server, 40) as idle:
        produce(address_of(server), range(3))
        for client in idle:
            client.sendall(struct.pack(">ihhi", 100 << 20, 0, 3, 1) + bytes(60_000))
        wait_until(lambda: memory_of_requests(server) > 1 << 20)
        with stranger(address_of(server)) as another:
            another.sendall(produce_request(bytes(2_000_000)))
            assert answer_of(another)


def join_group(group: str, metadata: bytes) -> dict[str, Any]:
    """A JoinGroup of version 3 of a new member, which the server accepts at once."""
    return {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }


def test_what_members_say_about_themselves_is_bounded(tmp_path: Path) -> None:
    """If the limit is 4,000 bytes, one group gets at most 1,000 of them, and all groups together get at most 4,000."""
    limits: dict[str, Any] = {"group_memory_max": 4000, "group_initial_rebalance_delay_ms": 0}
    with served(tmp_path / "log", **limits) as address, ClientConnection(address) as client:

        def error_of(group: str, size: int) -> int:
            return int(client.ask(11, 3, join_group(group, bytes(size - len("range")))).error_code)

        assert error_of("large", 1001) == BrokerError.GROUP_MAX_SIZE_REACHED
        assert [error_of(f"group-{number}", 900) for number in range(4)] == [0, 0, 0, 0]
        assert error_of("late", 401) == BrokerError.GROUP_MAX_SIZE_REACHED
        assert error_of("late", 400) == BrokerError.NONE


# --- many clients


@contextlib.contextmanager
def many(server: LogServer, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(stranger(address_of(server))) for _ in range(count)]


def test_clients_that_come_together_are_welcomed_in_one_round(tmp_path: Path) -> None:
    with LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True) as server, many(server, 20):
        server.run_once()
        assert len(server._dispatcher.connections) == 20


def has_ended(client: socket.socket) -> bool:
    """True if the server has closed the connection of a client without data to read."""
    try:
        return client.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


LIMITED = [{"connection_count_max": 3}, {"connection_count_per_address_max": 3}]


@pytest.mark.parametrize("options", LIMITED)
def test_a_client_too_many_is_turned_away(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "IDLE_S", DEADLINE_S)
    with running(tmp_path / "log", **options) as server, many(server, 3) as clients:
        for client in clients:
            client.sendall(api(18, 0))
            assert answer_of(client)
        with stranger(address_of(server)) as one_more:
            assert one_more.recv(1) == b""
        clients[0].close()
        wait_until(lambda: len(server._dispatcher.connections) == 2)
        with stranger(address_of(server)) as another:
            another.sendall(api(18, 0))
            assert answer_of(another)


@pytest.mark.parametrize("options", LIMITED)
@pytest.mark.parametrize("opening", [b"", api(18, 0)[:9], api(18, 0)], ids=["silent", "half a frame", "idle"])
def test_an_idle_client_makes_room_for_another(
    tmp_path: Path, options: dict[str, Any], opening: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "log", **options) as server, many(server, 3) as clients:
        for client in clients:
            client.sendall(opening)
        is_asked = opening == api(18, 0)
        assert not is_asked or all(map(answer_of, clients))
        monkeypatch.setattr(acceptor, "IDLE_S", -1.0)
        with stranger(address_of(server)) as another:
            another.sendall(api(18, 0))
            assert answer_of(another)
        wait_until(lambda: has_ended(clients[0]))


def test_clients_leave_descriptors_for_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "log") as server, many(server, 30):
        wait_until(lambda: len(server._dispatcher.connections) == 30)
        reserved = descriptors.limit() - descriptors.lowest_free()
        monkeypatch.setattr(descriptors, "reserve", lambda _count: reserved)
        wait_until(lambda: len(server._dispatcher.connections) < 30)
        with stranger(address_of(server)) as another:
            another.sendall(api(18, 0))
            assert answer_of(another)


@pytest.mark.parametrize(
    ("idle_count", "busy_count", "round_count"), [(100, 20, 5), pytest.param(1000, 100, 20, marks=pytest.mark.slow)]
)
def test_busy_clients_are_served_among_idle_ones(
    tmp_path: Path, idle_count: int, busy_count: int, round_count: int
) -> None:
    with running(tmp_path / "log", connection_count_per_address_max=2000) as server:
        produce(address_of(server), range(3))
        with many(server, idle_count) as idle, many(server, busy_count) as busy:
            for client in idle[::2]:
                client.sendall(fetch(1000, max_wait_ms=3_600_000, min_bytes=1 << 30)[:-1])
            for number in range(round_count):
                for client in busy:
                    client.sendall(fetch(0, max_wait_ms=0, number=number))
                assert {answer_of(client)[:4] for client in busy} == {struct.pack(">i", number)}
            assert len(server._dispatcher.connections) >= idle_count + busy_count
