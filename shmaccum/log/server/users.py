# SPDX-License-Identifier: Apache-2.0
"""The users file of a server: the logins and the rights of its principals.

::

    user alice SCRAM-SHA-256 salt=BASE64,stored_key=BASE64,server_key=BASE64,iterations=8192
    user alice SCRAM-SHA-512 salt=BASE64,stored_key=BASE64,server_key=BASE64,iterations=8192
    allow alice read topic:flights*
    allow alice read group:readers
    allow alice write transactional-id:etl
    decoys BASE64

A line is a login, a right, or the key of the decoys (`UsersFile.verifier`). Blank lines and lines that start with ``#``
are ignored. A login is the salted verifier of RFC 5802, as Kafka's ScramCredentialUtils writes it. The password cannot
be computed from it. PLAIN uses the same verifier. A right names one resource, or with a final ``*`` all resources whose
names have this prefix.

The server checks the file once a second, and reads it if it has changed. An invalid file is rejected at the start. A
running server keeps the previous contents, and logs an error.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import enum
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, final

from shmaccum.common.file_stamp import FileContents
from shmaccum.common.secret_files import read_secret
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files.small_files import replace_file_synced

ITERATIONS = 8192
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 1_000_000
"""RFC 7677 requires at least 4,096. Each login costs the server this many hash rounds, so they are limited."""
SALT_SIZE = 16
SALT_SIZE_MAX = 1024
DECOY_KEY_SIZE = 32
NAME = re.compile(r"[^\s,=*:]{1,128}")
KINDS = ("topic", "group", "transactional-id")
PATTERN = re.compile(rf"({'|'.join(KINDS)}):(\S{{0,249}})")
DECISIONS_MAX = 10_000
"""The most cached decisions per user, because clients choose the names."""
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash of each mechanism."""


class Right(enum.Enum):
    """A kind of access. Each right also lets the principal see that the resource exists."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class Grant(NamedTuple):
    """One right of a principal."""

    right: Right
    kind: str
    """One of `KINDS`."""
    pattern: str
    """A name, or a prefix of names followed by ``*``."""

    def __str__(self) -> str:
        return f"{self.right.value} {self.kind}:{self.pattern}"

    def covers(self, name: str) -> bool:
        """Returns whether the pattern matches the name."""
        return name.startswith(self.pattern[:-1]) if self.pattern.endswith("*") else name == self.pattern


def parse_grant(right: str, resource: str) -> Grant:
    """Parse a right as written in the file: ``read topic:flights*``.

    Raises:
        InvalidArgumentError: the text is not a right.
    """
    known = {each.value: each for each in Right}
    found = PATTERN.fullmatch(resource)
    if right not in known or found is None or not found[2] or "*" in found[2][:-1]:
        raise InvalidArgumentError(
            f"'{right} {resource}' is not a right: write read, write or admin, and topic:NAME, group:NAME or "
            "transactional-id:NAME, or the same with PREFIX* in place of a name"
        )
    if found[1] == "group" and known[right] is Right.WRITE:
        raise InvalidArgumentError(f"'{right} {resource}' is not a right: write read or admin for a group")
    return Grant(known[right], found[1], found[2])


# --- verifiers


class Verifier(NamedTuple):
    """The server's form of a password (RFC 5802), with which it can be checked but not used to log in elsewhere."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, password: str, mechanism: str, *, salt: bytes = b"", iterations: int = ITERATIONS) -> Verifier:
        """Returns the verifier of a password, with a random salt by default."""
        salt = salt or secrets.token_bytes(SALT_SIZE)
        salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", HASHES[mechanism])
        stored_key = hashlib.new(HASHES[mechanism], client_key).digest()
        return cls(salt, iterations, stored_key, hmac.digest(salted, b"Server Key", HASHES[mechanism]))

    def matches(self, password: str, mechanism: str) -> bool:
        """Returns whether the password is right, in constant time."""
        offered = Verifier.of(password, mechanism, salt=self.salt, iterations=self.iterations)
        return hmac.compare_digest(offered.stored_key, self.stored_key)

    def __str__(self) -> str:
        salt, stored, server = (base64.b64encode(each).decode() for each in (self.salt, *self[2:]))
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"


def parse_verifier(text: str, mechanism: str) -> Verifier:
    """Parse a verifier as written in the file.

    Raises:
        InvalidArgumentError: the text is not a verifier.
    """
    pairs = dict(pair.partition("=")[::2] for pair in text.split(","))
    try:
        keys = ("salt", "stored_key", "server_key")
        salt, stored, server = (base64.b64decode(pairs[key], validate=True) for key in keys)
        iterations = int(pairs["iterations"])
    except (KeyError, ValueError, binascii.Error):
        raise InvalidArgumentError("a login needs salt, stored_key, server_key and iterations") from None
    size = hashlib.new(HASHES[mechanism]).digest_size
    if len(stored) != size or len(server) != size or not 0 < len(salt) <= SALT_SIZE_MAX:
        raise InvalidArgumentError(f"a key of {mechanism} has {size} bytes, and a salt 1 to {SALT_SIZE_MAX}")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise InvalidArgumentError(f"iterations is {iterations}, but must be {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    return Verifier(salt, iterations, stored, server)


# --- users


@final
@dataclass(frozen=True)
class User:
    """A principal: verifiers by mechanism, and rights in the order of the file."""

    name: str
    verifiers: Mapping[str, Verifier] = field(default_factory=dict)
    grants: tuple[Grant, ...] = ()
    _decisions: dict[tuple[Right, str, str], bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    def may(self, right: Right, kind: str, name: str) -> bool:
        """Returns whether the user has this right on the resource. Decisions are cached, since each fetch needs one."""
        asked = right, kind, name
        decision = self._decisions.get(asked)
        if decision is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            covering = (each for each in self.grants if each.right is right and each.kind == kind)
            decision = self._decisions[asked] = any(each.covers(name) for each in covering)
        return decision

    def sees(self, kind: str, name: str) -> bool:
        """Returns whether the user has any right on the resource."""
        return any(each.kind == kind and each.covers(name) for each in self.grants)

    def has_login_of(self, other: User) -> bool:
        """Returns whether name and passwords are equal."""
        return self.name == other.name and self.verifiers == other.verifiers

    def has(self, right: Right, kind: str) -> bool:
        """Returns whether the user has this right on any resource of the kind."""
        return any(each.right is right and each.kind == kind for each in self.grants)

    @property
    def is_administrator(self) -> bool:
        """Whether the user administers every topic, and therefore the server."""
        return Grant(Right.ADMIN, "topic", "*") in self.grants


ANONYMOUS = User("ANONYMOUS", grants=tuple(Grant(right, kind, "*") for right in Right for kind in KINDS))
"""The principal of a server without a users file, with all rights."""
NOT_LOGGED_IN = User("NOBODY")
"""The principal of a client that has not logged in, without rights."""


def check_name(name: str) -> str:
    """Return the name if it is valid for a user.

    Raises:
        InvalidArgumentError: the name is not valid.
    """
    if not NAME.fullmatch(name) or not name.isprintable() or name.startswith("#"):
        raise InvalidArgumentError(
            f"{name!r} is not a valid user name: use 1 to 128 characters except blanks and , = * :"
        )
    return name


class Users(dict[str, User]):
    """The users of a file, by name.

    Attributes:
        decoy_key: the secret from which decoys are derived; empty in a new file.
    """

    decoy_key = b""


def parse_users(text: str) -> Users:
    """Parse the users of a file. If it has no key of the decoys, the first login determines the key.

    Raises:
        InvalidArgumentError: a line is invalid; the message has its number.
    """
    users = Users()
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            if words[0] == "decoys":
                users.decoy_key = _parse_decoy_key(words[1:])
            else:
                user = _with_line(users, words)
                users[user.name] = user
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"line {number}: {error}") from None
    if not users.decoy_key:
        logins = (verifier for user in users.values() for verifier in user.verifiers.values())
        users.decoy_key = next((hmac.digest(login.server_key, b"decoys", "sha256") for login in logins), b"")
    return users


def _parse_decoy_key(words: list[str]) -> bytes:
    try:
        key = base64.b64decode("".join(words), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != DECOY_KEY_SIZE:
        raise InvalidArgumentError(f"the key of the decoys has {DECOY_KEY_SIZE} bytes in base64: delete this line")
    return key


def _with_line(users: Mapping[str, User], words: list[str]) -> User:
    """Return the user of a line, with the addition of the line."""
    if len(words) != 4 or words[0] not in {"user", "allow"}:
        raise InvalidArgumentError("write 'user NAME MECHANISM VERIFIER' or 'allow NAME RIGHT KIND:PATTERN'")
    keyword, name, first, second = words
    if keyword == "allow":
        if name not in users:
            raise InvalidArgumentError(f"there is no user {name} above this line: add one with `shmaccum users add`")
        user = users[name]
        return User(name, user.verifiers, (*user.grants, parse_grant(first, second)))
    user = users.get(name) or User(check_name(name))
    if first not in HASHES or first in user.verifiers:
        raise InvalidArgumentError(f"{first} is given twice, or is not one of {', '.join(HASHES)}")
    return User(name, {**user.verifiers, first: parse_verifier(second, first)}, user.grants)


def format_users(users: Users) -> str:
    """Return the text of a users file. A new file gets a random key of the decoys."""
    key = users.decoy_key or secrets.token_bytes(DECOY_KEY_SIZE)
    lines = ["# Users of `shmaccum serve`: logins and rights. To change them, see `shmaccum users --help`."]
    lines.append(f"decoys {base64.b64encode(key).decode()}")
    for user in users.values():
        lines += [f"user {user.name} {mechanism} {verifier}" for mechanism, verifier in user.verifiers.items()]
        lines += [f"allow {user.name} {grant}" for grant in user.grants]
    return "".join(line + "\n" for line in lines)


def read_users(path: str) -> Users:
    """Read the users of a file, which only its owner may read.

    Raises:
        InvalidArgumentError: the file is missing, readable by others, too large or invalid.
    """
    text = read_secret(path, "users file")
    try:
        return parse_users(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"the users file {path}, {error}") from None


@contextlib.contextmanager
def changed_users(path: str) -> Iterator[Users]:
    """Yield the users of a file to change. The file is replaced atomically at the end, and created if missing.

    Another process that changes the file waits. Owner, group and mode are preserved. A new file is private.

    Raises:
        InvalidArgumentError: the file is invalid.
        OSError: the file cannot be written; the previous contents remain.
    """
    path = os.path.abspath(path)
    with _locked(os.path.dirname(path)):
        former = os.stat(path) if os.path.exists(path) else None
        users = read_users(path) if former is not None else Users()
        yield users
        umask = os.umask(0o077)
        try:
            replace_file_synced(path, format_users(users).encode())
        finally:
            os.umask(umask)
        if former is not None:
            os.chown(path, former.st_uid, former.st_gid)
            os.chmod(path, stat.S_IMODE(former.st_mode))


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Lock out other processes that change a users file, by a flock on its folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@final
class UsersFile:
    """The users of a server, from the present contents of the file.

    Raises:
        InvalidArgumentError: the file is invalid.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._users = FileContents([path], lambda: read_users(path))

    def refresh(self) -> bool:
        """Reads the file again if it has changed, and returns whether it had.

        Raises:
            InvalidArgumentError: the new file is invalid; the previous users stay in effect.
        """
        return self._users.refresh()

    def get(self, name: str) -> User | None:
        """Returns the user of this name, or None."""
        return self._users.value.get(name)

    def verifier(self, name: str, mechanism: str) -> Verifier:
        """Returns the verifier of a user.

        For an unknown name, returns a decoy that no password matches. The decoy is the same each time and looks like
        any other verifier. So if all logins have the same number of iterations, neither responses nor timing reveal
        which users exist. The decoy is derived from a key in the file, so neither a restart of the server nor a change
        of a login changes it.
        """
        salt = hmac.digest(self._users.value.decoy_key, f"decoy {mechanism} {name}".encode(), "sha256")[:SALT_SIZE]
        size = hashlib.new(HASHES[mechanism]).digest_size
        decoy = Verifier(salt, self._usual_iterations(mechanism), secrets.token_bytes(size), secrets.token_bytes(size))
        user = self._users.value.get(name)
        return decoy if user is None else user.verifiers.get(mechanism, decoy)

    def _usual_iterations(self, mechanism: str) -> int:
        known = (user.verifiers.get(mechanism) for user in self._users.value.values())
        return next((verifier.iterations for verifier in known if verifier is not None), ITERATIONS)
