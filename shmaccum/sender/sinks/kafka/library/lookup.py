# SPDX-License-Identifier: Apache-2.0
"""Looks up host names in threads: the C library's resolver may block for seconds."""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

from kafka import errors
from kafka.future import Future

logger = logging.getLogger(__name__)


class Lookup:
    """One name lookup in a thread of its own."""

    def __init__(self, net: Any, host: str, port: int) -> None:
        self.future = Future()
        self._net = net
        self._host, self._port = host, port
        if is_address(host):
            self._look_up(lambda finish: finish())
        else:
            self._look_up_in_thread()

    def _look_up_in_thread(self) -> None:
        thread = threading.Thread(target=self._look_up, args=(self._in_loop,), name="shmaccum-resolve", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the next attempt to connect looks it up again
            self.future.failure(errors.KafkaConnectionError(f"the name {self._host} cannot be looked up now: {error}"))

    def _look_up(self, run: Callable[[Callable[[], object]], object]) -> None:
        try:
            infos = socket.getaddrinfo(self._host, self._port, socket.AF_UNSPEC, socket.SOCK_STREAM)
        except BaseException as error:  # noqa: BLE001 - an invalid name, too: the waiting task must get an error
            failure = errors.KafkaConnectionError(f"the name {self._host} is not known: {error}")
            run(lambda: self.future.failure(failure))
            return
        found = [(info[0], info[4]) for info in infos]
        run(lambda: self.future.success(found))

    def _in_loop(self, finish: Callable[[], object]) -> None:
        try:
            self._net.call_soon_threadsafe(finish)
        except (RuntimeError, OSError):  # closed meanwhile
            logger.debug("%s was looked up too late", self._host)


def is_address(host: str) -> bool:
    """True if there is nothing to look up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
