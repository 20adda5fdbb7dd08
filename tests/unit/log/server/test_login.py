# SPDX-License-Identifier: Apache-2.0
"""Users files, verifiers and the steps of a login, without sockets."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum.common import clock
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.login import Login, LoginError
from shmaccum.log.server.login_requests import LoginRequests
from shmaccum.log.server.transport import TlsTransport
from shmaccum.log.server.users import (
    Grant,
    Right,
    User,
    Users,
    UsersFile,
    Verifier,
    changed_users,
    format_users,
    parse_grant,
    parse_users,
    read_users,
)

PASSWORD = "pencil"
ITERATIONS = 4096
RFC_7677 = Verifier.of(
    PASSWORD, "SCRAM-SHA-256", salt=base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), iterations=ITERATIONS
)


def make_user(name: str = "user", *grants: Grant) -> User:
    verifiers = {
        each: Verifier.of(PASSWORD, each, iterations=ITERATIONS) for each in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    }
    return User(name, verifiers, grants)


@pytest.fixture
def path(tmp_path: Path) -> str:
    with changed_users(str(tmp_path / "users")) as users:
        users["user"] = make_user()
    return str(tmp_path / "users")


def proof(verifier: Verifier, mechanism: str, password: str, signed: str) -> str:
    """Return the proof of a client with this password (RFC 5802, section 3)."""
    name = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), verifier.salt, verifier.iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, client_key).digest(), signed.encode(), name)
    return base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()


def step(login: Login, token: bytes) -> bytes:
    """Return the answer to a token, including its hash."""
    found = login.step(token)
    return found if isinstance(found, bytes) else login.conclude(found())


def scram(login: Login, mechanism: str, name: str, password: str, *, more: bytes = b"") -> bytes:
    """Run a whole exchange, with more bytes after the proof, and return the last answer."""
    assert login.begin(mechanism) is BrokerError.NONE
    first = f"n={name},r=nonce"
    challenge = step(login, f"n,,{first}".encode()).decode()
    fields = dict(pair.split("=", 1) for pair in challenge.split(","))
    verifier = Verifier(base64.b64decode(fields["s"]), int(fields["i"]), b"", b"")
    bare = f"c=biws,r={fields['r']}"
    signed = f"{first},{challenge},{bare}"
    proved = base64.b64decode(proof(verifier, mechanism, password, signed)) + more
    return step(login, f"{bare},p={base64.b64encode(proved).decode()}".encode())


def test_a_verifier_is_that_of_rfc_7677() -> None:
    signed = (
        "n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        "s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    signature = base64.b64encode(hmac.digest(RFC_7677.server_key, signed.encode(), "sha256"))
    assert signature == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert proof(RFC_7677, "SCRAM-SHA-256", PASSWORD, signed) == "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_right_password_logs_in_by_scram(path: str, mechanism: str) -> None:
    login = Login(UsersFile(path))
    assert scram(login, mechanism, "user", PASSWORD).startswith(b"v=")
    assert login.is_over
    assert login.user is not None
    assert login.user.name == "user"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(("name", "password"), [("user", "Pencil"), ("nobody", PASSWORD), ("a=2C=3Db", PASSWORD)])
def test_a_wrong_name_fails_as_a_wrong_password_does(path: str, mechanism: str, name: str, password: str) -> None:
    login = Login(UsersFile(path))
    with pytest.raises(LoginError, match="wrong user name or password"):
        scram(login, mechanism, name, password)
    assert login.user is None


def test_bytes_after_the_right_proof_are_refused(path: str) -> None:
    login = Login(UsersFile(path))
    with pytest.raises(LoginError, match="a token is invalid"):
        scram(login, "SCRAM-SHA-256", "user", PASSWORD, more=b"x")
    assert login.user is None


def test_a_name_that_is_no_users_has_the_same_salt_each_time(path: str) -> None:
    users = UsersFile(path)
    first, again = (users.verifier("nobody", "SCRAM-SHA-256") for _ in range(2))
    assert (first.salt, first.iterations) == (again.salt, again.iterations)
    known = users.verifier("user", "SCRAM-SHA-256")
    assert (len(known.salt), known.iterations) == (len(first.salt), first.iterations)


@pytest.mark.parametrize("token", [b"\0user\0pencil", b"user\0user\0pencil"])
def test_the_right_password_logs_in_by_plain(path: str, token: bytes) -> None:
    login = Login(UsersFile(path))
    login.begin("PLAIN")
    assert step(login, token) == b""
    assert login.user is not None


@pytest.mark.parametrize(
    "token", [b"\0user\0wrong", b"\0nobody\0pencil", b"other\0user\0pencil", b"", b"\xff", b"a\0b\0c\0d"]
)
def test_plain_refuses_everything_else(path: str, token: bytes) -> None:
    login = Login(UsersFile(path))
    login.begin("PLAIN")
    with pytest.raises(LoginError):
        step(login, token)
    assert login.user is None


PAIR_COUNT = 31
MOST_OF_ONE_SIDE = 25
"""If 31 pairs differ only by chance, more than 25 are on one side once in 5,000 runs."""


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_name_costs_the_time_of_a_wrong_password(path: str, mechanism: str) -> None:
    users = UsersFile(path)

    def cost_s(name: str) -> float:
        login = Login(users)
        login.begin(mechanism)
        started_s = time.thread_time()
        token = f"\0{name}\0wrong"
        if mechanism != "PLAIN":
            challenge = step(login, f"n,,n={name},r=nonce".encode()).decode()
            token = f"c=biws,{challenge.split(',')[0]},p={'A' * 43}="
        with pytest.raises(LoginError):
            step(login, token.encode())
        return time.thread_time() - started_s

    pairs = [(cost_s("stranger"), cost_s("user")) for _ in range(PAIR_COUNT)]
    slower = sum(stranger_s > 1.05 * user_s for stranger_s, user_s in pairs)
    faster = sum(user_s > 1.05 * stranger_s for stranger_s, user_s in pairs)
    assert max(slower, faster) <= MOST_OF_ONE_SIDE, pairs


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"n,,",
        b"n,,n=user",
        b"p=tls-unique,,n=user,r=x",
        b"n,a=other,n=user,r=x",
        b"n,,m=1,n=user,r=x",
        b"n,,n=user,r=",
        b"\xff",
    ],
)
def test_scram_refuses_a_first_message_that_is_none(path: str, token: bytes) -> None:
    login = Login(UsersFile(path))
    login.begin("SCRAM-SHA-256")
    with pytest.raises(LoginError):
        step(login, token)


@pytest.mark.parametrize(
    "last", ["", "c=biws,r=nonce,p=AAAA", "c=biws,r={r},p=", "c=eSws,r={r},p=AAAA", "c=biws,r={r},p=!"]
)
def test_scram_refuses_a_last_message_that_is_none(path: str, last: str) -> None:
    login = Login(UsersFile(path))
    login.begin("SCRAM-SHA-256")
    challenge = step(login, b"n,,n=user,r=nonce").decode()
    with pytest.raises(LoginError):
        step(login, last.replace("{r}", challenge.split(",")[0][2:]).encode())


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("header", ["y,,", "n,a=user,", "n,,x", "", "p=tls-unique,,"])
def test_scram_holds_the_last_message_to_the_header_of_the_first(path: str, mechanism: str, header: str) -> None:
    """Reject a right proof if ``c=`` is not the header that was sent (RFC 5802, section 5.1)."""
    login = Login(UsersFile(path))
    login.begin(mechanism)
    challenge = step(login, b"n,,n=user,r=nonce").decode()
    fields = dict(pair.split("=", 1) for pair in challenge.split(","))
    bare = f"c={base64.b64encode(header.encode()).decode()},r={fields['r']}"
    verifier = Verifier(base64.b64decode(fields["s"]), int(fields["i"]), b"", b"")
    proved = proof(verifier, mechanism, PASSWORD, f"n=user,r=nonce,{challenge},{bare}")
    with pytest.raises(LoginError, match="wrong user name or password"):
        step(login, f"{bare},p={proved}".encode())
    assert not login.is_over


def test_a_login_happens_once_and_by_a_known_mechanism(path: str) -> None:
    login = Login(UsersFile(path))
    assert login.begin("GSSAPI") is BrokerError.UNSUPPORTED_SASL_MECHANISM
    with pytest.raises(LoginError):
        step(login, b"\0user\0pencil")
    login.begin("PLAIN")
    assert login.begin("PLAIN") is BrokerError.ILLEGAL_SASL_STATE
    step(login, b"\0user\0pencil")
    with pytest.raises(LoginError):
        step(login, b"\0user\0pencil")


# --- the file


def test_a_user_who_is_removed_or_has_a_new_password_is_logged_in_no_longer(path: str) -> None:
    users = UsersFile(path)
    login = Login(users)
    login.begin("PLAIN")
    step(login, b"\0user\0pencil")
    with changed_users(path) as changed:
        changed["user"] = User("user", changed["user"].verifiers, (parse_grant("read", "topic:a*"),))
    assert users.refresh()
    former = login.user
    assert former is not None
    assert former.may(Right.READ, "topic", "abc")
    with changed_users(path) as changed:
        changed["user"] = make_user()
    assert users.refresh()
    assert login.user is None
    assert not users.refresh()


def test_a_changed_file_that_makes_no_sense_leaves_the_former_users(path: str) -> None:
    users = UsersFile(path)
    Path(path).write_text("nonsense\n")
    with pytest.raises(InvalidArgumentError, match="line 1"):
        users.refresh()
    assert users.get("user") is not None


def test_what_is_written_is_read(path: str) -> None:
    user = make_user("alice", parse_grant("read", "topic:flights*"), parse_grant("admin", "group:*"))
    users = Users(alice=user)
    users.decoy_key = bytes(range(32))
    found = parse_users(format_users(users))
    assert found == {"alice": user}
    assert found.decoy_key == users.decoy_key


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("user alice", "write 'user NAME"),
        ("grant alice read topic:x", "write 'user NAME"),
        ("allow alice read topic:x", "there is no user alice above"),
        (f"user a:b SCRAM-SHA-256 {RFC_7677}", "is not a valid user name"),
        (f"user alice SCRAM-MD5 {RFC_7677}", "not one of SCRAM-SHA-256"),
        (f"user alice SCRAM-SHA-512 {RFC_7677}", "a key of SCRAM-SHA-512 has 64 bytes"),
        ("user alice SCRAM-SHA-256 salt=AA==", "needs salt, stored_key"),
        (f"user alice SCRAM-SHA-256 {RFC_7677._replace(iterations=10**9)}", "but must be 4096 to"),
        (f"user alice SCRAM-SHA-256 {RFC_7677}\nallow alice fly topic:x", "line 2: 'fly topic:x' is not a right"),
        (f"user alice SCRAM-SHA-256 {RFC_7677}\nallow alice read topic:a*b", "is not a right"),
        (f"user alice SCRAM-SHA-256 {RFC_7677}\nallow alice read topic:", "is not a right"),
        (f"user alice SCRAM-SHA-256 {RFC_7677}\nallow alice write group:x", "is not a right"),
        ("decoys QUJD", "line 1: the key of the decoys has 32 bytes"),
        ("decoys", "line 1: the key of the decoys has 32 bytes"),
        ("decoys !", "line 1: the key of the decoys has 32 bytes"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(line: str, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        parse_users(line)


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o602])
def test_a_file_that_others_can_read_or_change_is_refused(path: str, mode: int) -> None:
    os.chmod(path, mode)
    with pytest.raises(InvalidArgumentError, match=f"chmod 0600 {path}"):
        read_users(path)


def test_a_file_keeps_its_mode_and_a_new_one_is_its_owners_alone(path: str) -> None:
    assert os.stat(path).st_mode & 0o777 == 0o600
    os.chmod(path, 0o400)
    with changed_users(path) as users:
        users["other"] = make_user("other")
    assert os.stat(path).st_mode & 0o777 == 0o400


def test_changes_at_the_same_time_are_all_kept(path: str) -> None:
    user = make_user()

    def add(number: int) -> None:
        with changed_users(path) as users:
            users[f"user-{number}"] = User(f"user-{number}", user.verifiers)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_users(path)) == 9


def test_a_failed_login_is_answered_when_its_delay_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    answered: list[float] = []
    requests = LoginRequests(lambda: None)
    for deadline_s in (10.0, 11.0):
        call: Any = SimpleNamespace(complete=lambda _refusal, deadline_s=deadline_s: answered.append(deadline_s))
        requests._refused.append((deadline_s, call, {}))
    found = []
    for now_s in (9.9, 10.0, 10.9, 11.0):
        monkeypatch.setattr(clock, "monotonic", lambda now_s=now_s: now_s)
        requests.tick()
        found.append(len(answered))
    monkeypatch.undo()
    requests.close()
    assert found == [0, 1, 1, 2]


def test_a_tls_connection_waits_for_its_client_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    context: Any = SimpleNamespace(wrap_socket=lambda accepted, **_options: accepted)
    with ours, theirs:
        transport = TlsTransport(ours, context)
        assert (transport.is_open, transport.wants_to_write) == (False, False)
