# SPDX-License-Identifier: Apache-2.0
"""All readers of secret files reject a file that another user owns, reads or changes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from shmaccum.common.secret_files import read_secret
from shmaccum.config import ServerOptions
from shmaccum.config.secret import Secret
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.server.client_settings import read_client_settings
from shmaccum.log.server.tls_files import tls_files
from shmaccum.log.server.users import User, UsersFile, Verifier, changed_users
from shmaccum.sender.sinks.kafka.library.login import tls_context
from tests.support.processes import Child

USER, GROUP, OTHER_GROUP = 23481, 23482, 23483
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which may become another user")
TLS = dict.fromkeys(("ssl_cafile", "ssl_keyfile", "ssl_crlfile", "ssl_password")) | {
    "security_protocol": "SSL",
    "ssl_check_hostname": True,
}


def pem(path: Path) -> Path:
    """A certificate with its key, in one file."""
    trustme.CA(key_type=trustme.KeyType.ECDSA).issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(
        path
    )
    return path


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


PROPERTIES = """security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.jaas.config=PlainLoginModule required username="a" password="b";
"""
JAVA_PEM = "security.protocol=SSL\nssl.keystore.type=PEM\nssl.keystore.location="


def read_keystore(path: Path) -> object:
    properties = written(path.with_suffix(".properties"), f"{JAVA_PEM}{path}\n")
    return read_client_settings(str(properties))


READERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "secret": (lambda path: written(path, "geheim\n"), lambda path: Secret(f"file:{path}").reveal()),
    "sink's key": (pem, lambda path: tls_context({**TLS, "ssl_certfile": str(path), "ssl_keyfile": str(path)})),
    "sink's certificate with its key": (pem, lambda path: tls_context({**TLS, "ssl_certfile": str(path)})),
    "users": (lambda path: written(path, ""), lambda path: UsersFile(str(path))),
    "client properties": (lambda path: written(path, PROPERTIES), lambda path: read_client_settings(str(path))),
    "client's key": (pem, read_keystore),
    "server's key": (
        pem,
        lambda path: tls_files(ServerOptions(ssl_certfile=str(path), ssl_keyfile=str(path))),
    ),
    "server's certificate with its key": (pem, lambda path: tls_files(ServerOptions(ssl_certfile=str(path)))),
}


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Callable[[Path], object]]:
    make, read = READERS[request.param]
    path = make(tmp_path / "secret")
    path.chmod(0o600)
    return path, read


@pytest.mark.parametrize("mode", [0o640, 0o660, 0o644, 0o602, 0o610, 0o4640])
def test_a_file_that_others_can_read_or_change_is_refused(reader: Any, mode: int) -> None:
    path, read = reader
    read(path)
    path.chmod(mode)
    with pytest.raises(InvalidArgumentError, match=rf"has mode {mode:04o}.*chmod 0600 {path}"):
        read(path)


@pytest.mark.parametrize(
    ("reader", "option"),
    [
        ("sink's key", "ssl_password"),
        ("sink's certificate with its key", "ssl_password"),
        ("server's key", "ssl_password"),
        ("client's key", "ssl.key.password"),
    ],
    indirect=["reader"],
)
def test_an_encrypted_key_needs_the_option_of_its_password(
    reader: Any, option: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """OpenSSL would prompt at the terminal, which a service does not have."""
    path, read = reader
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"geheim")
    pem_key = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    certificate = path.read_bytes().partition(b"-----BEGIN CERTIFICATE")
    path.write_bytes(pem_key + certificate[1] + certificate[2])
    with pytest.raises(InvalidArgumentError, match=f"private key {path} is encrypted: set {option} to its password"):
        read(path)
    assert capfd.readouterr() == ("", "")


@as_root
def test_a_file_of_another_user_is_refused(reader: Any) -> None:
    path, read = reader
    os.chown(path, USER, 0)
    with pytest.raises(InvalidArgumentError, match=f"belongs to user {USER}"):
        read(path)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o700])
def test_a_symbolic_link_to_a_file_of_ones_own_is_followed(reader: Any, mode: int, tmp_path: Path) -> None:
    path, read = reader
    path.chmod(mode)
    (tmp_path / "link").symlink_to(path)
    read(tmp_path / "link")


@as_root
@pytest.mark.parametrize(
    ("user", "groups", "mode", "is_accepted"),
    [
        (USER, (GROUP,), 0o440, True),
        (USER, (1, GROUP), 0o640, True),
        (USER, (GROUP,), 0o460, False),
        (USER, (GROUP,), 0o444, False),
        (0, (0, GROUP), 0o440, True),
        (0, (0, OTHER_GROUP), 0o440, False),
    ],
)
def test_root_hands_a_file_on_by_its_group(
    tmp_path: Path, user: int, groups: tuple[int, ...], mode: int, is_accepted: bool
) -> None:
    """Kubernetes writes a secret with fsGroup like this: root owns the file, and a link leads to it."""
    path = written(tmp_path / "secret", "geheim")
    os.chown(path, 0, GROUP)
    path.chmod(mode)
    folder = os.open(tmp_path, os.O_RDONLY)  # another user may lack access to the parent folders

    def read() -> str:
        os.fchdir(folder)
        os.setgroups(list(groups))
        os.setgid(groups[0])
        os.setuid(user)
        try:
            return read_secret("secret", "file with a secret")
        except InvalidArgumentError:
            return "refused"

    tmp_path.chmod(0o755)
    assert Child(read).join() == repr("geheim" if is_accepted else "refused")
    os.close(folder)


def test_a_pipe_of_the_shell_is_read_and_a_fifo_without_a_writer_stops_no_other(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"geheim\n")
    os.close(writer)
    assert Secret(f"file:/dev/fd/{reader}").reveal() == "geheim"
    os.close(reader)
    os.mkfifo(tmp_path / "fifo", 0o600)
    assert Secret(f"file:{tmp_path / 'fifo'}").reveal() == ""
    with pytest.raises(InvalidArgumentError, match="is not a regular file"):
        Secret(f"file:{tmp_path}").reveal()
    with pytest.raises(InvalidArgumentError, match="cannot be opened"):
        Secret(f"file:{tmp_path / 'missing'}").reveal()


def test_a_decoy_is_the_same_after_a_restart_and_cannot_be_computed(tmp_path: Path) -> None:
    """A salt that changes at a restart would reveal that the name belongs to no user."""
    path = tmp_path / "users"
    verifier = Verifier.of("p", "SCRAM-SHA-256")
    path.touch(mode=0o600)
    path.write_text(f"user ada SCRAM-SHA-256 {verifier}\n")
    first, second = UsersFile(str(path)), UsersFile(str(path))
    decoys = {first.verifier("bob", "SCRAM-SHA-256").salt, second.verifier("bob", "SCRAM-SHA-256").salt}
    assert len(decoys) == 1
    assert decoys != {first.verifier("eve", "SCRAM-SHA-256").salt}
    shutil.copy(path, tmp_path / "other")
    (tmp_path / "other").write_text(f"user ada SCRAM-SHA-256 {Verifier.of('p', 'SCRAM-SHA-256')}\n")
    assert decoys != {UsersFile(str(tmp_path / "other")).verifier("bob", "SCRAM-SHA-256").salt}


@pytest.mark.parametrize("has_key", [True, False])
def test_a_decoy_is_the_same_after_the_first_login_has_changed(tmp_path: Path, has_key: bool) -> None:
    """A salt that changes with the login of another user would reveal that the name belongs to no user."""
    path = tmp_path / "users"
    with changed_users(str(path)) as users:
        users["ada"] = User("ada", {"SCRAM-SHA-256": Verifier.of("p", "SCRAM-SHA-256")})
    if not has_key:
        path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("decoys")))
    before = UsersFile(str(path)).verifier("bob", "SCRAM-SHA-256").salt
    with changed_users(str(path)) as users:
        users["bea"] = User("bea", users.pop("ada").verifiers)
        users["ada"] = User("ada", {"SCRAM-SHA-256": Verifier.of("q", "SCRAM-SHA-256")})
    with changed_users(str(path)) as users:
        del users["bea"]
    assert UsersFile(str(path)).verifier("bob", "SCRAM-SHA-256").salt == before
