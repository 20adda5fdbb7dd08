# SPDX-License-Identifier: Apache-2.0
"""Frames to requests and answers to frames, by kafka-python's message classes; the one module of the server with them.

A frame is ``size i32 | api key i16 | version i16 | correlation id i32 | client id | (tags) | body``. The classes decode
a body leniently, so this module is strict for them: a frame has to be used up by its request to the last byte.

The classes of an API are made when its first request comes. A server makes them of a schema, 1 ms for each, and most
servers are never asked for most APIs.
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
"""Bytes that may be left of a request by api key: librdkafka 2.16 writes the null of all topics in Metadata as four."""

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
"""The modules of kafka.protocol that have the messages of each API key."""
OWN_NAMES = {68: "ConsumerGroupHeartbeat", 69: "ConsumerGroupDescribe"}
"""The messages that kafka-python lacks: they are made of schemas as its own are."""
_MODULE_OF = {key: f"kafka.protocol.{module}" for module, keys in MODULES.items() for key in keys}
API_KEYS = frozenset({*_MODULE_OF, *OWN_NAMES})

SIZED = {"string", "bytes", "records"}
"""Types with a length, which tells null."""
ELEMENTS_MAX = 50_000
"""Elements of all arrays of one request: the library needs 2 µs for each."""
PRODUCE, PRODUCE_ELEMENTS_MAX = 0, 10_000
"""The same of a Produce, which is always decoded in the loop."""
TAGS_MAX = 32
"""Tagged fields in one place of a request, and places that have any: clients send none, and each costs a copy."""


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


class _Messages(NamedTuple):
    """The request and the response of an API."""

    request: Any
    response: Any


@functools.cache
def _messages(api_key: int) -> _Messages:
    """The classes of one of `API_KEYS`."""
    made = _own_types(OWN_NAMES[api_key]) if api_key in OWN_NAMES else _library_types(api_key)
    by_kind = {each._json["type"]: each for each in made}  # noqa: SLF001 - the schema tells it
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
    """The name of an API as Kafka's metrics have it: Fetch, JoinGroup."""
    return str(_messages(api_key).request.__name__).removesuffix("Request")


@functools.lru_cache(maxsize=1024)
def is_flexible(api_key: int, version: int) -> bool:
    """True when the version of the request has compact lengths and tags (KIP-482)."""
    return bool(_messages(api_key).request.flexible_version_q(version))


def read_head(frame: memoryview) -> Request:
    """The header of a frame, without its size.

    Raises:
        BadFrameError: it is shorter than a header, or its client id is none.
    """
    if len(frame) < HEAD.size:
        raise BadFrameError(f"a frame of {len(frame)} bytes is shorter than a header")
    api_key, version, correlation_id, client_id_size = HEAD.unpack_from(frame)
    end = HEAD.size + max(client_id_size, 0)
    if end > len(frame):
        raise BadFrameError(f"a client id of {client_id_size} bytes")
    client_id = bytes(frame[HEAD.size : end]).decode(errors="replace")
    if api_key in API_KEYS and is_flexible(api_key, version):
        end = skip_tags(frame, end)
    return Request(api_key, version, correlation_id, client_id, frame[end:])


def skip_tags(source: memoryview, position: int) -> int:
    """The position behind tagged fields (KIP-482), of which this server reads none.

    Raises:
        BadFrameError: the tags are longer than their frame, or too many.
    """
    count, position = read_varint(source, position)
    if count > TAGS_MAX:
        raise BadFrameError(f"{count} tags, of which at most {TAGS_MAX} may come")
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
    if position < len(source) and (byte := source[position]) < 0x80:
        return byte, position + 1
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


@final
class _Budget(threading.local):
    """The elements and tags that the rest of one request may have; each thread reads one request at a time.

    A thread that never began has no bounds: another user of kafka-python in this process reads with the same functions.
    """

    def __init__(self) -> None:
        self._elements = self._tagged = sys.maxsize

    def begin(self, api_key: int) -> None:
        """Starts anew, for the next request."""
        self._elements = PRODUCE_ELEMENTS_MAX if api_key == PRODUCE else ELEMENTS_MAX
        self._tagged = TAGS_MAX

    def range(self, count: int) -> range:
        """The indexes of an array."""
        self._elements -= max(count, 0)
        if self._elements < 0:
            raise BadFrameError("its arrays have too many elements")
        return range(count)

    def tagged(self, content: bytes) -> io.BytesIO:
        """A stream of the bytes that begin with tags."""
        self._tagged -= 1
        if self._tagged < 0 or read_varint(memoryview(content), 0)[0] > TAGS_MAX:
            raise BadFrameError(f"it has more than {TAGS_MAX} tags")
        return io.BytesIO(content)


_budget = _Budget()


@functools.cache
def _reader(api_key: int, version: int) -> Callable[[memoryview, int], tuple[Any, int]]:
    """The function that reads a body, made by kafka-python, with our bounds for its loops.

    The function is code of its own, whose global names are private to it, so two of them can be bounded from here.
    """
    message_type = _messages(api_key).request
    is_compact = message_type.flexible_version_q(version)
    read = message_type._struct.compiled_decode_from(  # noqa: SLF001 - `decode` does not tell how far it came
        version, compact=is_compact, tagged=is_compact, data_class=message_type
    )
    read.__globals__["range"] = _budget.range
    if "_BytesIO" in read.__globals__:
        read.__globals__["_BytesIO"] = _budget.tagged
    return read  # type: ignore[no-any-return]


def decode(request: Request) -> Any:
    """The body as a message of kafka-python.

    Raises:
        BadFrameError: it cannot be read, is too large to read, or something is left of it.
    """
    read = _reader(request.api_key, request.version)
    _budget.begin(request.api_key)
    try:
        message, end = read(request.body, 0)
    except Exception as error:  # noqa: BLE001 - hostile bytes raise anything
        raise BadFrameError(f"a request {request.api_key} that cannot be read: {error}") from None
    if not 0 <= len(request.body) - end <= SLACK.get(request.api_key, 0):
        raise BadFrameError(f"a request {request.api_key} of {len(request.body)} bytes, of which {end} are used")
    _refuse_nulls(message, _nulls(request.api_key, request.version))
    return message


class _Place(NamedTuple):
    """A field that a null may stand in, by mistake or by right, or below which there are such fields."""

    name: str
    is_nullable: bool
    has_texts: bool
    """True for an array whose elements are texts: a schema never allows a null among them."""
    inner: tuple[_Place, ...]


@functools.cache
def _nulls(api_key: int, version: int) -> tuple[_Place, ...]:
    return _places(_messages(api_key).request.fields, version)


def _places(fields: Mapping[str, Any], version: int) -> tuple[_Place, ...]:
    found = []
    for name, field in fields.items():
        if field.for_version_q(version) and not field.tagged_field_q(version):
            inner = _places(field.fields, version) if field.is_struct() or field.is_struct_array() else ()
            kind = field._type_str  # noqa: SLF001 - the schema's own word
            if field.is_array() or inner or kind in SIZED:
                has_texts = kind.removeprefix("[]") in SIZED and field.is_array()
                found.append(_Place(name, field.nullable_for_version_q(version), has_texts, inner))
    return tuple(place for place in found if place.inner or place.has_texts or not place.is_nullable)


def _refuse_nulls(message: Any, places: tuple[_Place, ...]) -> None:
    """The library takes null for every text, array and structure; the schemas do not.

    Raises:
        BadFrameError: a field, or an element of an array, is null that may not be.
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
    """The frame of a request of ours, of nested dicts by the names of the schema."""
    message = _build(_messages(api_key).request, version, values)
    message.API_VERSION = version
    message.with_header(client_id=CLIENT_ID)
    return bytes(message.encode(header=True, framed=True))


def decode_answer(api_key: int, version: int, frame: bytes) -> Any:
    """The answer to a request of ours.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return _messages(api_key).response.decode(frame, version=version, header=True)
    except Exception as error:  # noqa: BLE001 - hostile bytes raise anything
        raise OSError(f"an answer that cannot be read: {error}") from None


def login_exchange(mechanism: str, username: str, password: str) -> Any:
    """The client's side of a login: ``auth_bytes()`` and ``receive(answer)`` in turn, until ``is_done()``."""
    from kafka.net.sasl import get_sasl_mechanism

    login = {"sasl_plain_username": username, "sasl_plain_password": password}
    return get_sasl_mechanism(mechanism)(sasl_mechanism=mechanism, **login)


def encode(request: Request, answer: Mapping[str, Any]) -> bytes:
    """The frame that answers a request, of nested dicts by the names of the schema."""
    return _encode(request.api_key, request.version, request.correlation_id, answer)


def encode_unsupported(request: Request, answer: Mapping[str, Any]) -> bytes:
    """The answer to ApiVersions in a version nobody knows here: the body of version 0 (KIP-511)."""
    return _encode(API_VERSIONS, 0, request.correlation_id, {**answer, "error_code": BrokerError.UNSUPPORTED_VERSION})


def _encode(api_key: int, version: int, correlation_id: int, answer: Mapping[str, Any]) -> bytes:
    response = _messages(api_key).response
    unthrottled = {THROTTLE_TIME: 0} if THROTTLE_TIME in response.fields else {}
    message = _build(response, version, {**unthrottled, **answer})
    message.API_VERSION = version
    message.with_header(correlation_id=correlation_id)
    return bytes(message.encode(header=True, framed=True))


@functools.cache
def _present_fields(message_type: Any, version: int) -> Mapping[str, Any]:
    """The fields that a version has, each with the type of its structure, or of its array's; None: it has neither."""
    return {
        name: schema.data_class if schema.is_struct() or schema.is_struct_array() else None
        for name, schema in message_type.fields.items()
        if schema.for_version_q(version)
    }


def _build(message_type: Any, version: int, values: Mapping[str, Any]) -> Any:
    """A message, with what the version does not have left out."""
    present = _present_fields(message_type, version)
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if name in present:
            fields[name] = _built_field(present[name], version, value)
        elif name not in message_type.fields:
            raise KeyError(f"{message_type.__name__} has no field {name!r}")
    return message_type(version=version, **fields)


def _built_field(inner: Any, version: int, value: Any) -> Any:
    if inner is None or value is None:
        return value
    if isinstance(value, list):
        return [_build(inner, version, each) for each in value]
    return _build(inner, version, value)
