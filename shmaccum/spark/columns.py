# SPDX-License-Identifier: Apache-2.0
"""The columns of Spark's Kafka connector: the input of a sink (KafkaWriter), and the output of a source.

Unlike Spark's sink, this one uses a column ``timestamp`` as the records' time, so that a copy from one log to another
preserves times. The column must have a time zone. A time without one (TIMESTAMP_NTZ, DATE) is a different instant in
each session, whose time zone the writer does not know. So it is rejected, and must be cast in Spark.
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
"""The columns with facts about each record's batch, for a source over an arena."""


def source_schema(*, has_headers: bool, has_batches: bool = False) -> StructType:
    """Return the columns of the source: Spark's in its order, then ours."""
    headers = [StructField("headers", HEADERS_TYPE)] if has_headers else []
    return StructType([*SOURCE_COLUMNS, *headers, *(BATCH_COLUMNS if has_batches else ())])


def arrow_schema(schema: StructType) -> Any:
    """Convert Spark's schema to Arrow's, with times in UTC. Spark 4.2 changed how the time zone is passed."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


# --- the sink


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, (StringType, BinaryType))


def _is_headers(kind: DataType) -> bool:
    """Return whether the type is an array of structs of a text key and a text or binary value."""
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
"""The types that each column may have, as text and as a test."""


def sink_columns(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """Return the columns of a frame that become records. As in Spark's own sink, others are ignored.

    Args:
        schema: the schema of the frame.
        topic: the option `topic`, with which the column is ignored.

    Raises:
        InvalidArgumentError: a column is missing or of a wrong type.
    """
    types = {field.name: field.dataType for field in schema.fields}
    wanted = [name for name in SINK_COLUMNS if name in types and not (name == "topic" and topic is not None)]
    if "value" not in types:
        raise InvalidArgumentError(f"the frame has no column 'value', which a record needs; {_columns_clause(types)}")
    if topic is None and "topic" not in types:
        raise InvalidArgumentError(
            f"no topic is set: set .option('topic', NAME), or add a column 'topic'; {_columns_clause(types)}"
        )
    for name in wanted:
        words, is_right = SINK_COLUMNS[name]
        if not is_right(types[name]):
            raise InvalidArgumentError(
                f"the column {name!r} is {types[name].simpleString()} but must be {words}: cast it to "
                f"{words.partition(' or ')[0]}, or drop it"
            )
    return tuple(name for name in types if name in wanted)


def _columns_clause(types: Mapping[str, DataType]) -> str:
    """Return a clause with the frame's columns. Their names are case-sensitive, even if Spark ignores case."""
    return f"its columns are {', '.join(types) or 'none'}"
