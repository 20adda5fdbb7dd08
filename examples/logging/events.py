# SPDX-License-Identifier: Apache-2.0
"""structlog events, which are sent to a topic together with the log records of other libraries."""

import copy
import logging.config
from typing import Any

import structlog
from log_config import CONFIG

SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def configure() -> None:
    """Formats events and log records in the same way, as JSON."""
    config = copy.deepcopy(CONFIG)
    config["formatters"] = {
        "events": {
            "()": structlog.stdlib.ProcessorFormatter,
            "foreign_pre_chain": SHARED,
            "processors": [
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.dict_tracebacks,
                structlog.processors.JSONRenderer(),
            ],
        },
    }
    config["handlers"]["arena"] |= {"formatter": "events", "topic": "events"}
    logging.config.dictConfig(config)
    structlog.configure(
        processors=[*SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def main() -> None:
    """Logs a structlog event, and a record of the standard library."""
    configure()
    structlog.contextvars.bind_contextvars(request="17")
    structlog.get_logger("shop").info("sold", price=12)
    logging.getLogger("bank").warning("slow")


if __name__ == "__main__":
    main()
