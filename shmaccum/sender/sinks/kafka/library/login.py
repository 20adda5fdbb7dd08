# SPDX-License-Identifier: Apache-2.0
"""TLS contexts and logins for the library, and limits on what it logs about them."""

from __future__ import annotations

import importlib
import logging
import ssl
from collections.abc import Mapping
from typing import Any

from shmaccum.common.file_stamp import FileContents
from shmaccum.common.secret_files import load_certificate
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
    password = None if config["ssl_password"] is None else config["ssl_password"].reveal()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = config["ssl_check_hostname"]
    try:
        if config["ssl_cafile"]:
            context.load_verify_locations(config["ssl_cafile"])
        else:
            context.load_default_certs()
        if config["ssl_certfile"]:
            load_certificate(context, config["ssl_certfile"], config["ssl_keyfile"], password)
        if config["ssl_crlfile"]:
            context.load_verify_locations(config["ssl_crlfile"])
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    except OSError as error:
        files = [name for name in TLS_FILES if config[name]]
        raise InvalidArgumentError(f"TLS cannot be set up: {error}: check {', '.join(files)}") from None
    return context


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
