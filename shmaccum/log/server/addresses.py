# SPDX-License-Identifier: Apache-2.0
"""The address that a server listens on, and the one that its clients are told."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from shmaccum.config import ServerOptions
from shmaccum.exceptions import InvalidArgumentError


class Address(NamedTuple):
    """Where clients find the node."""

    host: str
    port: int


def parse_listen(text: str, options: ServerOptions) -> Address:
    """HOST:PORT.

    Raises:
        InvalidArgumentError: it is none, or other hosts could connect without TLS and nobody said that they may.
    """
    host, colon, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise InvalidArgumentError(f"{text!r} is no address to listen on: write HOST:PORT, as in 127.0.0.1:9092")
    if not _is_loopback(host) and not options.insecure and options.ssl_certfile is None:
        raise InvalidArgumentError(
            f"other hosts can reach {host}, and this server would talk to them without TLS: listen on 127.0.0.1, give "
            "a certificate (-X ssl_certfile=FILE -X ssl_keyfile=FILE), or say insecure=true (--insecure) where the "
            "network itself keeps strangers out"
        )
    return Address(host, int(port))


def parse_advertised(text: str | None, listening_host: str) -> Address:
    """The address that clients are told. Its port is 0 where the text has none: the one that the server listens on.

    Args:
        text: HOST:PORT or HOST; None: the address that the server listens on.
        listening_host: the host of that address.

    Raises:
        InvalidArgumentError: the text is no address, or the address is none that a client can connect to.
    """
    if text is None:
        _refuse_every_address(listening_host, "the server listens on every address of the host")
        return Address(listening_host, 0)
    host, _, port = text.rpartition(":") if ":" in text else (text, ":", "0")
    if not host or not port.isdecimal() or (":" in text and not 0 < int(port) <= 65_535):
        raise InvalidArgumentError(
            f"advertised_listener: {text!r} is no address at which clients find the server: write HOST:PORT, as in "
            "logs.example.com:9092"
        )
    _refuse_every_address(host.strip("[]"), "advertised_listener names every address of a host")
    return Address(host.strip("[]"), int(port))


def _refuse_every_address(host: str, reason: str) -> None:
    """Clients cannot connect to 0.0.0.0 or to ::, so they are never told such an address. Kafka refuses it, too."""
    if _is_every_address(host):
        raise InvalidArgumentError(
            f"{reason} ({host}), and clients have to be told one of them: name it by advertised_listener "
            "(--advertised-listener), as in logs.example.com:9092"
        )


def _is_every_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def listener_name(options: ServerOptions, address: Address) -> str:
    """An address as Kafka's setting advertised.listeners has it, with its protocol."""
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
