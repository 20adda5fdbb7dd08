# SPDX-License-Identifier: Apache-2.0
"""Files of secrets: passwords, private keys, users of a server, properties with a login.

**A file of secrets belongs to the user of the process or to root, and no other user may read or change it.** So its
mode is 0600 or less. Root may share a file with a process of another user by the file's group or by a file ACL, as
Kubernetes does with ``fsGroup`` and systemd with ``LoadCredential=``, and with a process of root by a group other than
root's own. The checked descriptor is also the one that is read. A symbolic link is followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shmaccum.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    import ssl

ROOT = 0
SIZE_MAX = 4 << 20


@contextlib.contextmanager
def opened_secret(path: str, purpose: str) -> Iterator[int]:
    """Yields a descriptor of a file of secrets.

    Args:
        path: the path of the file.
        purpose: a description of the file, for messages.

    Raises:
        InvalidArgumentError: the file cannot be opened, belongs to another user, or is open to other users.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidArgumentError(f"the {purpose} {path} cannot be opened: {reason}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISFIFO(found.st_mode):
            raise InvalidArgumentError(f"the {purpose} {path} is not a regular file")
        os.set_blocking(descriptor, True)  # a pipe, such as a shell's <(command), has a writer
        _check(path, purpose, found)
        yield descriptor
    finally:
        os.close(descriptor)


def read_secret(path: str, purpose: str) -> str:
    """Returns the content of a file of secrets, at most `SIZE_MAX` bytes.

    Raises:
        InvalidArgumentError: as `opened_secret`; or the file cannot be read, is too large, or is not UTF-8.
    """
    with opened_secret(path, purpose) as descriptor:
        try:
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(SIZE_MAX + 1)
            text = content.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"the {purpose} {path} cannot be read: {error}") from None
    if len(content) > SIZE_MAX:
        raise InvalidArgumentError(f"the {purpose} {path} is larger than {SIZE_MAX} bytes")
    return text


def load_certificate(
    context: ssl.SSLContext,
    certificate_path: str,
    key_path: str | None,
    password: str | None,
    *,
    password_option: str = "ssl_password",
) -> None:
    """Loads a certificate and its private key into a context.

    Args:
        certificate_path: a PEM file, which also has the key if `key_path` is None.
        password: of the key, or None.
        password_option: the name of the password's option, for messages.

    Raises:
        InvalidArgumentError: as `opened_secret`; or the key is encrypted, and there is no password.
        OSError: a file cannot be used, the two do not match, or the password is wrong.
    """
    key_file = key_path or certificate_path

    def password_of_key() -> str:
        """The password. OpenSSL calls this if the key is encrypted; otherwise it would prompt at the terminal."""
        if password is None:
            raise InvalidArgumentError(
                f"the private key {key_file} is encrypted: set {password_option} to its password"
            )
        return password

    with opened_secret(key_file, "private key") as descriptor:
        key = f"/proc/self/fd/{descriptor}"
        context.load_cert_chain(certificate_path if key_path else key, key, password_of_key)


def _check(path: str, purpose: str, found: os.stat_result) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in {os.geteuid(), ROOT}:
        raise InvalidArgumentError(
            f"the {purpose} {path} belongs to user {found.st_uid}, who can read and change it, and this process is "
            f"user {os.geteuid()}: run the process as that user, or give the file to this one (chown)"
        )
    is_handed_on = found.st_uid == ROOT and (os.geteuid() != ROOT or found.st_gid in {*os.getgroups()} - {ROOT})
    allowed = 0o700 | (stat.S_IRGRP if is_handed_on else 0)
    if mode & 0o777 & ~allowed:
        raise InvalidArgumentError(
            f"the {purpose} {path} has mode {mode:04o}, so other users can read or change it: run chmod 0600 {path}"
        )
