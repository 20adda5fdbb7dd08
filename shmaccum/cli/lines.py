# SPDX-License-Identifier: Apache-2.0
"""Parse records from text: split a stream at a delimiter, then each part into key and value, like ``kcat -P``."""

from __future__ import annotations

import codecs
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shmaccum.arena.wake_fifo import wait_readable
from shmaccum.common.units import format_size
from shmaccum.exceptions import InvalidArgumentError, RecordTooLargeError

BLOCK_SIZE = 1 << 18
IDLE_S = 0.2


@dataclass(frozen=True)
class LineFormat:
    """The text format of records.

    Attributes:
        delimiter: the end of a record. It may be missing at the end of a stream.
        key_delimiter: separates key and value. A record without it has no key. If None, the whole record is the value.
        key: the key of every record without a key.
        is_empty_null: whether an empty key or value is null.
    """

    delimiter: bytes = b"\n"
    key_delimiter: bytes | None = None
    key: bytes | None = None
    is_empty_null: bool = False

    def parse(self, lines: Sequence[bytes]) -> tuple[list[bytes | None], list[bytes | None] | None]:
        """Return values and keys. If no record has a key, the keys are None."""
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
    r"""Parse a delimiter. The escapes ``\n``, ``\t``, ``\0`` and ``\x1e`` have the same meaning as in Python.

    Raises:
        InvalidArgumentError: the delimiter is empty or has an invalid escape.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an invalid escape
            delimiter: bytes = codecs.escape_decode(os.fsencode(text))[0]
    except (ValueError, DeprecationWarning, SyntaxWarning) as error:
        raise InvalidArgumentError(f"{text!r} is not a delimiter: {error}") from None
    if not delimiter:
        raise InvalidArgumentError("a delimiter cannot be empty: write at least one character")
    return delimiter


class LineReader:
    """Splits a stream into records, block by block, so that records are sent while more input arrives.

    Args:
        descriptor: open for reading: a file, a pipe or a terminal.
        name: the name of the stream in messages.
        delimiter: the end of a record.
        size_max: the most bytes without a delimiter. Beyond that, reading fails.
        on_idle: called repeatedly while no input arrives.
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
        """Yield the records of the stream in groups.

        Raises:
            RecordTooLargeError: a record exceeds `size_max`; all records before it were yielded.
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
                f"{self._name}: record {self.line_count + 1} has no delimiter within {format_size(self._size_max)} "
                f"(max_request_size of the arena): check that the delimiter is {self._delimiter!r}"
            )
