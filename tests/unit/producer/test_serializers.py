# SPDX-License-Identifier: Apache-2.0
"""Every option for turning users' values into bytes."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from shmaccum.exceptions import InvalidArgumentError
from shmaccum.producer import serializers


@pytest.mark.parametrize(
    ("name", "data", "serialized"),
    [
        ("str", "ä", b"\xc3\xa4"),
        ("str", "", b""),
        ("json", {"b": 1, "a": [True, None, "ä"]}, '{"a":[true,null,"ä"],"b":1}'.encode()),
        ("msgpack", {"a": b"\x00"}, b"\x81\xa1a\xc4\x01\x00"),
    ],
)
def test_by_name(name: str, data: Any, serialized: bytes) -> None:
    serialize = serializers.resolve(name)
    assert serialize is not None
    assert serialize("t", None, data) == serialized


@pytest.mark.parametrize("serializer", ["str", "json", "msgpack", lambda _value: b"x"])
def test_null_stays_null(serializer: Any) -> None:
    serialize = serializers.resolve(serializer)
    assert serialize is not None
    assert serialize("t", None, None) is None


@pytest.mark.parametrize("serializer", [None, "bytes"])
def test_for_bytes_there_is_nothing_to_do(serializer: Any) -> None:
    assert serializers.resolve(serializer) is None
    assert serializers.serialize_bytes(b"v") == b"v"


@pytest.mark.parametrize(("name", "data"), [("str", b"v"), ("str", 3), ("json", b"v"), ("json", float("nan"))])
def test_what_a_serializer_cannot_say_is_refused(name: str, data: Any) -> None:
    serialize = serializers.resolve(name)
    assert serialize is not None
    with pytest.raises((TypeError, ValueError)):
        serialize("t", None, data)


def test_equal_dicts_are_equal_keys() -> None:
    assert serializers.serialize_json({"a": 1, "b": 2}) == serializers.serialize_json({"b": 2, "a": 1})


class OfKafkaPython:
    def serialize(self, topic: str, headers: Any, data: Any) -> bytes:
        return f"{topic} {headers} {data}".encode()


class OfFormerKafkaPython:
    def serialize(self, topic: str, value: Any) -> bytes:
        return f"{topic} {value}".encode()


def test_objects_of_kafka_python_are_called_as_it_calls_them() -> None:
    new, old = serializers.resolve(OfKafkaPython()), serializers.resolve(OfFormerKafkaPython())
    assert new is not None
    assert old is not None
    assert new("t", [("h", b"1")], 3) == b"t [('h', b'1')] 3"
    assert new("t", None, None) == b"t None None"
    assert old("t", [("h", b"1")], 3) == b"t 3"


def test_a_callable_gets_the_value_alone() -> None:
    serialize = serializers.resolve(msgpack.packb)
    assert serialize is not None
    assert serialize("t", [("h", b"1")], 7) == b"\x07"


@pytest.mark.parametrize("serializer", ["yaml", 3, object()])
def test_what_is_no_serializer_is_refused(serializer: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a serializer"):
        serializers.resolve(serializer)
