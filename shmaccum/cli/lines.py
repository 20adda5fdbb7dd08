# SPDX-License-Identifier: Apache-2.0
"""Records from text: streams cut at a delimiter, and each piece cut into key and value, as ``kcat -P`` does it."""

from __future__ import annotations

import codecs
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shmaccum.arena.doorbell import wait_readable
from shmaccum.common.units import format_size
from shmaccum.exceptions import InvalidArgumentError, RecordTooLargeError

BLOCK_SIZE = 1 << 18
IDLE_S = 0.2


@dataclass(frozen=True)
class LineFormat:
    """How a record is written.

    Attributes:
        delimiter: ends a record; at the end of a stream it may be missing.
        key_delimiter: between key and value; a record without it has no key. None: all of it is the value.
        key: the key of every record that brings none.
        is_empty_null: an empty key or value is null, not empty.
    """

    delimiter: bytes = b"\n"
    key_delimiter: bytes | None = None
    key: bytes | None = None
    is_empty_null: bool = False

    def parse(self, lines: Sequence[bytes]) -> tuple[list[bytes | None], list[bytes | None] | None]:
        """Values and keys; None for the keys where no record has one."""
        if self.key_delimiter is None:
            keys: list[bytes | None] | None = None if self.key is None else [self.key] * len(lines)
            return [self._nullable(line) for line in lines], keys
        pairs = [self._pair(line) for line in lines]
        return [value for _, value in pairs], [key for key, _ in pairs]

    def _pair(self, line: bytes) -> tuple[bytes | None, bytes | None]:
        assert self.key_delimiter is not None
        key, found, value = line.partition(self.key_delimiter)
        return (self._nullable(key), self._nullable(value)) if found else (self.key, self._nullable(line))

    def _nullable(self, part: bytes) -> bytes | None:
        return None if self.is_empty_null and not part else part


def parse_delimiter(text: str) -> bytes:
    r"""Bytes of a delimiter as a shell user writes it: ``\n``, ``\t``, ``\0``, ``\x1e`` are what they are in Python.

    Raises:
        InvalidArgumentError: empty, or an escape that is none.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an escape that is none
            delimiter: bytes = codecs.escape_decode(os.fsencode(text))[0]
    except (ValueError, DeprecationWarning, SyntaxWarning) as error:
        raise InvalidArgumentError(f"{text!r} is no delimiter: {error}") from None
    if not delimiter:
        raise InvalidArgumentError("a delimiter cannot be empty")
    return delimiter


class LineReader:
    """Cuts a stream into records, a block at a time, so that what came is sent while the rest is still to come.

    Args:
        descriptor: open for reading: a file, a pipe, a terminal.
        name: for messages.
        delimiter: ends a record.
        size_max: bytes without a delimiter after which the stream is given up.
        on_idle: called again and again while nothing comes.
    """

    def __init__(
        self, descriptor: int, name: str, delimiter: bytes, size_max: int, on_idle: Callable[[], object] = lambda: None
    ) -> None:
        self._descriptor = descriptor
        self._name = name
        self._delimiter = delimiter
        self._size_max = size_max
        self._on_idle = on_idle
        self.line_count = 0
        """Records read so far."""

    def blocks(self) -> Iterator[list[bytes]]:
        """The records of the stream, some at a time, none of them twice.

        Raises:
            RecordTooLargeError: there is no delimiter for too long; the records before it were yielded.
        """
        buffer = bytearray()
        searched = 0
        while block := self._read():
            buffer += block
            if buffer.find(self._delimiter, max(searched - len(self._delimiter) + 1, 0)) >= 0:
                *lines, rest = bytes(buffer).split(self._delimiter)
                self.line_count += len(lines)
                yield lines
                buffer[:] = rest
            searched = len(buffer)
            self._check(searched)
        if buffer:
            self.line_count += 1
            yield [bytes(buffer)]

    def _read(self) -> bytes:
        while not wait_readable([self._descriptor], IDLE_S):
            self._on_idle()
        try:
            return os.read(self._descriptor, BLOCK_SIZE)
        except OSError as error:
            error.filename = self._name
            raise

    def _check(self, size: int) -> None:
        if size > self._size_max:
            raise RecordTooLargeError(
                f"{self._name}: record {self.line_count + 1} does not end within {format_size(self._size_max)} "
                f"(max_request_size of the arena): is {self._delimiter!r} its delimiter?"
            )
