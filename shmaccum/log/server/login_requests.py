# SPDX-License-Identifier: Apache-2.0
"""SaslHandshake and SaslAuthenticate: the requests with which a client logs in (`login`).

Passwords are hashed in a thread. The response to a failed login is delayed, to limit guessing.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable
from typing import final

from shmaccum.common import clock
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.call import Call, Values
from shmaccum.log.server.login import MECHANISMS, Login, LoginError
from shmaccum.log.server.throttle import throttled_logger
from shmaccum.log.server.worker import Proof, Worker

logger = throttled_logger(__name__)

FRAMED_TOKENS_VERSION = 1
"""From this version of SaslHandshake on, SaslAuthenticate has the tokens. librdkafka also checks for version 0."""
FAILED_LOGIN_DELAY_S = 1.0


@final
class LoginRequests:
    """Handles the logins of a server. `wake` wakes its loop and is thread-safe."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._hashing = Worker(wake, "hashing")
        self._refused: deque[tuple[float, Call, Values]] = deque()

    def handshake(self, call: Call) -> Values:
        """SaslHandshake: chooses a mechanism."""
        login = _login_of(call)
        error = BrokerError.ILLEGAL_SASL_STATE
        if call.version >= FRAMED_TOKENS_VERSION:
            error = login.begin(call.message.mechanism)
        login.has_failed = error is not BrokerError.NONE
        return {"error_code": error, "mechanisms": list(MECHANISMS)}

    def authenticate(self, call: Call) -> Values | None:
        """SaslAuthenticate: one step. If it needs a hash, the response is sent when the hash is computed."""
        login, token = _login_of(call), bytes(call.message.auth_bytes or b"")
        return self._answer(call, functools.partial(login.step, token))

    def _answer(self, call: Call, step: Callable[[], bytes | Proof]) -> Values | None:
        login = _login_of(call)
        try:
            content = step()
        except LoginError as error:
            login.has_failed = True
            sentence = f"the login failed: {error}"
            logger.warning("a login from %s failed: %s", call.host, sentence)
            code = BrokerError.SASL_AUTHENTICATION_FAILED
            refusal: Values = {"error_code": code, "error_message": sentence, "auth_bytes": b""}
            self._refused.append((clock.monotonic() + FAILED_LOGIN_DELAY_S, call, refusal))
            return None
        if isinstance(content, bytes):
            return {"error_code": BrokerError.NONE, "error_message": None, "auth_bytes": content}

        def conclude(is_right: bool) -> None:
            call.complete(self._answer(call, functools.partial(login.conclude, is_right)))

        self._hashing.ask(content, conclude)
        return None

    @property
    def deadline_s(self) -> float:
        """The next time at which `tick` has work, on the clock of time.monotonic()."""
        return self._refused[0][0] if self._refused else math.inf

    def conclude(self) -> None:
        """Continues the logins whose hash is computed."""
        self._hashing.conclude()

    def tick(self) -> None:
        """Responds to failed logins whose delay has passed."""
        while self.deadline_s <= clock.monotonic():
            _, call, refusal = self._refused.popleft()
            call.complete(refusal)

    def close(self) -> None:
        """Ends the thread. Idempotent."""
        self._hashing.close()


def _login_of(call: Call) -> Login:
    assert call.login is not None
    return call.login
