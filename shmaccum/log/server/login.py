# SPDX-License-Identifier: Apache-2.0
"""The login of a client: SASL PLAIN and SCRAM, as used by Kafka's clients (KIP-43, KIP-152, RFC 5802, RFC 7677).

::

    client                                  server
    SaslHandshake    SCRAM-SHA-256     ──>
                                       <──  the mechanisms
    SaslAuthenticate n,,n=alice,r=C    ──>
                                       <──  r=CS,s=SALT,i=8192
    SaslAuthenticate c=biws,r=CS,p=... ──>  does the proof match the verifier?
                                       <──  v=...                        or SASL_AUTHENTICATION_FAILED, and close

PLAIN has one step with name and password. The server hashes the password in a thread (`worker`). The response to a
failed login is delayed, and then the connection is closed, to limit guessing. An unknown name fails at the same step,
after the same work, as a wrong password.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import secrets
from typing import Protocol, TypeVar, final

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.users import HASHES, User, UsersFile
from shmaccum.log.server.worker import Proof

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *HASHES)
NONCE_SIZE = 24

Answer = TypeVar("Answer", bound="bytes | Proof")


class LoginError(Exception):
    """A failed login. The message is sent to the client and reveals nothing about users."""


WRONG = "wrong user name or password"


class Exchange(Protocol):
    """One attempt with one mechanism."""

    name: str
    """The name of the user, known when the exchange is over."""
    is_over: bool

    def step(self, token: bytes) -> bytes | Proof:
        """Returns the response to a token, or a proof that decides the response.

        Raises:
            LoginError: the login failed.
        """


@final
class PlainExchange:
    """RFC 4616: ``authorization id NUL user NUL password``."""

    def __init__(self, users: UsersFile) -> None:
        self._users = users
        self._authority = ""
        self.name = ""
        self.is_over = False

    def step(self, token: bytes) -> Proof:
        """See `Exchange`."""
        try:
            self._authority, self.name, password = token.decode().split("\0")
        except ValueError:
            raise LoginError("a PLAIN token needs a user name and a password") from None
        verifier = self._users.verifier(self.name, "SCRAM-SHA-256")
        return functools.partial(verifier.matches, password, "SCRAM-SHA-256")

    def conclude(self, is_right: bool) -> bytes:
        """Returns the response to the token, given the result of its proof.

        Raises:
            LoginError: name or password is wrong.
        """
        if not is_right or self._authority not in {"", self.name}:
            raise LoginError(WRONG)
        self.is_over = True
        return b""


@final
class ScramExchange:
    """RFC 5802, without channel binding."""

    def __init__(self, users: UsersFile, mechanism: str) -> None:
        self._users = users
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._header: str
        self._nonce: str
        self._first = ""
        self.name = ""
        self.is_over = False

    def step(self, token: bytes) -> bytes:
        """See `Exchange`."""
        try:
            text = token.decode()
            return (self._begin(text) if not self._first else self._end(text)).encode()
        except (KeyError, ValueError):
            raise LoginError(f"a token is invalid for {self._mechanism}") from None

    def _begin(self, text: str) -> str:
        """Handles client-first-message, and returns server-first-message."""
        flag, authority, bare = text.split(",", 2)
        found = _attributes(bare)
        self.name = found["n"].replace("=2C", ",").replace("=3D", "=")
        if flag not in {"n", "y"} or authority not in {"", f"a={found['n']}"} or "m" in found or not found["r"]:
            raise LoginError(f"{self._mechanism} is supported without channel binding and without an authorization id")
        self._header = f"{flag},{authority},"
        self._nonce = found["r"] + secrets.token_urlsafe(NONCE_SIZE)
        verifier = self._verifier = self._users.verifier(self.name, self._mechanism)
        answer = f"r={self._nonce},s={base64.b64encode(verifier.salt).decode()},i={verifier.iterations}"
        self._first = f"{bare},{answer}"
        return answer

    def _end(self, text: str) -> str:
        """Handles client-final-message, and returns server-final-message."""
        bare, _, proof = text.rpartition(",p=")
        found = _attributes(bare)
        is_this = found["r"] == self._nonce and base64.b64decode(found["c"]) == self._header.encode()
        signed = f"{self._first},{bare}".encode()
        if not is_this or not self._proves(base64.b64decode(proof, validate=True), signed):
            raise LoginError(WRONG)
        self.is_over = True
        return "v=" + base64.b64encode(hmac.digest(self._verifier.server_key, signed, self._hash)).decode()

    def _proves(self, proof: bytes, signed: bytes) -> bool:
        """Returns whether the proof was made with the client key of the stored hash."""
        signature = hmac.digest(self._verifier.stored_key, signed, self._hash)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        return hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), self._verifier.stored_key)


def _attributes(text: str) -> dict[str, str]:
    """Parse ``a=1,b=2``."""
    return dict(pair.split("=", 1) for pair in text.split(","))


@final
class Login:
    """The login of one connection.

    Attributes:
        has_failed: whether the login failed; the connection closes after the response.
    """

    def __init__(self, users: UsersFile) -> None:
        self._users = users
        self._exchange: Exchange | None = None
        self._as_it_logged_in: User | None = None
        self.has_failed = False

    @property
    def user(self) -> User | None:
        """The logged-in user with its present rights. None before login, and if user or password have changed since."""
        if not self.is_over or self._as_it_logged_in is None or self._exchange is None:
            return None
        user = self._users.get(self._exchange.name)
        if user is self._as_it_logged_in:
            return user
        return user if user is not None and user.has_login_of(self._as_it_logged_in) else None

    @property
    def is_over(self) -> bool:
        """Whether the login succeeded."""
        return self._exchange is not None and self._exchange.is_over

    def begin(self, mechanism: str) -> BrokerError:
        """Chooses a mechanism."""
        if self._exchange is not None:
            return BrokerError.ILLEGAL_SASL_STATE
        if mechanism not in MECHANISMS:
            return BrokerError.UNSUPPORTED_SASL_MECHANISM
        self._exchange = PlainExchange(self._users) if mechanism == PLAIN else ScramExchange(self._users, mechanism)
        return BrokerError.NONE

    def step(self, token: bytes) -> bytes | Proof:
        """Returns the response to a token, or a proof whose result is passed to `conclude`.

        Raises:
            LoginError: the login failed.
        """
        exchange = self._exchange
        if exchange is None or exchange.is_over:
            raise LoginError("SaslAuthenticate must follow SaslHandshake, once per login")
        return self._finished(exchange, exchange.step(token))

    def conclude(self, is_right: bool) -> bytes:
        """Returns the response to the token, given the result of its proof.

        Raises:
            LoginError: the login failed.
        """
        assert isinstance(self._exchange, PlainExchange)
        return self._finished(self._exchange, self._exchange.conclude(is_right))

    def _finished(self, exchange: Exchange, answer: Answer) -> Answer:
        """Stores the present user if the login succeeded, and returns the response."""
        self._as_it_logged_in = self._users.get(exchange.name) if exchange.is_over else None
        return answer
