# SPDX-License-Identifier: Apache-2.0
"""The certificate of a server and the CA of its clients: PEM files that are reloaded when they change."""

from __future__ import annotations

import ssl
from typing import final

from shmaccum.common.file_stamp import Stamp, stamp
from shmaccum.common.secret_files import opened_secret
from shmaccum.config import ServerOptions
from shmaccum.exceptions import InvalidArgumentError


@final
class TlsFiles:
    """The certificate of a server and the CA of its clients, from PEM files.

    After `refresh`, new connections use the new files, so a certificate can be replaced while the server runs.

    Args:
        options: the options whose names start with ``ssl``.

    Raises:
        InvalidArgumentError: a file is missing or not a PEM file, or others can read the key.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._stamps = self._current_stamps()
        self.context = self._read()

    def _current_stamps(self) -> list[Stamp]:
        options = self._options
        return [stamp(path) for path in (options.ssl_certfile, options.ssl_keyfile, options.ssl_cafile)]

    def refresh(self) -> bool:
        """Reads the files again if one has changed, and returns whether it had.

        Raises:
            InvalidArgumentError: the new files are invalid; the previous ones stay in effect.
        """
        stamps = self._current_stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        self.context = self._read()
        return True

    def _read(self) -> ssl.SSLContext:
        options = self._options
        assert options.ssl_certfile is not None
        # Without a password argument, OpenSSL would prompt at the terminal.
        password = "" if options.ssl_password is None else options.ssl_password.reveal()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            with opened_secret(options.ssl_keyfile or options.ssl_certfile, "private key") as descriptor:
                key = f"/proc/self/fd/{descriptor}"
                certificate = key if options.ssl_keyfile is None else options.ssl_certfile
                context.load_cert_chain(certificate, key, password)
        except OSError as error:
            raise InvalidArgumentError(
                f"the certificate {options.ssl_certfile} and the key {options.ssl_keyfile or 'in it'} cannot be used: "
                f"{error.strerror or error}. Set ssl_certfile and ssl_keyfile to matching PEM files, and "
                "ssl_password to the password of the key"
            ) from None
        if options.ssl_cafile is not None:
            self._demand_certificates(context, options.ssl_cafile)
        return context

    @staticmethod
    def _demand_certificates(context: ssl.SSLContext, authority: str) -> None:
        try:
            context.load_verify_locations(authority)
        except OSError as error:
            raise InvalidArgumentError(
                f"the authority {authority} cannot be used: {error.strerror or error}. Set ssl_cafile to a PEM file"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
