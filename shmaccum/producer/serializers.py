# SPDX-License-Identifier: Apache-2.0
"""Serializers, which convert a user's key or value to bytes.

A serializer is a built-in name (``"str"``), a callable with one argument, or an object with kafka-python's method
``serialize(topic, headers, data)`` or the older ``serialize(topic, data)``. `resolve` converts each to a `Serialize`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgpack

from shmaccum.exceptions import InvalidArgumentError

Headers: TypeAlias = Sequence[tuple[str, Any]]
Serialize: TypeAlias = Callable[[str, "Headers | None", Any], Any]


def serialize_bytes(data: Any) -> Any:
    """Returns bytes-like objects unchanged."""
    return data


def serialize_str(data: str) -> bytes:
    """Encodes a str as UTF-8.

    Raises:
        TypeError: `data` is not a str.
    """
    if not isinstance(data, str):
        raise TypeError(f"the str serializer takes a str, not {type(data).__name__}")
    return data.encode()


def serialize_json(data: Any) -> bytes:
    """Encodes as compact JSON in UTF-8. Equal dicts give equal bytes, so a dict may be a key.

    Raises:
        TypeError, ValueError: JSON cannot represent the data.
    """
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, sort_keys=True, allow_nan=False).encode()


def serialize_msgpack(data: Any) -> bytes:
    """Encodes as MessagePack, which distinguishes str and bytes.

    Raises:
        TypeError, ValueError, OverflowError: MessagePack cannot represent the data.
    """
    packed: bytes = msgpack.packb(data)
    return packed


BY_NAME: Mapping[str, Callable[[Any], Any]] = {
    "bytes": serialize_bytes,
    "str": serialize_str,
    "json": serialize_json,
    "msgpack": serialize_msgpack,
}


def _of_value(function: Callable[[Any], Any]) -> Serialize:
    """Preserves None, which is a record without a key, or a tombstone."""
    return lambda _topic, _headers, data: None if data is None else function(data)


def _of_object(serialize: Callable[..., Any]) -> Serialize:
    """Passes None to the serializer, too, as kafka-python does."""
    try:
        inspect.signature(serialize).bind("topic", None, b"")
    except TypeError:
        return lambda topic, _headers, data: serialize(topic, data)
    return serialize


def resolve(serializer: Any) -> Serialize | None:
    """Returns the function to call with (topic, headers, data), or None if the data stay unchanged.

    Raises:
        InvalidArgumentError: the object is not a serializer.
    """
    if serializer is None or serializer == "bytes":
        return None
    if isinstance(serializer, str) and serializer in BY_NAME:
        return _of_value(BY_NAME[serializer])
    if callable(getattr(serializer, "serialize", None)):
        return _of_object(serializer.serialize)
    if callable(serializer):
        return _of_value(serializer)
    raise InvalidArgumentError(
        f"{serializer!r} is not a serializer: give a function, an object with serialize(topic, headers, data), or one "
        f"of {', '.join(BY_NAME)}"
    )
