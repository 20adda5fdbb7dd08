# SPDX-License-Identifier: Apache-2.0
"""Conversion of frames to requests and of responses to frames; the server's only module that uses kafka-python.

A frame is ``size i32 | api key i16 | version i16 | correlation id i32 | client id | (tags) | body``. kafka-python
decodes bodies leniently, so this module adds strict checks: a request must use its frame to the last byte.

The message classes of an API are created at its first request. Each takes 1 ms, and most servers never receive most
APIs.
"""

from __future__ import annotations

import functools
import importlib
import io
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, final

from shmaccum.common.kafka_package import import_without_clients
from shmaccum.common.packages import needed
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server import schemas

with needed("kafka-python", "serve", "the server and its clients need"):
    for _package in ("kafka", "kafka.protocol.admin", "kafka.protocol.consumer", "kafka.protocol.producer"):
        import_without_clients(_package)
    from kafka.protocol.api_message import ApiMessage

HEAD = struct.Struct(">hhih")
"""Api key, version, correlation id, length of the client id."""
CLIENT_ID = "shmaccum"
API_VERSIONS = 18
THROTTLE_TIME = "throttle_time_ms"
SLACK = {3: 3}
"""Bytes that may follow a request, by api key: in Metadata, librdkafka 2.16 writes a null of one byte as four."""

MODULES = {
    "producer.produce": (0,),
    "consumer.fetch": (1,),
    "consumer.offsets": (2, 23),
    "metadata.metadata": (3,),
    "consumer.group": (8, 9, 11, 12, 13, 14, 47),
    "metadata.find_coordinator": (10,),
    "admin.groups": (15, 16, 42),
    "sasl": (17, 36),
    "metadata.api_versions": (18,),
    "admin.topics": (19, 20, 21, 37, 43, 45, 46, 75),
    "producer.transaction": (22, 24, 25, 26, 28),
    "admin.transactions": (61, 65, 66),
    "admin.configs": (32, 33, 44, 74),
    "admin.cluster": (34, 35, 60),
}
"""The api keys of the messages in each module of kafka.protocol."""
OWN_NAMES = {68: "ConsumerGroupHeartbeat", 69: "ConsumerGroupDescribe"}
"""The messages that kafka-python lacks. They are created from schemas, like its own."""
_MODULE_OF = {key: f"kafka.protocol.{module}" for module, keys in MODULES.items() for key in keys}
API_KEYS = frozenset({*_MODULE_OF, *OWN_NAMES})

SIZED = {"string", "bytes", "records"}
"""Types with a length, which also encodes null."""
ELEMENTS_MAX = 50_000
"""The most elements of all arrays of one request. kafka-python needs 2 µs for each."""
PRODUCE, PRODUCE_ELEMENTS_MAX = 0, 10_000
"""The same for Produce, which is always decoded in the loop."""
TAGS_MAX = 32
"""The most tagged fields in one place, and the most places with any. Clients send none, and each costs a copy."""


class BadFrameError(Exception):
    """A frame that no Kafka client sends. Its connection is closed."""


class Request(NamedTuple):
    """A received request."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: memoryview
    """The bytes after the header."""


class _Messages(NamedTuple):
    """The request and the response class of an API."""

    request: Any
    response: Any


@functools.cache
def _messages(api_key: int) -> _Messages:
    """Return the classes of one of `API_KEYS`."""
    made = _own_types(OWN_NAMES[api_key]) if api_key in OWN_NAMES else _library_types(api_key)
    by_kind = {each._json["type"]: each for each in made}  # noqa: SLF001 - only the schema has the type
    return _Messages(by_kind["request"], by_kind["response"])


def _own_types(name: str) -> Iterator[Any]:
    for kind in ("Request", "Response"):
        yield type(ApiMessage)(name + kind, (ApiMessage,), {}, load_json=schemas)


def _library_types(api_key: int) -> Iterator[Any]:
    for each in vars(importlib.import_module(_MODULE_OF[api_key])).values():
        schema = each.__dict__.get("_json") if isinstance(each, type) else None
        if schema and schema.get("apiKey") == api_key:
            yield each


@functools.cache
def api_name(api_key: int) -> str:
    """Return the name of an API as in Kafka's metrics: Fetch, JoinGroup."""
    return str(_messages(api_key).request.__name__).removesuffix("Request")


@functools.lru_cache(maxsize=1024)
def is_flexible(api_key: int, version: int) -> bool:
    """Return whether this version of the request has compact lengths and tags (KIP-482)."""
    return bool(_messages(api_key).request.flexible_version_q(version))


def read_head(frame: memoryview) -> Request:
    """Decode the header of a frame without its size.

    Raises:
        BadFrameError: the frame is shorter than its header.
    """
    if len(frame) < HEAD.size:
        raise BadFrameError(f"a frame of {len(frame)} bytes is shorter than its header")
    api_key, version, correlation_id, client_id_size = HEAD.unpack_from(frame)
    end = HEAD.size + max(client_id_size, 0)
    if end > len(frame):
        raise BadFrameError(f"a client id of {client_id_size} bytes is longer than its frame")
    client_id = bytes(frame[HEAD.size : end]).decode(errors="replace")
    if api_key in API_KEYS and is_flexible(api_key, version):
        end = skip_tags(frame, end)
    return Request(api_key, version, correlation_id, client_id, frame[end:])


def skip_tags(source: memoryview, position: int) -> int:
    """Return the position after tagged fields (KIP-482), all of which the server ignores.

    Raises:
        BadFrameError: the tags are longer than their frame, or too many.
    """
    count, position = read_varint(source, position)
    if count > TAGS_MAX:
        raise BadFrameError(f"{count} tags, more than {TAGS_MAX}")
    for _ in range(count):
        _, position = read_varint(source, position)
        size, position = read_varint(source, position)
        position += size
    if position > len(source):
        raise BadFrameError("tags are longer than their frame")
    return position


def read_varint(source: memoryview, position: int) -> tuple[int, int]:
    """Decode an unsigned varint of at most five bytes, and return it with the position after it.

    Raises:
        BadFrameError: the varint does not end.
    """
    if position < len(source) and (byte := source[position]) < 0x80:
        return byte, position + 1
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(source):
            raise BadFrameError("a varint is longer than its frame")
        byte = source[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise BadFrameError("a varint has more than five bytes")


def varint(value: int) -> bytes:
    """Encode an unsigned varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


@final
class _Budget(threading.local):
    """The most elements and tags in the rest of a request. Each thread decodes one request at a time.

    In a thread that never called `begin`, there are no limits, because other users of kafka-python share the functions.
    """

    def __init__(self) -> None:
        self._elements = self._tagged = sys.maxsize

    def begin(self, api_key: int) -> None:
        """Resets the limits for the next request."""
        self._elements = PRODUCE_ELEMENTS_MAX if api_key == PRODUCE else ELEMENTS_MAX
        self._tagged = TAGS_MAX

    def range(self, count: int) -> range:
        """Replaces range() in the loop over an array."""
        self._elements -= max(count, 0)
        if self._elements < 0:
            raise BadFrameError("the arrays have too many elements")
        return range(count)

    def tagged(self, content: bytes) -> io.BytesIO:
        """Replaces BytesIO() where tags are decoded."""
        self._tagged -= 1
        if self._tagged < 0 or read_varint(memoryview(content), 0)[0] > TAGS_MAX:
            raise BadFrameError(f"the request has more than {TAGS_MAX} tags")
        return io.BytesIO(content)


_budget = _Budget()


@functools.cache
def _reader(api_key: int, version: int) -> Callable[[memoryview, int], tuple[Any, int]]:
    """Return kafka-python's function that decodes a body, with our limits for its loops.

    The function is generated code with private global names, so two of these names can be replaced.
    """
    message_type = _messages(api_key).request
    is_compact = message_type.flexible_version_q(version)
    read = message_type._struct.compiled_decode_from(  # noqa: SLF001 - `decode` does not return the end position
        version, compact=is_compact, tagged=is_compact, data_class=message_type
    )
    read.__globals__["range"] = _budget.range
    if "_BytesIO" in read.__globals__:
        read.__globals__["_BytesIO"] = _budget.tagged
    return read  # type: ignore[no-any-return]


def decode(request: Request) -> Any:
    """Decode the body to a message of kafka-python.

    Raises:
        BadFrameError: the body is invalid or too large, or has remaining bytes.
    """
    read = _reader(request.api_key, request.version)
    _budget.begin(request.api_key)
    try:
        message, end = read(request.body, 0)
    except Exception as error:  # noqa: BLE001 - invalid bytes may raise any exception
        raise BadFrameError(f"a request {request.api_key} cannot be decoded: {error}") from None
    if not 0 <= len(request.body) - end <= SLACK.get(request.api_key, 0):
        raise BadFrameError(f"a request {request.api_key} has {len(request.body)} bytes, but only {end} are used")
    _refuse_nulls(message, _nulls(request.api_key, request.version))
    return message


class _Place(NamedTuple):
    """A field that may contain a null, or that has such fields below it."""

    name: str
    is_nullable: bool
    has_texts: bool
    """True for an array of texts. No schema allows null elements in it."""
    inner: tuple[_Place, ...]


@functools.cache
def _nulls(api_key: int, version: int) -> tuple[_Place, ...]:
    return _places(_messages(api_key).request.fields, version)


def _places(fields: Mapping[str, Any], version: int) -> tuple[_Place, ...]:
    found = []
    for name, field in fields.items():
        if field.for_version_q(version) and not field.tagged_field_q(version):
            inner = _places(field.fields, version) if field.is_struct() or field.is_struct_array() else ()
            kind = field._type_str  # noqa: SLF001 - the type name in the schema
            if field.is_array() or inner or kind in SIZED:
                has_texts = kind.removeprefix("[]") in SIZED and field.is_array()
                found.append(_Place(name, field.nullable_for_version_q(version), has_texts, inner))
    return tuple(place for place in found if place.inner or place.has_texts or not place.is_nullable)


def _refuse_nulls(message: Any, places: tuple[_Place, ...]) -> None:
    """Reject nulls that the schema does not allow. kafka-python accepts null for every text, array and structure.

    Raises:
        BadFrameError: a field or an array element is null but not nullable.
    """
    for name, is_nullable, has_texts, inner in places:
        value = getattr(message, name)
        if value is None and not is_nullable:
            raise BadFrameError(f"{name} is null")
        if has_texts and value and None in value:
            raise BadFrameError(f"an element of {name} is null")
        if value and inner:
            for each in value if isinstance(value, list) else (value,):
                _refuse_nulls(each, inner)


def encode_request(api_key: int, version: int, values: Mapping[str, Any]) -> bytes:
    """Encode a request as a frame, from nested dicts by the names of the schema."""
    message = _build(_messages(api_key).request, version, values, {})
    message.API_VERSION = version
    message.with_header(client_id=CLIENT_ID)
    return bytes(message.encode(header=True, framed=True))


def decode_answer(api_key: int, version: int, frame: bytes) -> Any:
    """Decode the response to our request.

    Raises:
        OSError: the response is invalid.
    """
    try:
        return _messages(api_key).response.decode(frame, version=version, header=True)
    except Exception as error:  # noqa: BLE001 - invalid bytes may raise any exception
        raise OSError(f"the response cannot be decoded: {error}") from None


def login_exchange(mechanism: str, username: str, password: str) -> Any:
    """Return the client's side of a login: ``auth_bytes()`` and ``receive(answer)`` in turn, until ``is_done()``."""
    from kafka.net.sasl import get_sasl_mechanism

    login = {"sasl_plain_username": username, "sasl_plain_password": password}
    return get_sasl_mechanism(mechanism)(sasl_mechanism=mechanism, **login)


def encode(request: Request, answer: Mapping[str, Any]) -> bytes:
    """Encode the response to a request as a frame, from nested dicts by the names of the schema."""
    return _encode(request.api_key, request.version, request.correlation_id, answer)


def encode_unsupported(request: Request, answer: Mapping[str, Any]) -> bytes:
    """Encode the response to ApiVersions in an unknown version: the body of version 0 (KIP-511)."""
    return _encode(API_VERSIONS, 0, request.correlation_id, {**answer, "error_code": BrokerError.UNSUPPORTED_VERSION})


def _encode(api_key: int, version: int, correlation_id: int, answer: Mapping[str, Any]) -> bytes:
    response = _messages(api_key).response
    unthrottled = {THROTTLE_TIME: 0} if THROTTLE_TIME in response.fields else {}
    message = _build(response, version, {**unthrottled, **answer}, {})
    message.API_VERSION = version
    message.with_header(correlation_id=correlation_id)
    return bytes(message.encode(header=True, framed=True))


@functools.cache
def _present_fields(message_type: Any, version: int) -> Mapping[str, Any]:
    """Return the fields of a version, with the class of the structure or of the array's structures, or None."""
    return {
        name: schema.data_class if schema.is_struct() or schema.is_struct_array() else None
        for name, schema in message_type.fields.items()
        if schema.for_version_q(version)
    }


_Built = dict[tuple[Any, int], list[Any]]
"""The structures of each array that was built, by their class and the identity of the list of their values."""


def _build(message_type: Any, version: int, values: Mapping[str, Any], built: _Built) -> Any:
    """Build a message without the fields that the version lacks. A list that occurs repeatedly is built once."""
    present = _present_fields(message_type, version)
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if name in present:
            fields[name] = _built_field(present[name], version, value, built)
        elif name not in message_type.fields:
            raise KeyError(f"{message_type.__name__} has no field {name!r}")
    return message_type(version=version, **fields)


def _built_field(inner: Any, version: int, value: Any, built: _Built) -> Any:
    if inner is None or value is None:
        return value
    if not isinstance(value, list):
        return _build(inner, version, value, built)
    key = inner, id(value)
    if key not in built:
        built[key] = [_build(inner, version, each, built) for each in value]
    return built[key]
