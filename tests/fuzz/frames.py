# SPDX-License-Identifier: Apache-2.0
"""Make frames of Kafka's requests for a fuzzer: whole frames by Kafka's schemas, and frames with faults.

A whole frame has the structure of its request. Its fields have values of their types: a few names that the server
knows, the members and epochs of its groups, and extreme values. A fault changes some bytes, a number or a length,
inserts or repeats a piece, or removes the end.
"""

from __future__ import annotations

import functools
import random
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, final

from shmaccum.log.server import messages
from tests.support.segment_log import batch_of, make_batch

TOPICS = ("fuzz-0", "fuzz-1", "hidden", "missing", "")
GROUPS = ("group-0", "group-1", "secret", "")
MEMBERS = ("", "member-1", "member-2")
INSTANCES = ("instance-1", "instance-2", "")
ASSIGNORS = ("range", "uniform", "missing")
PATTERNS = ("", "", "fuzz-.*", "(", "(a*)*b", "(.?){1,200}z", r"\pL" * 600)
TRANSACTIONS = ("transaction-0", "transaction-1", "hidden", "")
TOKENS = (
    b"",
    b"\0user\0password",
    b"\0user\0wrong",
    b"user\0nobody\0password",
    b"n,,n=user,r=nonce",
    b"y,a=user,n=user,r=nonce",
    b"p=tls-unique,,n=user,r=nonce",
    b"c=biws,r=nonce,p=AAAA",
)
"""First and last login tokens of PLAIN and of SCRAM."""
EPOCHS = (0, 0, 0, 0, 1, -1, -2, -3, 2**31 - 1)
"""Epochs of members and generations besides real ones: 0 joins, -1 leaves, -2 leaves temporarily (KIP-848)."""
WORDS = ("range", "consumer", "PLAIN", "SCRAM-SHA-256", "retention.ms", "1000", "x" * 300, "\u2603")
NUMBERS = {
    "bool": ("?", (False, True)),
    "int8": (">b", (0, 1, 2, 4, -1, 127, -128)),
    "int16": (">h", (0, 1, -1, 3, 32_767, -32_768)),
    "uint16": (">H", (0, 1, 65_535)),
    "int32": (">i", (0, 0, 1, 2, -1, -2, 100, 6000, 2**31 - 1, -(2**31))),
    "int64": (">q", (0, 1, -1, -2, -3, 7, 2**62, 2**63 - 1, -(2**63))),
    "float64": (">d", (0.0, 1.5)),
}
FETCH_NUMBERS = {
    "sessionid": (0, 0, 0, 0, 0, 0, 1, -1),
    "partition": (0, 0, 0, 0, 1, 1, 2, -1),
    "sessionepoch": (-1, -1, -1, -1, -1, 0, 1, 2**31 - 1),
    "currentleaderepoch": (-1, -1, -1, 0, 1, -(2**31)),
    "fetchoffset": (0, 0, 1, 7, 7, 20, 29, 30, -1, 2**63 - 1),
    "minbytes": (0, 1, 1, 600, 2**31 - 1, -1),
}
"""Numbers for fields of a Fetch request. Most of them are those of consumers."""
EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
ELEMENTS_MAX = 3
NULL_SHARE = 0.3
SIZE = struct.Struct(">i")

Value = TypeVar("Value")
Schema = Mapping[str, Any]
Fault = Callable[[random.Random, bytearray], None]


def pick(chance: random.Random, values: Sequence[Value]) -> Value:
    """Return one of the values. `random.choice` takes three times as long, and a frame needs ten choices."""
    return values[int(chance.random() * len(values))]


def below(chance: random.Random, end: int) -> int:
    """Return a number from 0 to `end` - 1."""
    return int(chance.random() * end)


@functools.cache
def _holds(versions: str | None, version: int) -> bool:
    """Return True if a version is in a range of the schemas: "1", "1-3", "2+" or "none"."""
    if not versions or versions == "none":
        return False
    first, dash, last = versions.removesuffix("+").partition("-")
    return int(first) <= version and (versions.endswith("+") or version <= int(last if dash else first))


@final
class Frames:
    """Makes frames.

    Args:
        chance: draws all choices.
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
        self._producers: Sequence[tuple[int, int]] = ()
        self._plain = [make_batch([b"value"] * count).wire for count in (1, 2, 3)]
        self._records = self._plain

    def note_producers(self, producers: Sequence[tuple[int, int]]) -> None:
        """Give the frames these producers, by id and epoch, so that frames have batches of their transactions."""
        self._producers = producers
        batches = [
            batch_of(producer_id, sequence, b"value", epoch=epoch).wire
            for producer_id, epoch in producers
            if epoch >= 0
            for sequence in range(2)
        ]
        self._records = self._plain + batches

    def whole(self, api_key: int, version: int) -> bytes:
        """Return a frame of a request, which begins with its size."""
        schema = messages._messages(api_key).request._json
        is_flexible = messages.is_flexible(api_key, version)
        structs = {each["name"]: each["fields"] for each in schema.get("commonStructs", ())}
        body = self._fields(schema["fields"], version, structs, is_flexible=is_flexible)
        head = struct.pack(">hhih", api_key, version, below(self._chance, 100), 4) + b"fuzz" + b"\0" * is_flexible
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
        count = -1 if is_null else below(self._chance, ELEMENTS_MAX + 1)
        return self._length(count, "array", is_flexible=is_flexible) + b"".join(one() for _ in range(count))

    def _simple(self, name: str, kind: str, *, is_flexible: bool) -> bytes:
        """Return a value for a field that is no structure."""
        if kind in NUMBERS:
            layout, values = NUMBERS[kind]
            return struct.pack(layout, pick(self._chance, self._known_numbers(name, kind) or values))
        if kind == "uuid":
            return pick(self._chance, self._topic_ids).bytes
        if kind == "string":
            content = self._text(name).encode()
        else:
            content = pick(self._chance, self._records) if kind == "records" else self._content(name)
        return self._length(len(content), kind, is_flexible=is_flexible) + content

    def _known_numbers(self, name: str, kind: str) -> Sequence[int]:
        """Return the numbers that a field of this name may have on this server, or nothing if it may have any."""
        if kind == "int32" and ("generation" in name or name.endswith("memberepoch")):
            return (*EPOCHS, *self.epochs)
        if name.endswith(("producerid", "producerepoch")):
            return [each[name.endswith("epoch")] for each in self._producers]
        return FETCH_NUMBERS.get(name, ())

    def _content(self, name: str) -> bytes:
        """Return bytes for a field, or a login token if the field has one."""
        return pick(self._chance, TOKENS) if name == "authbytes" else self._chance.randbytes(8)

    @staticmethod
    def _length(size: int, kind: str, *, is_flexible: bool) -> bytes:
        if is_flexible:
            return messages.varint(size + 1)
        return struct.pack(">h" if kind == "string" else ">i", size)

    def _text(self, name: str) -> str:
        if name in {"name", "resourcename"}:
            return pick(self._chance, TOPICS)
        return pick(self._chance, next((values for part, values in self._known() if part in name), WORDS))

    def _known(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield a part of a field's name with the texts that such a field may have, for each kind of field."""
        yield "regex", PATTERNS
        yield "instance", INSTANCES
        yield "member", (*MEMBERS, *self.members)
        yield "assignor", ASSIGNORS
        yield "transaction", TRANSACTIONS
        yield from (("topic", TOPICS), ("group", GROUPS), ("key", GROUPS))


# --- faults


def flip(chance: random.Random, frame: bytearray) -> None:
    """Flip some bits."""
    for _ in range(1 + below(chance, 4)):
        frame[4 + below(chance, len(frame) - 4)] ^= 1 << below(chance, 8)


def put_number(chance: random.Random, frame: bytearray) -> None:
    """Write an extreme number where a length or a count may be."""
    size = pick(chance, (1, 2, 4, 4, 8))
    at = 4 + below(chance, len(frame) - 4)
    content = (pick(chance, EDGES) & ((1 << 8 * size) - 1)).to_bytes(size, "big")
    frame[at : at + size] = content[: len(frame) - at]


def cut(chance: random.Random, frame: bytearray) -> None:
    """Remove the end."""
    del frame[SIZE.size + 1 + below(chance, len(frame) - SIZE.size - 1) :]


def insert(chance: random.Random, frame: bytearray) -> None:
    """Insert bytes."""
    at = 4 + below(chance, len(frame) - 4)
    frame[at:at] = pick(chance, (bytes(4), b"\xff" * 5, chance.randbytes(3)))


def repeat(chance: random.Random, frame: bytearray) -> None:
    """Repeat a piece many times."""
    first, second = sorted(4 + below(chance, len(frame) - 4) for _ in range(2))
    frame[second:second] = frame[first:second] * pick(chance, (1, 2, 50))


FAULTS: tuple[Fault, ...] = (flip, flip, put_number, put_number, put_number, cut, insert, repeat)


def faulty(chance: random.Random, frame: bytes) -> bytes:
    """Return the frame with some faults. Its size field nearly always matches the changed frame."""
    damaged = bytearray(frame)
    for _ in range(pick(chance, (1, 1, 1, 2, 4))):
        if len(damaged) > SIZE.size + 1:
            pick(chance, FAULTS)(chance, damaged)
    if chance.random() > 0.02:
        damaged[:4] = SIZE.pack(len(damaged) - 4)
    return bytes(damaged)
