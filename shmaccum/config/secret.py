# SPDX-License-Identifier: Apache-2.0
"""Secrets, which never appear in a repr, a log, an error, an arena, or the options of a command line.

A user gives the place of a secret: ``env:NAME`` for an environment variable, ``file:PATH`` for the first line of a
file. Code may also give the secret itself. A command line accepts only places, because every user of the host can read
it in ``/proc/PID/cmdline`` and in ``ps``.
"""

from __future__ import annotations

import os
from typing import final

from shmaccum.common.secret_files import read_secret
from shmaccum.exceptions import InvalidArgumentError

ENVIRONMENT = "env:"
FILE = "file:"


@final
class Secret:
    """A secret text, which only `reveal` returns.

    Args:
        source: ``env:NAME``, ``file:PATH``, or the secret itself.
    """

    __slots__ = ("_source",)

    def __init__(self, source: str) -> None:
        self._source = source

    def reveal(self) -> str:
        """Returns the secret. Each call reads the variable or the file again.

        Raises:
            InvalidArgumentError: the variable or the file does not exist, or other users may read the file
                (shmaccum/common/secret_files.py). The message does not contain the secret.
        """
        if self._source.startswith(ENVIRONMENT):
            name = self._source[len(ENVIRONMENT) :]
            if name not in os.environ:
                raise InvalidArgumentError(f"the environment has no variable {name}: set it, or use file:PATH")
            return os.environ[name]
        if self._source.startswith(FILE):
            path = self._source[len(FILE) :]
            lines = read_secret(path, "file with a secret").splitlines()
            return lines[0] if lines else ""
        return self._source

    @property
    def place(self) -> str | None:
        """``env:NAME`` or ``file:PATH``, which is not secret; None if the source is the secret itself."""
        return self._source if self._source.startswith((ENVIRONMENT, FILE)) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._source == other._source

    def __hash__(self) -> int:
        return hash(self._source)

    def __repr__(self) -> str:
        return "<Secret>"

    def __reduce__(self) -> str:
        raise TypeError("a Secret cannot be pickled: give env:NAME or file:PATH to the process that needs it")
