# SPDX-License-Identifier: Apache-2.0
"""A realm of MIT Kerberos on a loopback port. It does not need root."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.kafka.broker import LOOPBACK, free_port
from tests.support.processes import wait_until

REALM = "SHMACCUM.TEST"
TOOL_TIMEOUT_S = 300.0
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
"""Debian installs the KDC's programs outside the PATH of users."""
PACKAGES: Mapping[str, str] = {
    "krb5kdc": "krb5-kdc",
    "kdb5_util": "krb5-kdc",
    "kadmin.local": "krb5-admin-server",
    "kinit": "krb5-user",
}
"""The programs and their Debian packages."""

# Do not canonicalize names, so that no resolver renames localhost.
CLIENT_CONFIGURATION = """
[libdefaults]
    default_realm = {realm}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
    udp_preference_limit = 1
[realms]
    {realm} = {{
        kdc = {address}
    }}
[domain_realm]
    localhost = {realm}
"""
KDC_CONFIGURATION = """
[kdcdefaults]
    kdc_listen = {address}
    kdc_tcp_listen = {address}
[realms]
    {realm} = {{
        database_name = {directory}/principal
        key_stash_file = {directory}/stash
        acl_file = {directory}/acl
        max_life = 1h
    }}
[logging]
    kdc = FILE:{directory}/kdc.log
"""


def require() -> None:
    """Skips a test if there is no KDC or no Python package for GSSAPI."""
    try:
        importlib.import_module("gssapi")
    except (ImportError, OSError) as error:
        pytest.skip(f"GSSAPI needs the package gssapi: apt-get install libkrb5-dev, pip install gssapi ({error})")
    for program, package in PACKAGES.items():
        if shutil.which(program, path=PATH) is None:
            pytest.skip(f"a KDC needs {program}: on Debian, apt-get install {package}")


class Realm:
    """A KDC's files.

    Attributes:
        environment: variables that select this realm for Kerberos programs and libraries.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.environment = {
            "KRB5_CONFIG": str(directory / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
        }
        names = {"realm": REALM, "directory": directory, "address": f"{LOOPBACK}:{self.port}"}
        (directory / "krb5.conf").write_text(CLIENT_CONFIGURATION.format(**names))
        (directory / "kdc.conf").write_text(KDC_CONFIGURATION.format(**names))
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "of this test only")

    def add_principal(self, name: str) -> Path:
        """Add a principal with random keys, and return its keytab."""
        keytab = self.directory / f"{name.replace('/', '-')}.keytab"
        self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {name}")
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {keytab} {name}")
        assert keytab.exists()
        return keytab

    def log_in(self, name: str, keytab: Path) -> Path:
        """Return a credential cache with the principal's ticket."""
        cache = self.directory / f"{name}.cache"
        self._run("kinit", "-c", str(cache), "-k", "-t", str(keytab), name)
        return cache

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            [_program(command[0]), *command[1:]],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Issue tickets until the context ends."""
        with open(self.directory / "output", "wb") as output:
            kdc = subprocess.Popen(
                [_program("krb5kdc"), "-n", "-r", REALM, "-P", str(self.directory / "pid")],
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=output,
            )
        try:
            self._wait_until_up(kdc)
            yield
        finally:
            kdc.kill()
            kdc.wait()

    def _wait_until_up(self, kdc: subprocess.Popen[bytes]) -> None:
        def is_up() -> bool:
            assert kdc.poll() is None, (self.directory / "output").read_text(errors="replace")
            with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, self.port), timeout=1):
                return True
            return False

        wait_until(is_up, "the KDC takes connections")


def _program(name: str) -> str:
    found = shutil.which(name, path=PATH)
    assert found is not None, name
    return found
