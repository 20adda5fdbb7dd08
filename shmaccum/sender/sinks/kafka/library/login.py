# SPDX-License-Identifier: Apache-2.0
"""TLS contexts and logins for the library, and limits on what it logs about them."""

from __future__ import annotations

import contextlib
import importlib
import logging
import ssl
from collections.abc import Mapping
from typing import Any

from kafka.net.transport import KafkaSSLTransport

from shmaccum.common.file_stamp import FileContents
from shmaccum.common.secret_files import opened_secret
from shmaccum.exceptions import InvalidArgumentError, PackageMissingError

LOGIN_PACKAGES: Mapping[str, str] = {"GSSAPI": "gssapi", "AWS_MSK_IAM": "botocore"}


TLS_FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")


def tls_files(config: Mapping[str, Any]) -> FileContents[ssl.SSLContext] | None:
    """Return the context of new connections; None without TLS. Connections that exist keep their certificates.

    Args:
        config: options of kafka-python. The password of the key is a `Secret`, which is read again with the files.

    Raises:
        InvalidArgumentError: the files cannot be used.
    """
    if config["security_protocol"] not in {"SSL", "SASL_SSL"}:
        return None
    return FileContents([config[name] for name in TLS_FILES], lambda: tls_context(config))


def tls_context(config: Mapping[str, Any]) -> ssl.SSLContext:
    """Create a context.

    Raises:
        InvalidArgumentError: a file or the password cannot be read, or they do not match.
    """
    password = config["ssl_password"]
    try:
        with contextlib.ExitStack() as stack:
            opened = {"ssl_context": None, **_opened_key(config, stack)}
            opened["ssl_password"] = None if password is None else password.reveal()
            context: ssl.SSLContext = KafkaSSLTransport._build_ssl_context({**config, **opened})  # noqa: SLF001
    except OSError as error:
        files = [name for name in TLS_FILES if config[name]]
        raise InvalidArgumentError(f"TLS cannot be set up: {error}: check {', '.join(files)}") from None
    return context


def _opened_key(config: Mapping[str, Any], stack: contextlib.ExitStack) -> dict[str, str]:
    """Return the path of the opened and checked file with the private key, as a descriptor."""
    name = "ssl_keyfile" if config["ssl_keyfile"] else "ssl_certfile"
    if not config["ssl_certfile"]:
        return {}
    return {name: f"/proc/self/fd/{stack.enter_context(opened_secret(config[name], 'private key'))}"}


def check_login(config: Mapping[str, Any]) -> None:
    """Raise if a package for the login is missing."""
    mechanism = config["sasl_mechanism"]
    package = LOGIN_PACKAGES.get(mechanism or "")
    try:
        if package is not None:
            importlib.import_module(package)
    except (ImportError, OSError) as error:
        raise PackageMissingError(
            f"sasl_mechanism={mechanism} needs the package {package}: pip install {package} ({error})"
        ) from None


def quiet_library(*, has_login: bool) -> None:
    """Silence the library's logger, unless a user has set its level. This sink reports failures itself.

    At its lowest level, the library logs requests unchanged, including logins. With a login, this level is disabled.
    """
    if logging.getLogger("kafka").level == logging.NOTSET:
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
    if has_login:
        for name in ("kafka.net.connection", "kafka.protocol.parser", "kafka.net.sasl"):
            library = logging.getLogger(name)
            library.setLevel(max(logging.INFO, library.getEffectiveLevel()))
