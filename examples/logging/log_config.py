# SPDX-License-Identifier: Apache-2.0
"""A configuration of ``logging`` that sends each log record to a topic."""

from typing import Any

CONFIG: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {
        "arena": {
            "class": "shmaccum.logging.ArenaHandler",
            "arena": "app-logs",
            "topic": "logs",
            "sink": "log:log",  # for a cluster: kafka:HOST:PORT
        },
    },
    "root": {"handlers": ["arena"], "level": "INFO"},
}
