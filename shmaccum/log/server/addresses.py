# SPDX-License-Identifier: Apache-2.0
"""The address that a server listens on, and the address that it advertises to clients."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from shmaccum.config import ServerOptions
from shmaccum.exceptions import InvalidArgumentError


class Address(NamedTuple):
    """The address of the node."""

    host: str
    port: int


def parse_listen(text: str, options: ServerOptions) -> Address:
    """Parse HOST:PORT.

    Raises:
        InvalidArgumentError: the text is not HOST:PORT, or is reachable by other hosts without TLS or ``insecure``.
    """
    host, colon, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise InvalidArgumentError(f"{text!r} is not an address to listen on: write HOST:PORT, as in 127.0.0.1:9092")
    if not _is_loopback(host) and not options.insecure and options.ssl_certfile is None:
        raise InvalidArgumentError(
            f"other hosts can reach {host}, and this server would use no TLS: listen on 127.0.0.1, set a certificate "
            "(-X ssl_certfile=FILE -X ssl_keyfile=FILE), or set insecure=true (--insecure) if the network itself is "
            "protected"
        )
    return Address(host, int(port))


def parse_advertised(text: str | None, listening_host: str) -> Address:
    """Return the address to advertise to clients. Port 0 stands for the port of the listener,
    if the text has none.

    Args:
        text: HOST:PORT or HOST. If None, the address that the server listens on.
        listening_host: the host of that address.

    Raises:
        InvalidArgumentError: the text is not an address, or clients cannot connect to it.
    """
    if text is None:
        _refuse_every_address(listening_host, "the server listens on every address of the host")
        return Address(listening_host, 0)
    host, _, port = text.rpartition(":") if ":" in text else (text, ":", "0")
    if not host or not port.isdecimal() or (":" in text and not 0 < int(port) <= 65_535):
        raise InvalidArgumentError(
            f"advertised_listener: {text!r} is not an address for clients: write HOST:PORT, as in logs.example.com:9092"
        )
    _refuse_every_address(host.strip("[]"), "advertised_listener names every address of a host")
    return Address(host.strip("[]"), int(port))


def _refuse_every_address(host: str, reason: str) -> None:
    """Reject 0.0.0.0 and ::, as Kafka does, because clients cannot connect to them."""
    if _is_every_address(host):
        raise InvalidArgumentError(
            f"{reason} ({host}), and clients need one address: set advertised_listener "
            "(--advertised-listener), as in logs.example.com:9092"
        )


def _is_every_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def listener_name(options: ServerOptions, address: Address) -> str:
    """Return an address with its protocol, as in Kafka's setting advertised.listeners."""
    protocol = "PLAINTEXT" if options.ssl_certfile is None else "SSL"
    if options.users_file is not None:
        protocol = f"SASL_{protocol}"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{protocol}://{host}:{address.port}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
