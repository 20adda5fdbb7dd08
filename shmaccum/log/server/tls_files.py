# SPDX-License-Identifier: Apache-2.0
"""The certificate of a server and the CA of its clients: PEM files that are reloaded when they change."""

from __future__ import annotations

import ssl

from shmaccum.common.file_stamp import FileContents
from shmaccum.common.secret_files import load_certificate
from shmaccum.config import ServerOptions
from shmaccum.exceptions import InvalidArgumentError


def tls_files(options: ServerOptions) -> FileContents[ssl.SSLContext] | None:
    """Returns the context of new connections, from the files of the options; None without a certificate.

    Raises:
        InvalidArgumentError: a file is missing or not a PEM file, or others can read the key.
    """
    if options.ssl_certfile is None:
        return None
    paths = (options.ssl_certfile, options.ssl_keyfile, options.ssl_cafile)
    return FileContents(paths, lambda: _read(options))


def _read(options: ServerOptions) -> ssl.SSLContext:
    assert options.ssl_certfile is not None
    password = None if options.ssl_password is None else options.ssl_password.reveal()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        load_certificate(context, options.ssl_certfile, options.ssl_keyfile, password)
    except OSError as error:
        raise InvalidArgumentError(
            f"the certificate {options.ssl_certfile} and the key {options.ssl_keyfile or 'in it'} cannot be used: "
            f"{error.strerror or error}. Set ssl_certfile and ssl_keyfile to matching PEM files, and "
            "ssl_password to the password of the key"
        ) from None
    if options.ssl_cafile is not None:
        _demand_certificates(context, options.ssl_cafile)
    return context


def _demand_certificates(context: ssl.SSLContext, authority: str) -> None:
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise InvalidArgumentError(
            f"the authority {authority} cannot be used: {error.strerror or error}. Set ssl_cafile to a PEM file"
        ) from None
    context.verify_mode = ssl.CERT_REQUIRED
