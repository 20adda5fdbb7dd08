# SPDX-License-Identifier: Apache-2.0
"""Frames of a file: encode a frame, and find the frames of a file, also after damage.

::

    frame    | size u32 | crc u32 of the body | body: msgpack, a list whose first element is its kind |     big-endian

A file of frames is only appended to. A torn frame at its end is a write whose process died. All other bytes that are
not a frame are damage.
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
"""Created once, because each has a buffer of 256 KiB."""

Body = list[Any]


class Frames(NamedTuple):
    """The frames of a file.

    Attributes:
        bodies: the bodies of the whole frames, in order, each with its position.
        end: the position after the last whole frame.
        damages: the start and the end of each range of bytes that is not a frame.
    """

    bodies: list[tuple[int, Body]]
    end: int
    damages: list[tuple[int, int]]


def pack_body(body: Body) -> bytes:
    """The encoded body."""
    packed: bytes = _PACKER.pack(body)
    return packed


def pack_frame(body: Body) -> bytes:
    """The encoded frame."""
    packed = pack_body(body)
    return HEAD.pack(len(packed), crc32c(packed)) + packed


def beginnings(shapes: Iterable[tuple[str, int]]) -> re.Pattern[bytes]:
    """A pattern for the first bytes of every body, by which frames are searched after damage.

    Args:
        shapes: the kind and the number of elements of each body.
    """
    packed = (msgpack.packb([kind, *[None] * (count - 1)])[: 2 + len(kind)] for kind, count in shapes)
    return re.compile(b"|".join(map(re.escape, packed)))


def whole_frame(content: bytes, position: int) -> tuple[int, Body] | None:
    """The end and the body of the frame at a position, or None if it is not whole."""
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
    """All whole frames. Bytes after the last one are damage, unless they are the start of a frame.

    Args:
        content: the content of a file, from the start of a frame on.
        bodies: the pattern for the start of every body.
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
    """True if the bytes from here on are the start of a frame whose writer died."""
    if position + HEAD.size > len(content):
        return True
    size = int.from_bytes(content[position : position + 4], "big")
    return HEAD.size < size <= FRAME_SIZE_MAX and position + HEAD.size + size > len(content)


def _next_frame(content: bytes, position: int, bodies: re.Pattern[bytes]) -> int:
    """The position of the next whole frame, or the end of the content."""
    for match in bodies.finditer(content, position + HEAD.size):
        if whole_frame(content, match.start() - HEAD.size) is not None:
            return match.start() - HEAD.size
    return len(content)
