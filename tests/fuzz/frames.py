# SPDX-License-Identifier: Apache-2.0
"""Frames of Kafka's requests for a fuzzer: whole ones by Kafka's schemas, and ones with a fault in them.

A whole frame has the structure of its request. Its fields have values of their kinds: a few names that the server
knows, the members and the epochs of its groups, and edges. A fault changes some bytes, a number or a length, or moves a
piece, and leaves the rest as it is.
"""

from __future__ import annotations

import functools
import random
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from shmaccum.serving import messages
from tests.log_support import make_batch

TOPICS = ("fuzz-0", "fuzz-1", "hidden", "missing", "")
GROUPS = ("group-0", "group-1", "secret", "")
MEMBERS = ("", "member-1", "member-2")
INSTANCES = ("instance-1", "instance-2", "")
ASSIGNORS = ("range", "uniform", "missing")
PATTERNS = ("", "", "fuzz-.*", "(", "(a*)*b", "(.?){1,200}z", r"\pL" * 600)
EPOCHS = (0, 0, 0, 0, 1, -1, -2, -3, 2**31 - 1)
"""Of members and generations, beside those that groups have: 0 joins, -1 leaves, -2 leaves for a while (KIP-848)."""
WORDS = ("range", "consumer", "PLAIN", "retention.ms", "1000", "x" * 300, "\u2603")
NUMBERS = {
    "bool": ("?", (False, True)),
    "int8": (">b", (0, 1, 2, 4, -1, 127, -128)),
    "int16": (">h", (0, 1, -1, 3, 32_767, -32_768)),
    "uint16": (">H", (0, 1, 65_535)),
    "int32": (">i", (0, 0, 1, 2, -1, -2, 100, 6000, 2**31 - 1, -(2**31))),
    "int64": (">q", (0, 1, -1, -2, -3, 7, 2**62, 2**63 - 1, -(2**63))),
    "float64": (">d", (0.0, 1.5)),
}
EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
ELEMENTS_MAX = 3
NULL_SHARE = 0.3
SIZE = struct.Struct(">i")

Schema = Mapping[str, Any]
Fault = Callable[[random.Random, bytearray], None]


@functools.cache
def _holds(versions: str | None, version: int) -> bool:
    """True when a version is in a range as the schemas write it: "1", "1-3", "2+" or "none"."""
    if not versions or versions == "none":
        return False
    first, dash, last = versions.removesuffix("+").partition("-")
    return int(first) <= version and (versions.endswith("+") or version <= int(last if dash else first))


@final
class Frames:
    """Makes frames.

    Args:
        chance: everything that is drawn.
        topic_ids: ids of topics that the server has.

    Attributes:
        members: the ids of members that groups of the server have.
        epochs: generations of groups and epochs of members that the server has.
    """

    def __init__(self, chance: random.Random, topic_ids: Sequence[uuid.UUID]) -> None:
        self._chance = chance
        self._topic_ids = (*topic_ids, uuid.UUID(int=0), uuid.UUID(int=1 << 100))
        self.members: Sequence[str] = ()
        self.epochs: Sequence[int] = ()
        self._records = [make_batch([b"value"] * count).wire for count in (1, 2, 3)]

    def whole(self, api_key: int, version: int) -> bytes:
        """A frame of a request, with its size in front."""
        schema = messages._messages(api_key).request._json
        is_flexible = messages.is_flexible(api_key, version)
        structs = {each["name"]: each["fields"] for each in schema.get("commonStructs", ())}
        body = self._fields(schema["fields"], version, structs, is_flexible=is_flexible)
        head = struct.pack(">hhih", api_key, version, self._chance.randrange(100), 4) + b"fuzz" + b"\0" * is_flexible
        return SIZE.pack(len(head) + len(body)) + head + body

    def _fields(self, fields: Any, version: int, structs: Mapping[str, Any], *, is_flexible: bool) -> bytes:
        present = [each for each in fields if _holds(each["versions"], version) and "tag" not in each]
        encoded = [self._field(each, version, structs, is_flexible=is_flexible) for each in present]
        return b"".join(encoded) + b"\0" * is_flexible

    def _field(self, field: Schema, version: int, structs: Mapping[str, Any], *, is_flexible: bool) -> bytes:
        kind = field["type"].removeprefix("[]")
        is_null = self._chance.random() < NULL_SHARE and _holds(field.get("nullableVersions"), version)
        inner = field.get("fields") or structs.get(kind)

        def one() -> bytes:
            if inner is not None:
                return self._fields(inner, version, structs, is_flexible=is_flexible)
            return self._simple(field["name"].lower(), kind, is_flexible=is_flexible)

        if not field["type"].startswith("[]"):
            return self._length(-1, kind, is_flexible=is_flexible) if is_null and inner is None else one()
        count = -1 if is_null else self._chance.randint(0, ELEMENTS_MAX)
        return self._length(count, "array", is_flexible=is_flexible) + b"".join(one() for _ in range(count))

    def _simple(self, name: str, kind: str, *, is_flexible: bool) -> bytes:
        """A field that is no structure."""
        if kind in NUMBERS:
            layout, values = NUMBERS[kind]
            if kind == "int32" and ("generation" in name or name.endswith("memberepoch")):
                values = (*EPOCHS, *self.epochs)
            return struct.pack(layout, self._chance.choice(values))
        if kind == "uuid":
            return self._chance.choice(self._topic_ids).bytes
        if kind == "string":
            content = self._text(name).encode()
        else:
            content = self._chance.choice(self._records) if kind == "records" else self._chance.randbytes(8)
        return self._length(len(content), kind, is_flexible=is_flexible) + content

    @staticmethod
    def _length(size: int, kind: str, *, is_flexible: bool) -> bytes:
        if is_flexible:
            return messages.varint(size + 1)
        return struct.pack(">h" if kind == "string" else ">i", size)

    def _text(self, name: str) -> str:
        if name in {"name", "resourcename"}:
            return self._chance.choice(TOPICS)
        return self._chance.choice(next((values for part, values in self._known() if part in name), WORDS))

    def _known(self) -> Iterator[tuple[str, Sequence[str]]]:
        """A part of a field's name, and the texts that such a field may have."""
        yield "regex", PATTERNS
        yield "instance", INSTANCES
        yield "member", (*MEMBERS, *self.members)
        yield "assignor", ASSIGNORS
        yield from (("topic", TOPICS), ("group", GROUPS), ("key", GROUPS))


# --- faults


def flip(chance: random.Random, frame: bytearray) -> None:
    """Some bits."""
    for _ in range(chance.randint(1, 4)):
        frame[chance.randrange(4, len(frame))] ^= 1 << chance.randrange(8)


def put_number(chance: random.Random, frame: bytearray) -> None:
    """A number at an edge, where a length or a count may be."""
    size = chance.choice((1, 2, 4, 4, 8))
    at = chance.randrange(4, len(frame))
    content = (chance.choice(EDGES) & ((1 << 8 * size) - 1)).to_bytes(size, "big")
    frame[at : at + size] = content[: len(frame) - at]


def cut(chance: random.Random, frame: bytearray) -> None:
    """The end is missing."""
    del frame[chance.randrange(SIZE.size + 1, len(frame)) :]


def insert(chance: random.Random, frame: bytearray) -> None:
    """Bytes too many."""
    at = chance.randrange(4, len(frame))
    frame[at:at] = chance.choice((bytes(4), b"\xff" * 5, chance.randbytes(3)))


def repeat(chance: random.Random, frame: bytearray) -> None:
    """A piece comes many times."""
    first, second = sorted(chance.randrange(4, len(frame)) for _ in range(2))
    frame[second:second] = frame[first:second] * chance.choice((1, 2, 50))


FAULTS: tuple[Fault, ...] = (flip, flip, put_number, put_number, put_number, cut, insert, repeat)


def faulty(chance: random.Random, frame: bytes) -> bytes:
    """The frame with some faults; nearly always its size is right for what it is now."""
    damaged = bytearray(frame)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        if len(damaged) > SIZE.size + 1:
            chance.choice(FAULTS)(chance, damaged)
    if chance.random() > 0.02:
        damaged[:4] = SIZE.pack(len(damaged) - 4)
    return bytes(damaged)
