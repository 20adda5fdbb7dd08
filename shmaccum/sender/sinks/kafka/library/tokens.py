# SPDX-License-Identifier: Apache-2.0
"""Keeps a token for OAUTHBEARER, and requests the next one in a thread before it expires.

A login, and each repeated login of a connection (KIP-368), takes the token that is present, so it never waits for the
source of tokens. Only the first connection waits, and one that begins after the token has expired. If the source
fails, the present token remains in use until it expires, and the source is asked again with growing pauses.

A repeated login happens after 85 to 95 % of the session, which lasts at most until the token of the login expires. The
next token is requested after 80 % of the lifetime, so each repeated login finds a token that lasts longer. Sessions may
end earlier than their tokens, because the clock of the broker is ahead, or the broker ignores fractions of seconds.
This difference is then subtracted from the lifetimes of all later tokens (`ends_in`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from kafka import errors
from kafka.future import Future
from kafka.net.sasl.oauth import AbstractTokenProvider

from shmaccum.common import clock
from shmaccum.common.background import started_thread
from shmaccum.common.clock import NS_PER_S
from shmaccum.exceptions import ShmaccumError
from shmaccum.sender.sinks.kafka.token_sources import Token, TokenError, TokenSource

logger = logging.getLogger(__name__)

REFRESH_AT = 0.8
"""The share of its lifetime after which a token is replaced."""
RETRY_S = 1.0
"""The pause after a failure, and the shortest pause between two requests."""
RETRY_MAX_S = 30.0
PAUSE_MAX_S = 86400.0
RENEWAL_INTERVAL_S = 10.0
"""The minimum age of a token that is replaced because a broker has rejected it."""
WAIT_S = 15.0
"""The longest time that a connection waits for the first token."""


class _Kept:
    """A token with the times at which it was received and at which it expires."""

    def __init__(self, token: Token, received_s: float, expires_s: float) -> None:
        self.token = token
        self.received_s = received_s
        self.expires_s = expires_s


class TokenRefresher(AbstractTokenProvider):  # type: ignore[misc]
    """A token provider of the library, with a thread that requests tokens.

    `ready`, `token`, `extensions`, `renew` and `ends_in` are for the thread of the loop. `close` ends the thread.

    Args:
        net: the library's loop.
        source: returns a new token.
        report: takes sentences about failures, in the thread of the loop.
    """

    def __init__(self, net: Any, source: TokenSource, report: Callable[[str], None]) -> None:
        super().__init__()
        self._net = net
        self._source = source
        self._report = report
        self.number = 0
        """The number of tokens so far."""
        self._kept: _Kept | None = None
        self._early_s = 0.0
        self._failure = ""
        self._is_requesting = True
        self._is_closed = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._waiting: list[Future] = []

    # --- the thread of the loop

    async def ready(self) -> None:
        """Wait until there is a valid token, the request for one has failed, or `WAIT_S` have passed."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = started_thread(self._run, "shmaccum-tokens", logger)
        if self._valid() is None and self._is_requesting and self._thread is not None:
            future = Future()
            self._waiting.append(future)
            self._net.call_later(WAIT_S, lambda: _end(future))
            await future

    def token(self) -> str:
        """Return the present token. Raise the library's error with the reason if there is none."""
        return self._present().token.text

    def extensions(self) -> dict[str, str]:
        """Return the extensions of the present token."""
        return dict(self._present().token.extensions)

    def renew(self) -> None:
        """Request another token, because a broker has rejected this one."""
        kept = self._valid()
        if kept is not None and _now_s() - kept.received_s >= RENEWAL_INTERVAL_S:
            self._wake.set()

    def ends_in(self, left_s: float) -> None:
        """Note that brokers accept this token only for a time, and request another one now."""
        kept = self._kept
        if kept is not None and (early_s := kept.expires_s - _now_s() - left_s) > 0:
            self._early_s += early_s
            kept.expires_s -= early_s
            self._wake.set()

    def close(self) -> None:
        """End the thread. A request in progress ends without effect."""
        self._is_closed = True
        self._wake.set()

    def _valid(self) -> _Kept | None:
        kept = self._kept
        return kept if kept is not None and _now_s() < kept.expires_s else None

    def _present(self) -> _Kept:
        kept = self._valid()
        if kept is None:
            reason = self._failure or f"the request takes longer than {WAIT_S:g} s"
            raise errors.SaslAuthenticationFailedError(f"there is no token for OAUTHBEARER: {reason}")
        return kept

    def _end_waits(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            _end(future)

    def _report_failure(self) -> None:
        if self._valid() is not None and self._failure:
            self._report(f"the token for OAUTHBEARER cannot be replaced before it expires: {self._failure}")

    # --- the thread of the source

    def _run(self) -> None:
        failure_count = 0
        while not self._is_closed:
            self._wake.clear()
            self._is_requesting = True
            pause_s = self._request()
            if self._failure:
                failure_count += 1
                pause_s = min(RETRY_S * 2 ** min(failure_count - 1, 10), RETRY_MAX_S)
            else:
                failure_count = 0
            self._is_requesting = False
            self._in_loop(self._end_waits)
            if self._failure:
                self._in_loop(self._report_failure)
            if not self._is_closed:
                self._wake.wait(pause_s)

    def _request(self) -> float:
        """Request a token, and return the seconds until the next request. Set `_failure` if there is none."""
        started_s = _now_s()
        try:
            token = self._source()
            if not token.lifetime_s > 0:  # this test also rejects NaN
                raise TokenError(f"it expired {-token.lifetime_s:.0f} s ago: check the clocks")
        except BaseException as error:  # noqa: BLE001 - a user's code may raise anything; it is called again
            self._failure = str(error) if isinstance(error, ShmaccumError) else f"{type(error).__name__}: {error}"
            return RETRY_S
        usable_s = token.lifetime_s - self._early_s
        self._kept, self._failure = _Kept(token, started_s, started_s + usable_s), ""
        self.number += 1
        return min(max(usable_s * REFRESH_AT, RETRY_S), PAUSE_MAX_S)

    def _in_loop(self, call: Callable[[], object]) -> None:
        try:
            self._net.call_soon_threadsafe(call)
        except (RuntimeError, OSError):  # closed meanwhile
            logger.debug("a token arrived after the end")


def _end(wait: Any) -> None:
    if not wait.is_done:
        wait.success(None)


def _now_s() -> float:
    return clock.monotonic_ns() / NS_PER_S
