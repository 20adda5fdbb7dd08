# SPDX-License-Identifier: Apache-2.0
"""The certificate of a server, and the authority of its clients: PEM files that are read again when they change."""

from __future__ import annotations

import ssl
from typing import final

from shmaccum.common.secret_files import opened_secret
from shmaccum.config import ServerOptions
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.server.file_stamp import Stamp, stamp


@final
class TlsFiles:
    """The certificate of a server, and the authority of its clients, from PEM files.

    New files are taken over by connections that begin after `refresh`; a certificate can be exchanged while the server
    runs.

    Args:
        options: those whose names begin with ``ssl``.

    Raises:
        InvalidArgumentError: a file is missing, is no PEM file, or its key is open to other users.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._stamps = self._current_stamps()
        self.context = self._read()

    def _current_stamps(self) -> list[Stamp]:
        options = self._options
        return [stamp(path) for path in (options.ssl_certfile, options.ssl_keyfile, options.ssl_cafile)]

    def refresh(self) -> bool:
        """Reads the files again when one of them changed; True when they are new.

        Raises:
            InvalidArgumentError: the new files cannot be used; the former ones go on.
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
        # Without a password OpenSSL would ask at the terminal.
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
                f"{error.strerror or error}. ssl_certfile and ssl_keyfile name PEM files that belong together, and "
                "ssl_password opens the key"
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
                f"the authority {authority} cannot be used: {error.strerror or error}. ssl_cafile names a PEM file"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
