# SPDX-License-Identifier: Apache-2.0
"""The login of a connection, and its session, which a broker may limit (KIP-368).

A broker closes a connection that sends a request after the end of its session, so that request is lost. Therefore, the
login is repeated over the same connection after 85 to 95 % of the session, as by Kafka's client. No request is sent
from then on until the login is complete. Apache Kafka rejects a login less than a second after the previous one. So in
a very short session, the repetition may come after the end of the session. Apache Kafka accepts this.

A session with a token ends at the latest when the token expires by the clock of the broker. If a repetition with the
same token yields less than half of the time that the session had before, the token is about to expire there, and
`TokenRefresher` requests the next one.

A broker may refuse a login by an error, by closing the connection, or by not responding. Each of these is reported.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from kafka import errors
from kafka.net.connection import SaslReauthenticator

from shmaccum.common import clock
from shmaccum.sender.sinks.kafka.library.failures import LoginUnansweredError, text_of
from shmaccum.sender.sinks.kafka.library.tokens import TokenRefresher

MS_PER_S = 1000
REPEAT_AT = (0.85, 0.95)
"""The range of the share of a session after which the login is repeated. It is random, as by Kafka's client."""
REPEAT_INTERVAL_S = 1.1
"""Longer than the second for which Apache Kafka rejects the next repetition (KafkaChannel)."""
SLOW_LOGIN_S = 3.0
"""A login that takes longer is reported while the connection waits for the response."""


class Session(SaslReauthenticator):  # type: ignore[misc]
    """Logs in and repeats the login, in place of the library's class and of the connection's own method.

    Args:
        conn: a connection of the library, before its login.
        tokens: the source of its tokens; None without OAUTHBEARER.
        timeout_s: the longest time that a repeated login may take.
        report: takes failures.
    """

    def __init__(
        self, conn: Any, tokens: TokenRefresher | None, timeout_s: float, report: Callable[[Exception], None]
    ) -> None:
        super().__init__(conn)
        self._tokens = tokens
        self._timeout_s = timeout_s
        self._report = report
        self._log_in = conn._sasl_authenticate  # noqa: SLF001 - the library has no hook for a login
        self._is_logging_in = False
        self._repeated_s = -math.inf
        self.due_s = math.inf
        """The time after which no request is sent before the login is repeated."""
        self._token_number = 0
        conn._sasl_authenticate = self.log_in  # noqa: SLF001
        conn._reauth = self  # noqa: SLF001

    async def log_in(self, timeout_at: float | None = None) -> None:
        """Log in, or repeat the login."""
        now_s, is_repeated = clock.monotonic(), self._reauthenticating
        if is_repeated:
            self._repeated_s = now_s
        slow = LoginUnansweredError(f"the broker has not responded to the login for {SLOW_LOGIN_S:g} s")
        timer = self._conn.net.call_later(SLOW_LOGIN_S, lambda: self._report(slow))
        self._is_logging_in = True
        try:
            await self._log_in(now_s + self._timeout_s if timeout_at is None else timeout_at)
            self._is_logging_in = False
        except Exception as error:
            if is_repeated and not isinstance(error, errors.Cancelled):
                self._report(self.reason_of(error))
            raise
        finally:
            self._conn.net.cancel(timer)

    def reason_of(self, error: Exception) -> Exception:
        """Return the reason for the end of a connection: a login without a response is named as such."""
        is_cut = isinstance(error, (errors.KafkaConnectionError, errors.RequestTimedOutError, errors.KafkaTimeoutError))
        if not (self._is_logging_in and is_cut):
            return error
        return LoginUnansweredError(f"the login ended without a response: {text_of(error)}")

    def session_updated(self, session_lifetime_ms: int | None) -> None:
        """Record the lifetime of the session. The library would extend a short one."""
        previous_ms: int = self.session_lifetime_ms
        self.session_lifetime_ms: int = max(session_lifetime_ms or 0, 0)
        self.authenticated_at = clock.monotonic()
        if self._tokens is None:
            return
        token_number, self._token_number = self._token_number, self._tokens.number
        if token_number == self._token_number and 0 < self.session_lifetime_ms < previous_ms / 2:
            self._tokens.ends_in(self.session_lifetime_ms / MS_PER_S)

    def schedule(self) -> None:
        """Plan the next repetition."""
        self.due_s = math.inf
        if self.session_lifetime_ms:
            share = random.uniform(*REPEAT_AT)
            self.due_s = clock.monotonic() + self.session_lifetime_ms / MS_PER_S * share
            self._task = self._conn.net.call_at(max(self.due_s, self._repeated_s + REPEAT_INTERVAL_S), self._run)

    @property
    def is_reauthenticating(self) -> bool:
        """True from the time at which the login should be repeated until it is complete. Requests wait meanwhile."""
        return self._reauthenticating or self.due_s <= clock.monotonic()
