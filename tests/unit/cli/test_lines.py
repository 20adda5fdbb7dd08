# SPDX-License-Identifier: Apache-2.0
"""Streams are split into the same records wherever the blocks end."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmaccum.cli.lines import LineFormat, LineReader, parse_delimiter
from shmaccum.exceptions import InvalidArgumentError, RecordTooLargeError


class Blocks(LineReader):
    """Reads given blocks instead of a file descriptor."""

    def __init__(self, blocks: Sequence[bytes], delimiter: bytes = b"\n", size_max: int = 1 << 20) -> None:
        super().__init__(-1, "stdin", delimiter, size_max)
        self._blocks = iter([*(block for block in blocks if block), b""])

    def _read(self) -> bytes:
        return next(self._blocks)

    def all(self) -> list[bytes]:
        return [line for block in self.blocks() for line in block]


@given(st.lists(st.text(alphabet="ab\n", max_size=6).map(str.encode)), st.sampled_from([b"\n", b"ab", b"aa", b"\n\n"]))
def test_records_do_not_depend_on_where_blocks_end(blocks: list[bytes], delimiter: bytes) -> None:
    whole = b"".join(blocks)
    wanted = whole.split(delimiter)
    if not wanted[-1]:
        wanted.pop()
    reader = Blocks(blocks, delimiter)
    assert reader.all() == wanted
    assert reader.line_count == len(wanted)


def test_a_last_record_may_end_without_delimiter_and_records_may_be_empty() -> None:
    assert Blocks([b"a\n\nb"]).all() == [b"a", b"", b"b"]
    assert Blocks([b"a\n"]).all() == [b"a"]
    assert Blocks([]).all() == []


def test_an_endless_record_is_given_up_and_what_came_before_it_is_not() -> None:
    reader = Blocks([b"one\ntwo\n" + b"x" * 50, b"x" * 60], size_max=100)
    blocks = reader.blocks()
    assert next(blocks) == [b"one", b"two"]
    with pytest.raises(
        RecordTooLargeError, match=r"stdin: record 3 has no delimiter within 100 B .* the delimiter is b'\\n\'"
    ):
        next(blocks)


def test_what_was_written_is_read_before_the_stream_ends() -> None:
    source, target = os.pipe()
    idle = threading.Event()
    blocks: Iterator[list[bytes]] = LineReader(source, "stdin", b"\n", 100, idle.set).blocks()
    try:
        os.write(target, b"one\ntw")
        assert next(blocks) == [b"one"]
        writer = threading.Thread(target=lambda: (idle.wait(60), os.write(target, b"o\n")))
        writer.start()
        assert next(blocks) == [b"two"]
        writer.join()
        assert idle.is_set()
    finally:
        os.close(target)
        assert list(blocks) == []
        os.close(source)


@pytest.mark.parametrize(
    ("line_format", "values", "keys"),
    [
        (LineFormat(), [b"k:v:w", b"only", b""], None),
        (LineFormat(key=b"fix"), [b"k:v:w", b"only", b""], [b"fix"] * 3),
        (LineFormat(key_delimiter=b":"), [b"v:w", b"only", b""], [b"k", None, None]),
        (LineFormat(key_delimiter=b":", key=b"fix"), [b"v:w", b"only", b""], [b"k", b"fix", b"fix"]),
        (LineFormat(is_empty_null=True), [b"k:v:w", b"only", None], None),
    ],
)
def test_lines_are_cut_into_keys_and_values(line_format: LineFormat, values: object, keys: object) -> None:
    assert line_format.parse([b"k:v:w", b"only", b""]) == (values, keys)


def test_an_empty_key_or_value_can_be_null() -> None:
    assert LineFormat(key_delimiter=b":", is_empty_null=True).parse([b":v", b"k:"]) == ([b"v", None], [None, b"k"])


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [(r"\n", b"\n"), (r"\t", b"\t"), (r"\0", b"\0"), (r"\x1e", b"\x1e"), ("::", b"::"), ("é", "é".encode())],
)
def test_delimiters_are_written_as_in_python(text: str, delimiter: bytes) -> None:
    assert parse_delimiter(text) == delimiter


@pytest.mark.parametrize("text", ["", r"\xzz"])
def test_what_is_no_delimiter_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="delimiter"):
        parse_delimiter(text)
