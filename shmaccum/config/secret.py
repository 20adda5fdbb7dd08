# SPDX-License-Identifier: Apache-2.0
"""Passwords that do not show: in no repr, log, error or arena, and in the options of no command line.

A user gives the place of a secret: ``env:NAME`` for a variable of the environment, ``file:PATH`` for the first line of
a file. Code may also give the secret itself. A command line takes only places, for every user of the host can read it
in ``/proc/PID/cmdline`` and in ``ps``.
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
    """A text that only `reveal` shows.

    Args:
        source: ``env:NAME``, ``file:PATH``, or the secret itself.
    """

    __slots__ = ("_source",)

    def __init__(self, source: str) -> None:
        self._source = source

    def reveal(self) -> str:
        """The secret, looked up now: a file may have a new one by the next time.

        Raises:
            InvalidArgumentError: the variable or the file is not there, or other users may read the file
                (shmaccum/common/secret_files.py); the message does not show the secret.
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
        """``env:NAME`` or ``file:PATH``, which anybody may read; None where the source is the secret itself."""
        return self._source if self._source.startswith((ENVIRONMENT, FILE)) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._source == other._source

    def __hash__(self) -> int:
        return hash(self._source)

    def __repr__(self) -> str:
        return "<Secret>"

    def __reduce__(self) -> str:
        raise TypeError("a Secret cannot be pickled: give env:NAME or file:PATH to the process that needs it")
