# SPDX-License-Identifier: Apache-2.0
"""Frames to requests and answers to frames, by kafka-python's message classes; the one module of the server with them.

A frame is ``size i32 | api key i16 | version i16 | correlation id i32 | client id | (tags) | body``. The classes decode
a body leniently, so this module is strict for them: a frame has to be used up by its request to the last byte.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kafka.protocol.api_message import ApiMessage

from shmaccum.segment_log.broker_error import BrokerError

HEAD = struct.Struct(">hhih")
"""Api key, version, correlation id, length of the client id."""
CORRELATION = struct.Struct(">hhi")
CLIENT_ID_SIZE_MAX = 255
API_VERSIONS = 18
THROTTLE_TIME = "throttle_time_ms"
SLACK = {3: 3}
"""Bytes that may be left of a request by api key: librdkafka 2.16 writes the null of all topics in Metadata as four."""

for _name in ("admin", "consumer", "metadata", "producer", "sasl"):
    importlib.import_module(f"kafka.protocol.{_name}")


class BadFrameError(Exception):
    """A frame that no client of Kafka sends: it costs the connection it came on."""


class Request(NamedTuple):
    """A request as it came."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: memoryview
    """The bytes behind the header."""


def _message_types(root: Any) -> Iterator[Any]:
    for each in root.__subclasses__():
        yield each
        yield from _message_types(each)


def _types_by_key(kind: str) -> Mapping[int, Any]:
    schemas = ((each, each.__dict__.get("_json")) for each in _message_types(ApiMessage))
    return {schema["apiKey"]: each for each, schema in schemas if schema and schema["type"] == kind}


_REQUESTS = _types_by_key("request")
_RESPONSES = _types_by_key("response")


def is_flexible(api_key: int, version: int) -> bool:
    """True when the version of the request has compact lengths and tags (KIP-482)."""
    return bool(_REQUESTS[api_key].flexible_version_q(version))


def read_head(frame: memoryview) -> Request:
    """The header of a frame, without its size.

    Raises:
        BadFrameError: it is shorter than a header, or its client id is none.
    """
    if len(frame) < HEAD.size:
        raise BadFrameError(f"a frame of {len(frame)} bytes is shorter than a header")
    api_key, version, correlation_id, client_id_size = HEAD.unpack_from(frame)
    end = HEAD.size + max(client_id_size, 0)
    if client_id_size > CLIENT_ID_SIZE_MAX or end > len(frame):
        raise BadFrameError(f"a client id of {client_id_size} bytes")
    client_id = bytes(frame[HEAD.size : end]).decode(errors="replace")
    if api_key in _REQUESTS and is_flexible(api_key, version):
        end = skip_tags(frame, end)
    return Request(api_key, version, correlation_id, client_id, frame[end:])


def skip_tags(source: memoryview, position: int) -> int:
    """The position behind tagged fields (KIP-482), of which this server reads none.

    Raises:
        BadFrameError: the tags are longer than their frame.
    """
    count, position = read_varint(source, position)
    if count > len(source):
        raise BadFrameError(f"{count} tags in a frame of {len(source)} bytes")
    for _ in range(count):
        _, position = read_varint(source, position)
        size, position = read_varint(source, position)
        position += size
    if position > len(source):
        raise BadFrameError("tags that are longer than their frame")
    return position


def read_varint(source: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of at most five bytes, and the position behind it.

    Raises:
        BadFrameError: it does not end.
    """
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(source):
            raise BadFrameError("a number that goes beyond its frame")
        byte = source[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise BadFrameError("a number of more than five bytes")


def varint(value: int) -> bytes:
    """The bytes of an unsigned varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def decode(request: Request) -> Any:
    """The body as a message of kafka-python.

    Raises:
        BadFrameError: it cannot be read, or something is left of it.
    """
    message_type = _REQUESTS[request.api_key]
    is_compact = message_type.flexible_version_q(request.version)
    read = message_type._struct.compiled_decode_from(  # noqa: SLF001 - `decode` does not tell how far it came
        request.version, compact=is_compact, tagged=is_compact, data_class=message_type
    )
    try:
        message, end = read(request.body, 0)
    except Exception as error:  # noqa: BLE001 - hostile bytes raise anything
        raise BadFrameError(f"a request {request.api_key} that cannot be read: {error}") from None
    if not 0 <= len(request.body) - end <= SLACK.get(request.api_key, 0):
        raise BadFrameError(f"a request {request.api_key} of {len(request.body)} bytes, of which {end} are used")
    return message


def encode(request: Request, answer: Mapping[str, Any]) -> bytes:
    """The frame that answers a request, of nested dicts by the names of the schema."""
    return _encode(request.api_key, request.version, request.correlation_id, answer)


def encode_unsupported(request: Request, answer: Mapping[str, Any]) -> bytes:
    """The answer to ApiVersions in a version nobody knows here: the body of version 0 (KIP-511)."""
    return _encode(API_VERSIONS, 0, request.correlation_id, {**answer, "error_code": BrokerError.UNSUPPORTED_VERSION})


def _encode(api_key: int, version: int, correlation_id: int, answer: Mapping[str, Any]) -> bytes:
    response = _RESPONSES[api_key]
    unthrottled = {THROTTLE_TIME: 0} if THROTTLE_TIME in response.fields else {}
    message = _build(response, version, {**unthrottled, **answer})
    message.API_VERSION = version
    message.with_header(correlation_id=correlation_id)
    return bytes(message.encode(header=True, framed=True))


def _build(message_type: Any, version: int, values: Mapping[str, Any]) -> Any:
    """A message, with what the version does not have left out."""
    fields: dict[str, Any] = {}
    for name, value in values.items():
        schema = message_type.fields[name]
        if schema.for_version_q(version):
            fields[name] = _built_field(schema, version, value)
    return message_type(version=version, **fields)


def _built_field(schema: Any, version: int, value: Any) -> Any:
    if isinstance(value, dict) and schema.is_struct():
        return _build(schema.data_class, version, value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_build(schema.data_class, version, each) for each in value]
    return value
