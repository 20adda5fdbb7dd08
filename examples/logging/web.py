# SPDX-License-Identifier: Apache-2.0
"""A WSGI application that logs each request."""

import logging
from collections.abc import Callable
from typing import Any


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> list[bytes]:
    """Logs the path, and responds."""
    logging.getLogger("app").info("asked for %s", environ["PATH_INFO"])
    start_response("200 OK", [("Content-Length", "3")])
    return [b"ok\n"]
