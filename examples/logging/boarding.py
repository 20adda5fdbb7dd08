# SPDX-License-Identifier: Apache-2.0
"""A program that logs, and is killed after its last call."""

import logging.config
import os
import signal

from log_config import CONFIG

logger = logging.getLogger("app.gates")


def main() -> None:
    """Logs a call for each gate, without time to shut its handlers down."""
    logging.config.dictConfig(CONFIG)
    for gate in (7, 8):
        logger.info("flight AA%d boards", gate, extra={"gate": gate, "kafka_key": f"AA{gate}"})
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
