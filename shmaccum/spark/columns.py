# SPDX-License-Identifier: Apache-2.0
"""The columns of Spark's Kafka connector: those a sink takes (KafkaWriter), and those a source gives.

Unlike Spark's sink, this one keeps a column ``timestamp`` as the records' time, so that what was read from one log and
written to another keeps its time. The column has to be an instant: a time without a zone (TIMESTAMP_NTZ, DATE) means
another instant in each session's time zone, which the writer does not know. So it is refused, and Spark casts it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from shmaccum.exceptions import InvalidArgumentError

HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

SOURCE_COLUMNS = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)


BATCH_COLUMNS = (
    StructField("batchState", StringType()),
    StructField("batchSeq", LongType()),
    StructField("slotIndex", IntegerType()),
    StructField("isChecksumRight", BooleanType()),
    StructField("isReadable", BooleanType()),
)
"""The columns about each record's batch, which the source over an arena has."""


def source_schema(*, has_headers: bool, has_batches: bool = False) -> StructType:
    """The columns of the source: Spark's in its order, then ours."""
    headers = [StructField("headers", HEADERS_TYPE)] if has_headers else []
    return StructType([*SOURCE_COLUMNS, *headers, *(BATCH_COLUMNS if has_batches else ())])


def arrow_schema(schema: StructType) -> Any:
    """Spark's schema as Arrow's, with times in UTC; how that is said changed with Spark 4.2."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


# --- the sink


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, (StringType, BinaryType))


def _is_headers(kind: DataType) -> bool:
    """An array of structs of a key, which is text, and a value, which is bytes or text."""
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = {field.name: field.dataType for field in kind.elementType.fields}
    return set(fields) == {"key", "value"} and isinstance(fields["key"], StringType) and _is_bytes(fields["value"])


SINK_COLUMNS: Mapping[str, tuple[str, Callable[[DataType], bool]]] = {
    "value": ("string or binary", _is_bytes),
    "key": ("string or binary", _is_bytes),
    "topic": ("string", lambda kind: isinstance(kind, StringType)),
    "partition": ("int or bigint", lambda kind: isinstance(kind, (IntegerType, LongType))),
    "timestamp": ("timestamp", lambda kind: isinstance(kind, TimestampType)),
    "headers": ("array<struct<key: string, value: binary>>", _is_headers),
}
"""The types that each column may have, in words and as a test."""


def sink_columns(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """The columns of a frame that become records; others are left out, as Spark's own sink does.

    Args:
        schema: of the frame.
        topic: the option, which makes the column needless.

    Raises:
        InvalidArgumentError: a column is missing or of a wrong type.
    """
    types = {field.name: field.dataType for field in schema.fields}
    wanted = [name for name in SINK_COLUMNS if name in types and not (name == "topic" and topic is not None)]
    if "value" not in types:
        raise InvalidArgumentError(f"the frame has no column 'value', which a record needs; {_instead(types)}")
    if topic is None and "topic" not in types:
        raise InvalidArgumentError(
            f"no topic is named: say .option('topic', NAME), or add a column 'topic'; {_instead(types)}"
        )
    for name in wanted:
        words, is_right = SINK_COLUMNS[name]
        if not is_right(types[name]):
            raise InvalidArgumentError(
                f"the column {name!r} is {types[name].simpleString()}, it must be {words}: cast it to "
                f"{words.partition(' or ')[0]}, or leave it out"
            )
    return tuple(name for name in types if name in wanted)


def _instead(types: Mapping[str, DataType]) -> str:
    """The clause that names the frame's columns. Their case counts, also where Spark would ignore it."""
    return f"its columns are {', '.join(types) or 'none'}"
