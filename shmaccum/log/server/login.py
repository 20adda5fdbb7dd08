# SPDX-License-Identifier: Apache-2.0
"""The login of a client: SASL PLAIN and SCRAM, as Kafka's clients speak it (KIP-43, KIP-152, RFC 5802, RFC 7677).

::

    client                                  server
    SaslHandshake    SCRAM-SHA-256     ──>
                                       <──  the mechanisms
    SaslAuthenticate n,,n=alice,r=C    ──>
                                       <──  r=CS,s=SALT,i=8192
    SaslAuthenticate c=biws,r=CS,p=... ──>  the proof fits the verifier?
                                       <──  v=...                        or SASL_AUTHENTICATION_FAILED, and the end

PLAIN has one step: name and password. The server hashes the password for it, in a thread of its own (`worker`). A
failed login is answered late, and its connection ends, so that nobody tries many passwords. A name that is no user's
fails at the same step, after the same work, as a wrong password.
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
    """A login that failed; the sentence goes to the client and tells nothing about users."""


WRONG = "wrong user name or password"


class Exchange(Protocol):
    """One try of one mechanism."""

    name: str
    """The user's; known when the exchange is over."""
    is_over: bool

    def step(self, token: bytes) -> bytes | Proof:
        """The answer to a token, or a proof on which the answer depends.

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
            raise LoginError("a token of PLAIN has a user name and a password") from None
        verifier = self._users.verifier(self.name, "SCRAM-SHA-256")
        return functools.partial(verifier.matches, password, "SCRAM-SHA-256")

    def conclude(self, is_right: bool) -> bytes:
        """The answer to the token whose proof has this result.

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
        self._header = ""
        self._first = ""
        self._nonce = ""
        self.name = ""
        self.is_over = False

    def step(self, token: bytes) -> bytes:
        """See `Exchange`."""
        try:
            text = token.decode()
            return (self._begin(text) if not self._first else self._end(text)).encode()
        except (KeyError, ValueError):
            raise LoginError(f"a token that is none of {self._mechanism}") from None

    def _begin(self, text: str) -> str:
        """client-first-message to server-first-message."""
        flag, authority, bare = text.split(",", 2)
        found = _attributes(bare)
        self.name = found["n"].replace("=2C", ",").replace("=3D", "=")
        if flag not in {"n", "y"} or authority not in {"", f"a={found['n']}"} or "m" in found or not found["r"]:
            raise LoginError(f"{self._mechanism} is offered without channel binding, for the user alone")
        self._header = f"{flag},{authority},"
        self._nonce = found["r"] + secrets.token_urlsafe(NONCE_SIZE)
        verifier = self._verifier = self._users.verifier(self.name, self._mechanism)
        answer = f"r={self._nonce},s={base64.b64encode(verifier.salt).decode()},i={verifier.iterations}"
        self._first = f"{bare},{answer}"
        return answer

    def _end(self, text: str) -> str:
        """client-final-message to server-final-message."""
        bare, _, proof = text.rpartition(",p=")
        found = _attributes(bare)
        is_this = found["r"] == self._nonce and base64.b64decode(found["c"]) == self._header.encode()
        signed = f"{self._first},{bare}".encode()
        if not is_this or not self._proves(base64.b64decode(proof, validate=True), signed):
            raise LoginError(WRONG)
        self.is_over = True
        return "v=" + base64.b64encode(hmac.digest(self._verifier.server_key, signed, self._hash)).decode()

    def _proves(self, proof: bytes, signed: bytes) -> bool:
        """True when the proof comes from the client key whose hash the verifier stores."""
        signature = hmac.digest(self._verifier.stored_key, signed, self._hash)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        return hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), self._verifier.stored_key)


def _attributes(text: str) -> dict[str, str]:
    """``a=1,b=2``."""
    return dict(pair.split("=", 1) for pair in text.split(","))


@final
class Login:
    """The login of one connection.

    Attributes:
        has_failed: the connection ends with the answer that tells so.
    """

    def __init__(self, users: UsersFile) -> None:
        self._users = users
        self._exchange: Exchange | None = None
        self._as_it_logged_in: User | None = None
        self.has_failed = False

    @property
    def user(self) -> User | None:
        """The user that logged in, with the rights of now; None before, and when user or password are gone since."""
        if not self.is_over or self._as_it_logged_in is None or self._exchange is None:
            return None
        user = self._users.get(self._exchange.name)
        if user is self._as_it_logged_in:
            return user
        return user if user is not None and user.has_login_of(self._as_it_logged_in) else None

    @property
    def is_over(self) -> bool:
        """True when the client has proved who it is."""
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
        """The answer to a token, or a proof whose result `conclude` takes.

        Raises:
            LoginError: the login failed.
        """
        exchange = self._exchange
        if exchange is None or exchange.is_over:
            raise LoginError("SaslAuthenticate comes after SaslHandshake, and once")
        return self._noted(exchange, exchange.step(token))

    def conclude(self, is_right: bool) -> bytes:
        """The answer to the token whose proof has this result.

        Raises:
            LoginError: the login failed.
        """
        assert isinstance(self._exchange, PlainExchange)
        return self._noted(self._exchange, self._exchange.conclude(is_right))

    def _noted(self, exchange: Exchange, answer: Answer) -> Answer:
        """The answer itself; a login that it ends is noted with the user as it is now."""
        self._as_it_logged_in = self._users.get(exchange.name) if exchange.is_over else None
        return answer
