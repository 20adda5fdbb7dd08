# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of one arena or log: metrics for Prometheus, answers to probes, and a page for browsers.

===============  ======================================================================================================
``/metrics``     the metrics (package prometheus_client)
``/healthz``     200 if the arena is live, or 503; the body has a line for each trouble (shmaccum.observe.health)
``/readyz``      200 if the arena is ready, or 503
``/``            the page: the arena as a picture, curves, processes, troubles
``/arena.json``  the document for the page
===============  ======================================================================================================

A server without an arena has no page, and answers its probes with 200. The page needs no other host. Its script creates
only text nodes, and a content security policy forbids other scripts. So a hostile name of a topic or process is shown
as text.

Every user of the host, and every host that can connect, may read everything: names of topics and processes, and
numbers, but no records. A server on a loopback address accepts only the names of this host: an address, localhost, or
the name in its listen address. So a page of another site cannot make a browser on this host query it under another name
(DNS rebinding). A server that other hosts can reach accepts every name, because their names are unknown.

Rules: one thread serves all connections, and `WORKER_COUNT` threads compute the responses. `CONNECTION_COUNT_MAX`
limits the connections, and thereby the descriptors used by clients. A further client replaces the oldest connection
without a complete request. A request has at most `HEAD_SIZE_MAX` bytes and no body. Each connection ends after its
response, or after `EXCHANGE_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import ipaddress
import json
import re
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, parse_headers
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import unquote

from shmaccum.exceptions import InvalidArgumentError, ShmaccumError
from shmaccum.observe.health import Question, troubles
from shmaccum.observe.prometheus import ArenaCollector, SenderCollector, ServerCollector, metrics_application

if TYPE_CHECKING:
    from shmaccum.observe.picture import PageObserver

Answer = tuple[str, str, bytes]
"""Status, content type and body."""
TEXT = "text/plain; charset=utf-8"
FILES: Final[Mapping[str, tuple[str, str]]] = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
HEADERS: Final = [
    ("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
]
REFUSED: Final = ("405 Method Not Allowed", TEXT, b"this server only answers GET\n")
MISDIRECTED: Final = ("421 Misdirected Request", TEXT, b"use this host's address, as in http://127.0.0.1:PORT\n")
OK, NOT_FOUND, UNAVAILABLE = "200 OK", "404 Not Found", "503 Service Unavailable"
WORKER_COUNT = 2
CONNECTION_COUNT_MAX = 64
HEAD_SIZE_MAX = 16 << 10
EXCHANGE_S = 30.0
"""The longest time from the connection to the end of its response."""
BACKLOG = 4096
PAUSE_S = 0.1
"""The pause after a client could not be accepted."""
HOST: Final = re.compile(r"(?:\[(?P<address>[^\[\]]+)\]|(?P<name>[^\[\]:]+))(?::[0-9]*)?")
END: Final = b"\r\n\r\n"
NO_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
Environ = dict[str, Any]
"""A request, with the keys of WSGI (PEP 3333)."""


def split_address(address: str) -> tuple[str, int]:
    """Split ``HOST:PORT``, ``[IPV6]:PORT`` or ``:PORT``. Without a host, it is 127.0.0.1.

    Raises:
        InvalidArgumentError: the text is not an address.
    """
    host, found, port = address.rpartition(":")
    if not found or not port.isdecimal() or int(port) > 65535:
        raise InvalidArgumentError(f"{address!r} is not an address to listen on: write it like 127.0.0.1:9308")
    return host.strip("[]") or "127.0.0.1", int(port)


def _is_of_this_host(host: str, listen_host: str) -> bool:
    """Return whether the Host of a request names this host.

    Args:
        host: the Host of the request, with or without a port.
        listen_host: the host of the listen address.
    """
    found = HOST.fullmatch(host.strip())
    if found is None:
        return False
    name = found["address"] or found["name"]
    if name.lower().rstrip(".") in {"localhost", listen_host.lower()}:
        return True
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


class _Routes:
    """Routes a request by its path.

    Args:
        metrics: answers a scrape.
        page_observer: makes the documents of the arena. None if there is no arena.
        host: the loopback host of the listen address. None if other hosts can connect.
    """

    def __init__(
        self, metrics: Callable[..., Iterable[bytes]], page_observer: PageObserver | None, host: str | None
    ) -> None:
        self._metrics = metrics
        self._host = host
        self._page_observer = page_observer
        self.has_been_shown = threading.Event()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path, host = environ.get("PATH_INFO", "/"), environ.get("HTTP_HOST")
        is_misdirected = self._host is not None and host is not None and not _is_of_this_host(host, self._host)
        if path == "/metrics" and not is_misdirected:
            return self._metrics(environ, start_response)
        try:
            is_refused = environ.get("REQUEST_METHOD") not in {"GET", "HEAD"}
            status, kind, body = MISDIRECTED if is_misdirected else REFUSED if is_refused else self._answer(path)
        except ShmaccumError as error:
            status, kind, body = UNAVAILABLE, TEXT, f"{error}\n".encode()
        start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *HEADERS])
        return [body]

    def _answer(self, path: str) -> Answer:
        if path in PROBES:
            question = PROBES[path]
            found = [] if self._page_observer is None else list(troubles(self._page_observer.observe(), question))
            sentences = [trouble.sentence for trouble in found] or [question.name.lower()]
            return UNAVAILABLE if found else OK, TEXT, "".join(f"{sentence}\n" for sentence in sentences).encode()
        if self._page_observer is not None and path == "/arena.json":
            self.has_been_shown.set()
            return OK, "application/json", json.dumps(self._page_observer.picture()).encode()
        if self._page_observer is not None and path in FILES:
            name, kind = FILES[path]
            return OK, kind, (resources.files("shmaccum.observe") / "page" / name).read_bytes()
        return NOT_FOUND, TEXT, b"not found: use /metrics, /healthz or /readyz\n"


PROBES: Final = {"/healthz": Question.LIVE, "/readyz": Question.READY}


# --- connections


def _listening(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _environ(head: bytes) -> Environ:
    """Parse the head of a request.

    Raises:
        ValueError, HTTPException: the bytes are not an HTTP head.
    """
    line, _, rest = head.partition(b"\r\n")
    method, target, protocol = line.decode("latin-1").split(" ")
    if not protocol.startswith("HTTP/1."):
        raise ValueError(f"{protocol} is not a supported version")
    path, _, query = target.partition("?")
    headers = parse_headers(io.BytesIO(rest))
    if len(headers.get_all("Host", ())) > 1:
        raise ValueError("a request must have at most one Host")
    named = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
    return {**named, "REQUEST_METHOD": method, "PATH_INFO": unquote(path), "QUERY_STRING": query}


def _answered(routes: _Routes, environ: Environ) -> bytes:
    """Return the complete response to a request."""
    lines: list[str] = []

    def start_response(status: str, headers: list[tuple[str, str]], *_: object) -> None:
        lines.append(f"HTTP/1.1 {status}")
        lines.extend(f"{name}: {value}" for name, value in headers if name.lower() != "content-length")

    body = b"".join(routes(environ, start_response))
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    is_head = environ["REQUEST_METHOD"] == "HEAD"
    return "\r\n".join(lines).encode("latin-1") + (b"" if is_head else body)


@final
class _Connections:
    """The connected clients, oldest first.

    Args:
        routes: makes the responses, in a thread of the pool.
        pool: the threads.
    """

    def __init__(self, routes: _Routes, pool: ThreadPoolExecutor) -> None:
        self._routes = routes
        self._pool = pool
        self._silent: dict[asyncio.Task[None], None] = {}
        """The connections without a complete request."""
        self._asking: dict[asyncio.Task[None], None] = {}

    async def accept(self, listener: socket.socket) -> None:
        """Serves every client until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError:  # the process has no free descriptor
                self._close_oldest()
                await asyncio.sleep(PAUSE_S)
                continue
            if len(self._silent) + len(self._asking) >= CONNECTION_COUNT_MAX:
                self._close_oldest()
            self._silent[loop.create_task(self._serve(client))] = None
            await asyncio.sleep(0)  # let it read now, so that the next client cannot replace a request that has arrived

    def _close_oldest(self) -> None:
        """Closes the oldest client without a complete request, or the oldest one."""
        connections = self._silent or self._asking
        if connections:
            oldest = next(iter(connections))
            del connections[oldest]
            oldest.cancel()

    async def _serve(self, client: socket.socket) -> None:
        """Reads one request, answers it, and closes the connection."""
        task = asyncio.current_task()
        assert task is not None
        with client, contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.CancelledError):
            client.setblocking(False)
            await asyncio.wait_for(self._exchange(client, task), EXCHANGE_S)
        self._silent.pop(task, None)
        self._asking.pop(task, None)

    async def _exchange(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        head = await self._head(client)
        self._silent.pop(task, None)
        self._asking[task] = None
        try:
            environ = _environ(head)
        except (ValueError, HTTPException):
            answer = NO_REQUEST
        else:
            answer = await loop.run_in_executor(self._pool, _answered, self._routes, environ)
        await loop.sock_sendall(client, answer)
        client.shutdown(socket.SHUT_WR)
        while await loop.sock_recv(client, HEAD_SIZE_MAX):
            pass  # closing a socket with unread bytes would reset the connection and cut the response

    @staticmethod
    async def _head(client: socket.socket) -> bytes:
        """Returns the bytes up to the empty line, or no bytes if the head is too long or the client closed."""
        head = b""
        while END not in head and len(head) < HEAD_SIZE_MAX:
            content = await asyncio.get_running_loop().sock_recv(client, HEAD_SIZE_MAX)
            if not content:
                break
            head += content
        return head.partition(END)[0] + END if END in head else b""


@final
class MetricsServer:
    """Serves HTTP requests from its own thread, until `close`.

    Args:
        address: as in `split_address`. Port 0 selects a free port.
        collectors: the metrics to serve. An `ArenaCollector` adds the page and the probes of its arena, and a
            `SenderCollector` the latencies on that page.

    Raises:
        InvalidArgumentError: the address is invalid or unavailable, or the package prometheus_client is not installed.
    """

    def __init__(self, address: str, *collectors: ArenaCollector | SenderCollector | ServerCollector) -> None:
        host, port = split_address(address)
        application, page_observer = metrics_application(*collectors), _page_observer(collectors)
        try:
            listener = _listening(host, port)
        except OSError as error:
            raise InvalidArgumentError(f"metrics cannot be served at {address}: {error.strerror or error}") from error
        is_loopback = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback
        self._routes = _Routes(application, page_observer, host if is_loopback else None)
        self._port = int(listener.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=[listener], name="metrics", daemon=True)
        self._thread.start()

    def _run(self, listener: socket.socket) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve(listener))
        finally:
            self._loop.close()

    async def _serve(self, listener: socket.socket) -> None:
        with ThreadPoolExecutor(WORKER_COUNT, thread_name_prefix="metrics") as pool:
            accepting = asyncio.create_task(_Connections(self._routes, pool).accept(listener))
            await asyncio.wait([accepting, asyncio.create_task(self._end.wait())], return_when=asyncio.FIRST_COMPLETED)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        listener.close()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._port

    def wait_for_browser(self) -> None:
        """Waits until a browser has loaded the page and requests its first picture."""
        self._routes.has_been_shown.wait()

    def close(self) -> None:
        """Stops the server. Idempotent."""
        with contextlib.suppress(RuntimeError):  # the loop is already closed
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()


def _page_observer(collectors: Iterable[ArenaCollector | SenderCollector | ServerCollector]) -> PageObserver | None:
    """Return a page observer for the arena of the collectors, or None without an arena."""
    arena = next((each.arena for each in collectors if isinstance(each, ArenaCollector)), None)
    if arena is None:
        return None
    from shmaccum.observe.picture import PageObserver  # imports numpy, which the server of a log does not need

    read = next((each.numbers for each in collectors if isinstance(each, SenderCollector)), None)
    return PageObserver(arena, read)
