# SPDX-License-Identifier: Apache-2.0
"""A WSGI application under gunicorn: each request is a record, and all workers share one arena."""

from collections.abc import Callable
from typing import Any

import shmaccum

shmaccum.Arena.attach_or_create("web").close()
producer = shmaccum.Producer("web", sink="log:web-log", linger_ms=5)


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> list[bytes]:
    """Responds when the record of the request is in the arena."""
    producer.send("requests", key=environ["REMOTE_ADDR"].encode(), value=environ["PATH_INFO"].encode())
    start_response("200 OK", [("Content-Length", "3")])
    return [b"ok\n"]
