# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of one arena or log: metrics for Prometheus, answers for probes, and the page for a browser.

===============  ======================================================================================================
``/metrics``     the metrics (package prometheus_client)
``/healthz``     200 when the arena is live, else 503; the body has a line for each trouble (shmaccum.observe.health)
``/readyz``      200 when the arena is ready, else 503
``/``            the page: the arena as a picture, curves, processes, troubles
``/arena.json``  the document behind the page
===============  ======================================================================================================

A server without an arena has no page, and its probes are answered with 200: it lives, because it answers. The page
needs no other host. Its script builds text nodes alone, and the browser is told to run no other script, so a topic or a
process with a hostile name stays a name.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from shmaccum.exceptions import InvalidArgumentError, ShmaccumError
from shmaccum.observe.health import Question, troubles
from shmaccum.observe.prometheus import ArenaCollector, SenderCollector, ServerCollector, metrics_application

if TYPE_CHECKING:
    from shmaccum.observe.picture import Painter

Answer = tuple[str, str, bytes]
"""Status, content type, and body."""
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
OK, NOT_FOUND, UNAVAILABLE = "200 OK", "404 Not Found", "503 Service Unavailable"


def split_address(address: str) -> tuple[str, int]:
    """``HOST:PORT``, ``[IPV6]:PORT`` or ``:PORT``; the last one is this host alone.

    Raises:
        InvalidArgumentError: it is none of them.
    """
    host, found, port = address.rpartition(":")
    if not found or not port.isdecimal() or int(port) > 65535:
        raise InvalidArgumentError(f"{address!r} is no address to listen on: write it like 127.0.0.1:9308")
    return host.strip("[]") or "127.0.0.1", int(port)


class _SilentHandler(WSGIRequestHandler):
    timeout = 30  # of a client that sends nothing

    def log_message(self, *_arguments: Any) -> None:
        pass


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Routes:
    """Answers a request by its path."""

    def __init__(self, metrics: Callable[..., Iterable[bytes]], painter: Painter | None) -> None:
        self._metrics = metrics
        self._painter = painter
        self.has_shown = threading.Event()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            return self._metrics(environ, start_response)
        try:
            is_refused = environ.get("REQUEST_METHOD") not in {"GET", "HEAD"}
            status, kind, body = REFUSED if is_refused else self._answer(path)
        except ShmaccumError as error:
            status, kind, body = UNAVAILABLE, TEXT, f"{error}\n".encode()
        start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *HEADERS])
        return [body]

    def _answer(self, path: str) -> Answer:
        if path in PROBES:
            return self._probed(PROBES[path])
        if self._painter is not None and path == "/arena.json":
            self.has_shown.set()
            return OK, "application/json", json.dumps(self._painter.picture()).encode()
        if self._painter is not None and path in FILES:
            name, kind = FILES[path]
            return OK, kind, (resources.files("shmaccum.observe") / "page" / name).read_bytes()
        return NOT_FOUND, TEXT, b"there is /metrics, /healthz and /readyz\n"

    def _probed(self, question: Question) -> Answer:
        found = [] if self._painter is None else list(troubles(self._painter.observe(), question))
        sentences = [trouble.sentence for trouble in found] or [question.name.lower()]
        return UNAVAILABLE if found else OK, TEXT, "".join(f"{sentence}\n" for sentence in sentences).encode()


PROBES: Final = {"/healthz": Question.LIVE, "/readyz": Question.READY}


class MetricsServer:
    """Answers over HTTP from a thread of its own, until `close`.

    Args:
        address: as `split_address` takes it; port 0 takes a free one.
        collectors: the metrics to serve. An `ArenaCollector` among them brings the page and the probes of its arena,
            and a `SenderCollector` the latencies on that page.

    Raises:
        InvalidArgumentError: the address is none, or cannot be listened on; the package prometheus_client is not there.
    """

    def __init__(self, address: str, *collectors: ArenaCollector | SenderCollector | ServerCollector) -> None:
        host, port = split_address(address)
        self._routes = _Routes(metrics_application(*collectors), _painter(collectors))
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            server_type = type("_ServerOfFamily", (_Server,), {"address_family": family})
            self._server: WSGIServer = make_server(host, port, self._routes, server_type, _SilentHandler)
        except OSError as error:
            raise InvalidArgumentError(f"metrics cannot be served at {address}: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_port)

    def wait_for_browser(self) -> None:
        """Waits until somebody has the page and asks for its first picture."""
        self._routes.has_shown.wait()

    def close(self) -> None:
        """Answers no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _painter(collectors: Iterable[ArenaCollector | SenderCollector | ServerCollector]) -> Painter | None:
    """The painter of the arena whose collector is given; None without one."""
    arena = next((each.arena for each in collectors if isinstance(each, ArenaCollector)), None)
    if arena is None:
        return None
    from shmaccum.observe.picture import Painter  # with numpy, which a mere server of a log does without

    read = next((each.numbers for each in collectors if isinstance(each, SenderCollector)), None)
    return Painter(arena, read)
