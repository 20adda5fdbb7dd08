# SPDX-License-Identifier: Apache-2.0
"""Frames of a file: how one is written, and how those of a file are found, also behind damage.

::

    frame    | size u32 | crc u32 of the body | body: msgpack, a list whose first element is its kind |     big-endian

A file of frames is appended to. A torn frame at its end is a write whose process died. Bytes that are no frame and have
bytes of a frame behind them are damage.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgpack

from shmaccum._native import crc32c

HEAD = struct.Struct(">II")
FRAME_SIZE_MAX = 64 << 20
_PACKER = msgpack.Packer()
"""Made once: each has a buffer of 256 KiB."""

Body = list[Any]


class Frames(NamedTuple):
    """The frames of a file.

    Attributes:
        bodies: of the whole frames, in order, each with its position.
        end: behind the last whole frame.
        damages: positions of bytes that are no frame, each with the position behind them.
    """

    bodies: list[tuple[int, Body]]
    end: int
    damages: list[tuple[int, int]]


def pack_body(body: Body) -> bytes:
    """The bytes of a body."""
    packed: bytes = _PACKER.pack(body)
    return packed


def pack_frame(body: Body) -> bytes:
    """The bytes of a frame."""
    packed = pack_body(body)
    return HEAD.pack(len(packed), crc32c(packed)) + packed


def beginnings(shapes: Iterable[tuple[str, int]]) -> re.Pattern[bytes]:
    """A pattern of the first bytes of every body, by which the search behind damage goes on.

    Args:
        shapes: kind and number of elements of each body.
    """
    packed = (msgpack.packb([kind, *[None] * (count - 1)])[: 2 + len(kind)] for kind, count in shapes)
    return re.compile(b"|".join(map(re.escape, packed)))


def whole_frame(content: bytes, position: int) -> tuple[int, Body] | None:
    """End and body of the frame that begins here; None when there is no whole one."""
    if position + HEAD.size > len(content):
        return None
    size, crc = HEAD.unpack_from(content, position)
    end = position + HEAD.size + size
    if size > FRAME_SIZE_MAX or end > len(content):
        return None
    packed = content[position + HEAD.size : end]
    if crc32c(packed) != crc:
        return None
    try:
        body = msgpack.unpackb(packed)
    except ValueError:
        return None
    return (end, body) if isinstance(body, list) and body else None


def find_frames(content: bytes, bodies: re.Pattern[bytes]) -> Frames:
    """All whole frames. Bytes behind the last one are damage, unless they are the beginning of a frame.

    Args:
        content: of a file, from the start of a frame on.
        bodies: the bytes with which every body begins.
    """
    found = Frames([], 0, [])
    position, end = 0, 0
    while position < len(content):
        frame = whole_frame(content, position)
        if frame is None:
            resume = _next_frame(content, position + 1, bodies)
            if resume < len(content) or not _is_torn(content, position):
                found.damages.append((position, resume))
            position = resume
        else:
            found.bodies.append((position, frame[1]))
            position = end = frame[0]
    return found._replace(end=end)


def _is_torn(content: bytes, position: int) -> bool:
    """True when the bytes from here on are the beginning of a frame whose writer died."""
    if position + HEAD.size > len(content):
        return True
    size = int.from_bytes(content[position : position + 4], "big")
    return HEAD.size < size <= FRAME_SIZE_MAX and position + HEAD.size + size > len(content)


def _next_frame(content: bytes, position: int, bodies: re.Pattern[bytes]) -> int:
    """The position of the next whole frame; the end of the content when there is none."""
    for match in bodies.finditer(content, position + HEAD.size):
        if whole_frame(content, match.start() - HEAD.size) is not None:
            return match.start() - HEAD.size
    return len(content)
