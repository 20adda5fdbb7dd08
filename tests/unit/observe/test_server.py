# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of an arena: its probes, the data of its page, and the response headers for a browser."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from shmaccum.arena import Arena
from shmaccum.arena.slot_word import STATE_OF
from shmaccum.observe.picture import CELL_COUNT_MAX, _first_used_slots
from shmaccum.observe.prometheus import ArenaCollector, SenderCollector, ServerCollector
from shmaccum.observe.server import CONNECTION_COUNT_MAX, HEAD_SIZE_MAX, WORKER_COUNT, MetricsServer
from tests.support.accumulator import Accumulator
from tests.support.arenas import deliver_all

WATCHDOG_S = 30


@pytest.fixture
def server(arena: Arena) -> Iterator[MetricsServer]:
    with closing(MetricsServer("127.0.0.1:0", ArenaCollector(arena))) as server:
        yield server


def asked(server: MetricsServer, path: str) -> tuple[int, str, Any]:
    """Status, body and headers of a response."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=WATCHDOG_S) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers


def picture(server: MetricsServer) -> dict[str, Any]:
    code, body, headers = asked(server, "/arena.json")
    assert (code, headers["Content-Type"]) == (200, "application/json")
    document: dict[str, Any] = json.loads(body)
    return document


def test_a_probe_is_answered_with_yes_or_with_the_trouble(arena: Arena, server: MetricsServer) -> None:
    assert asked(server, "/healthz")[:2] == (200, "live\n")
    code, body, _ = asked(server, "/readyz")
    assert code == 503
    assert body.startswith("no sender is running, and 0 records wait")
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        assert asked(server, "/readyz")[:2] == (200, "ready\n")


def test_a_removed_arena_is_not_live(server: MetricsServer, arena: Arena) -> None:
    Arena.remove(arena.name)
    code, body, _ = asked(server, "/healthz")
    assert code == 503
    assert body.startswith("the arena was removed")


PATHS = ("/", "/arena.json", "/metrics", "/healthz", "/readyz", "/page.js", "/none")


def code_of(server: MetricsServer, path: str, host: str | None) -> int:
    """The status of a response to a request with this Host."""
    with socket.create_connection(("127.0.0.1", server.port), WATCHDOG_S) as client:
        named = "" if host is None else f"Host: {host}\r\n"
        client.sendall(f"GET {path} HTTP/1.1\r\n{named}\r\n".encode())
        return int(client.makefile("rb").readline().split()[1])


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example",
                                  "", "[::1].evil", "a@127.0.0.1", "127.0.0.1evil", "[evil]"])  # fmt: skip
def test_a_name_of_another_site_gets_nothing(server: MetricsServer, host: str) -> None:
    """If a site's name resolved to this host, its pages could send requests through a local browser (DNS rebinding)."""
    assert {code_of(server, path, host) for path in PATHS} == {421}


@pytest.mark.parametrize(
    "host", [None, "localhost", "LocalHost:1", "localhost.", "127.0.0.1", "127.0.0.1:9", "[::1]:9"]
)
def test_a_name_of_this_host_is_answered(server: MetricsServer, host: str | None) -> None:
    assert 421 not in {code_of(server, path, host) for path in PATHS}


@pytest.mark.parametrize("hosts", ["localhost\r\nHost: evil.example", "evil.example\r\nhOST: localhost"])
def test_a_request_of_two_hosts_is_refused(server: MetricsServer, hosts: str) -> None:
    assert {code_of(server, path, hosts) for path in PATHS} == {400}


def test_a_server_that_other_hosts_reach_answers_to_each_of_their_names_for_it(arena: Arena) -> None:
    with closing(MetricsServer("0.0.0.0:0", ArenaCollector(arena))) as server:
        assert code_of(server, "/healthz", "metrics.example:9308") == 200


def test_a_server_without_an_arena_answers_probes_and_has_no_page() -> None:
    with closing(MetricsServer("127.0.0.1:0", ServerCollector(list))) as server:
        assert asked(server, "/healthz")[0] == asked(server, "/readyz")[0] == asked(server, "/metrics")[0] == 200
        assert asked(server, "/")[0] == asked(server, "/arena.json")[0] == 404


def test_a_method_that_changes_something_is_refused(server: MetricsServer) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/arena.json", method="DELETE")
    with pytest.raises(urllib.error.HTTPError) as refused, urllib.request.urlopen(request, timeout=WATCHDOG_S):
        pass
    refused.value.close()
    assert refused.value.code == 405


@pytest.mark.parametrize("path", ["/", "/page.css", "/page.js"])
def test_the_page_asks_no_other_host_and_runs_no_other_script(server: MetricsServer, path: str) -> None:
    code, body, headers = asked(server, path)
    assert code == 200
    assert "http://" not in body.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in body
    assert "innerHTML" not in body
    assert "script-src 'self'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", ["/../pyproject.toml", "/page/page.js", "/%2e%2e/picture.py", "/favicon.ico"])
def test_no_other_file_is_served(server: MetricsServer, path: str) -> None:
    assert asked(server, path)[0] == 404


def test_the_picture_has_a_cell_for_each_buffer(arena: Arena, server: MetricsServer) -> None:
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        for partition in range(2):
            accumulator.append("flights", partition, 1, None, b"x")
        accumulator.append("cargo", 0, 1, None, bytes(10_000))
        seen = picture(server)
        cells = seen["cells"]
        words = [cells["state_names"][int(digit)] for digit in cells["states"]]
        assert len(words) == seen["slot_count"] == 16
        assert {state: words.count(state) for state in set(words)} == {
            state: count for state, count in seen["slots"].items() if count
        }
        labels = {cell: tuple(cells["labels"][label]) for cell, label in cells["filled"]}
        assert sorted(labels.values()) == [("cargo", 0), ("flights", 0), ("flights", 1)]
        assert {words[cell] for cell in labels} <= {"OPEN", "READY"}
        assert seen["record_count"] == 3
        assert [row["pid"] for row in seen["processes"]] == [seen["sender"]["pid"]]
        assert all(row["memory_size"] > 2**20 and row["cpu_percent"] >= 0 for row in seen["processes"])
        assert {(row["topic"], row["partition"]) for row in seen["queues"]} == set(labels.values())
        assert seen["troubles"] == []
        deliver_all(accumulator)


def test_the_picture_has_the_latencies_of_the_sender_of_this_process(arena: Arena) -> None:
    numbers = {"request-latency-avg": 1.5, "record-queue-time-avg": 4.0, "record-send-total": 7.0}
    collectors = ArenaCollector(arena), SenderCollector(arena.name, lambda: numbers)
    with closing(MetricsServer("127.0.0.1:0", *collectors)) as server:
        assert picture(server)["latencies"] == {"request_latency_ms": 1.5, "queue_time_ms": 4.0}


def test_a_sender_that_does_not_answer_costs_the_picture_its_latencies_alone(arena: Arena) -> None:
    def read() -> dict[str, float]:
        raise TimeoutError("too busy")

    collectors = ArenaCollector(arena), SenderCollector(arena.name, read)
    with closing(MetricsServer("127.0.0.1:0", *collectors)) as server:
        assert picture(server)["latencies"] == {}


def test_a_cell_of_several_buffers_shows_the_first_that_is_not_free() -> None:
    free, ready, bad = STATE_OF["FREE"], STATE_OF["READY"], STATE_OF["BAD"]
    states = np.array([free, ready, bad, free, free, free, bad], dtype=np.uint8)
    assert _first_used_slots(states, 3).tolist() == [1, 3, 6]
    assert _first_used_slots(states, 1).tolist() == list(range(7))


def test_a_large_arena_has_a_picture_of_bounded_size(arena_name: str) -> None:
    with Arena.create(arena_name, buffer_memory="33MiB", batch_size="1KiB") as arena:
        with closing(MetricsServer("127.0.0.1:0", ArenaCollector(arena))) as server:
            cells = picture(server)["cells"]
        assert cells["span"] == 3
        assert len(cells["states"]) == -(-arena.geometry["slot_count"] // 3) <= CELL_COUNT_MAX


def test_the_server_listens_on_ipv6_as_well(arena: Arena) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6")
    with (
        closing(MetricsServer("[::1]:0", ArenaCollector(arena))) as server,
        urllib.request.urlopen(f"http://[::1]:{server.port}/healthz", timeout=WATCHDOG_S) as answer,
    ):
        assert answer.status == 200


# --- strangers


def connected(server: MetricsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), WATCHDOG_S)


def open_count(connections: list[socket.socket]) -> int:
    """The count of connections that the server still has. Clients are silent, so only a close makes one readable."""
    poller = select.poll()
    for connection in connections:
        poller.register(connection, select.POLLIN)
    return len(connections) - len(poller.poll(0))


def test_silent_clients_take_no_thread_and_few_connections(server: MetricsServer) -> None:
    assert asked(server, "/metrics")[0] == 200
    before = threading.active_count()
    with contextlib.ExitStack() as all_of_them:
        silent = [all_of_them.enter_context(connected(server)) for _ in range(3 * CONNECTION_COUNT_MAX)]
        assert asked(server, "/metrics")[0] == 200
        assert threading.active_count() <= before + WORKER_COUNT
        assert open_count(silent) < CONNECTION_COUNT_MAX  # the request had a connection, too
        assert open_count(silent[: CONNECTION_COUNT_MAX + 1]) == 0


def test_clients_that_never_read_are_replaced_when_there_are_many(server: MetricsServer) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as all_of_them:
        for _ in range(3 * CONNECTION_COUNT_MAX):
            deaf = all_of_them.enter_context(connected(server))
            deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert asked(server, "/healthz")[:2] == (200, "live\n")
        assert threading.active_count() <= before + WORKER_COUNT


@pytest.mark.parametrize(
    "head",
    [
        b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * HEAD_SIZE_MAX,
        b"GET /" + b"x" * 4 * HEAD_SIZE_MAX,
        b"\x16\x03\x01\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET /metrics SPDY/1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    ],
    ids=["headers without an end", "a line without an end", "TLS", "HTTP 0.9", "SPDY", "too many headers"],
)
def test_a_head_that_is_none_ends_its_connection_at_once(server: MetricsServer, head: bytes) -> None:
    with connected(server) as hostile, contextlib.suppress(ConnectionError):
        hostile.sendall(head)
        hostile.shutdown(socket.SHUT_WR)
        assert hostile.recv(100).startswith((b"HTTP/1.1 400", b""))
    assert asked(server, "/healthz")[0] == 200


def test_an_answer_is_whole_and_ends_the_connection(server: MetricsServer) -> None:
    with connected(server) as client, client.makefile("rb") as answer:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n")
        head, _, body = answer.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert body.endswith(b"\n")


def test_a_request_for_the_head_has_no_body(server: MetricsServer) -> None:
    with connected(server) as client, client.makefile("rb") as answer:
        client.sendall(b"HEAD /healthz HTTP/1.1\r\n\r\n")
        head, _, body = answer.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body == b""


def test_a_closed_server_has_no_connections(arena: Arena) -> None:
    server = MetricsServer("127.0.0.1:0", ArenaCollector(arena))
    with connected(server) as silent:
        server.close()
        server.close()
        assert silent.recv(1) == b""
