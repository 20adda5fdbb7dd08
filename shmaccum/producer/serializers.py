# SPDX-License-Identifier: Apache-2.0
"""From what users have to the bytes of a key or value.

A serializer is one of our names (``"str"``), a callable of one value, or an object with kafka-python's method
``serialize(topic, headers, data)``, or with the older ``serialize(topic, data)``. `resolve` makes a `Serialize` of any.
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
    """Bytes-like objects as they are. The name says that no conversion is wanted."""
    return data


def serialize_str(data: str) -> bytes:
    """UTF-8 of a str.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(data, str):
        raise TypeError(f"the str serializer takes a str, not {type(data).__name__}")
    return data.encode()


def serialize_json(data: Any) -> bytes:
    """Compact JSON, UTF-8. Equal dicts give equal bytes, so that a dict may be a key.

    Raises:
        TypeError, ValueError: JSON cannot say it.
    """
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, sort_keys=True, allow_nan=False).encode()


def serialize_msgpack(data: Any) -> bytes:
    """MessagePack; str and bytes stay apart.

    Raises:
        TypeError, ValueError, OverflowError: MessagePack cannot say it.
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
    """Null stays null: a record without a key, or a tombstone."""
    return lambda _topic, _headers, data: None if data is None else function(data)


def _of_object(serialize: Callable[..., Any]) -> Serialize:
    """kafka-python calls its serializers also for None."""
    try:
        inspect.signature(serialize).bind("topic", None, b"")
    except TypeError:
        return lambda topic, _headers, data: serialize(topic, data)
    return serialize


def resolve(serializer: Any) -> Serialize | None:
    """The function to call with (topic, headers, data); None where the data stay as they are.

    Raises:
        InvalidArgumentError: it is no serializer.
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
        f"{serializer!r} is no serializer: give a function, an object with serialize(topic, headers, data), or one of "
        f"{', '.join(BY_NAME)}"
    )
